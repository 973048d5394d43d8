#include "trainer/evaluation/distributed_evaluation.h"

#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace lockstep::trainer::coco {

Result accumulate_over_ranks(const EvaluationShard& mine, std::uint64_t image_count, comm::Communicator& communicator,
                             unsigned threads) {
    std::vector<EvaluationShard> shards;
    for (const std::vector<std::byte>& bytes : communicator.all_gather_bytes(mine.to_bytes(), "evaluation shards")) {
        shards.push_back(EvaluationShard::from_bytes(bytes));
    }
    const EvaluationShard whole = merge(shards);
    if (whole.image_ids.size() != image_count) {
        throw base::Error(base::str("the ranks evaluated ", whole.image_ids.size(), " images, but the data set has ",
                                    image_count, "; every image counts once"));
    }
    return accumulate(whole, threads);
}

}  // namespace lockstep::trainer::coco
