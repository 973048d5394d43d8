#include "trainer/evaluation/distributed_evaluation.h"

#include <vector>

namespace lockstep::trainer::coco {

Result accumulate_over_ranks(const EvaluationShard& mine, comm::Communicator& communicator, unsigned threads) {
    std::vector<EvaluationShard> shards;
    for (const std::vector<std::byte>& bytes : communicator.all_gather_bytes(mine.to_bytes(), "evaluation shards")) {
        shards.push_back(EvaluationShard::from_bytes(bytes));
    }
    return accumulate(merge(shards), threads);
}

}  // namespace lockstep::trainer::coco
