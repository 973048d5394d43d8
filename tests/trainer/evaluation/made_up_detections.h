#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/evaluation/coco_evaluation.h"

/// Detections like those of a detector that is right about half the time, with many equal scores, for tests that
/// compare ways to evaluate them.
namespace lockstep::tests {

namespace coco = trainer::coco;

struct MadeUpDetections {
    std::vector<std::int64_t> image_ids = {};   ///< with gaps, not in order
    std::vector<std::int64_t> categories = {};  ///< with gaps
    std::vector<coco::GroundTruthBox> boxes = {};
    std::vector<coco::Detection> detections = {};

    coco::EvaluationShard match(unsigned threads = 1) const;
};

/// Boxes of all three sizes, some of them crowds or to be ignored; every tenth image is empty.
MadeUpDetections make_up_detections(std::size_t images, std::size_t categories);

/// For each image of `all`, in the order of image_ids, the number of the part that has it.
using Cut = std::vector<std::size_t>;

/// What `part` has of `all`.
MadeUpDetections part_of(const MadeUpDetections& all, const Cut& cut, std::size_t part);

struct NamedCut {
    const char* name;
    Cut cut;
};
/// Neighbours together, every n-th image, at random, and everything in the first or in the last part.
std::vector<NamedCut> cuts_into(std::size_t parts, const MadeUpDetections& all);

/// Every number of a result: precision, recall, AP by category and the twelve scores.
std::vector<double> numbers_of(const coco::Result& result);

/// The bits of the numbers; throws std::logic_error where one is NaN, which no score may be.
std::vector<std::uint64_t> bits_of(std::span<const double> numbers);

}  // namespace lockstep::tests
