// For compare_with_pycocotools.py: evaluates many cases in one process and writes every cell.
// Each line of stdin is a case:
//   GROUND_TRUTH DETECTIONS OUT HONOR_IGNORE FIX_IDS LIMIT LIMIT LIMIT
// OUT gets precision [T,R,K,A,M], recall [T,K,A,M] and the twelve scores as raw doubles, OUT.txt the printed summary.
// Fails where shards of the images, merged, or another number of threads give other bits than all images at once on one
// thread, and where a number is NaN.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "tests/trainer/evaluation/made_up_detections.h"
#include "trainer/evaluation/coco_evaluation.h"
#include "trainer/evaluation/coco_json.h"

namespace {

namespace base = lockstep::base;
namespace coco = lockstep::trainer::coco;

/// The records of shard `which` of `count`. Shards are uneven, and with few images some are empty.
struct Portion {
    std::vector<std::int64_t> image_ids;
    std::vector<coco::GroundTruthBox> boxes;
    std::vector<coco::Detection> detections;
};

Portion portion_of(const coco::GroundTruth& truth, const std::vector<coco::Detection>& detections, std::uint64_t which,
                   std::uint64_t count) {
    const auto is_mine = [&](std::int64_t image_id) {
        const std::uint64_t square = static_cast<std::uint64_t>(image_id) * static_cast<std::uint64_t>(image_id);
        return square % (count + 1) % count == which;
    };
    Portion portion;
    std::ranges::copy_if(truth.image_ids, std::back_inserter(portion.image_ids), is_mine);
    std::ranges::copy_if(truth.boxes, std::back_inserter(portion.boxes), is_mine, &coco::GroundTruthBox::image_id);
    std::ranges::copy_if(detections, std::back_inserter(portion.detections), is_mine, &coco::Detection::image_id);
    return portion;
}

std::vector<double> all_numbers(const coco::Result& result) {
    std::vector<double> numbers = result.precision;
    numbers.insert(numbers.end(), result.recall.begin(), result.recall.end());
    numbers.insert(numbers.end(), result.stats.begin(), result.stats.end());
    return numbers;
}

std::vector<std::uint64_t> all_bits(const coco::Result& result) {
    return lockstep::tests::bits_of(all_numbers(result));
}

void evaluate_case(const std::string& line) {
    std::istringstream words(line);
    std::string truth_path, detections_path, out_path;
    coco::Options options;
    words >> truth_path >> detections_path >> out_path >> options.honor_ignore >> options.fix_zero_ids;
    for (std::int32_t& limit : options.max_detections) {
        words >> limit;
    }
    if (!words) {
        throw base::Error("not a case: " + line);
    }
    const coco::GroundTruth truth = coco::read_ground_truth(truth_path, options.fix_zero_ids);
    const std::vector<coco::Detection> detections = coco::read_detections(detections_path);
    const auto evaluate = [&](unsigned threads) {
        options.threads = threads;
        return coco::accumulate(coco::match_images(truth.image_ids, truth.categories, truth.boxes, detections, options),
                                threads);
    };
    const coco::Result result = evaluate(1);
    const std::vector<std::uint64_t> bits = all_bits(result);
    for (const unsigned threads : {0, 2, 3, 7}) {
        if (all_bits(evaluate(threads)) != bits) {
            throw base::Error(base::str(truth_path, ": ", threads, " threads give another result than one"));
        }
    }

    for (const std::uint64_t count : {2, 3, 4}) {
        std::vector<coco::EvaluationShard> shards;
        for (std::uint64_t which = 0; which < count; ++which) {
            const Portion mine = portion_of(truth, detections, which, count);
            const auto shard =
                coco::match_images(mine.image_ids, truth.categories, mine.boxes, mine.detections, options);
            shards.insert(shards.begin(), coco::EvaluationShard::from_bytes(shard.to_bytes()));
        }
        if (all_bits(coco::accumulate(coco::merge(shards))) != bits) {
            throw base::Error(base::str(truth_path, ": ", count, " shards give another result than one"));
        }
    }

    const std::vector<double> numbers = all_numbers(result);
    std::ofstream(out_path, std::ios::binary)
        .write(reinterpret_cast<const char*>(numbers.data()),
               static_cast<std::streamsize>(numbers.size() * sizeof(double)));
    std::ofstream(out_path + ".txt") << coco::summary_text(result);
}

}  // namespace

int main() {
    try {
        for (std::string line; std::getline(std::cin, line);) {
            evaluate_case(line);
        }
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
