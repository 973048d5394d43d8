#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/gradient_reducer.h"
#include "trainer/losses/assigner.h"
#include "trainer/losses/detection_targets.h"
#include "trainer/models/detector_output.h"

namespace lockstep::trainer {

/// Factors of the loss parts; the published values.
struct DetectionGains {
    double box = 7.5;
    double classification = 0.5;
    double distribution = 1.5;
};

struct DetectionLossOptions {
    std::int64_t classes = 80;
    std::vector<std::int64_t> strides = {8, 16, 32};  ///< pixels, one for each level of the output
    DetectionGains gains = {};
    std::int64_t one_to_many_topk = 10;  ///< anchors that a box may claim
    std::int64_t one_to_one_topk = 1;
    double one_to_one_alpha = 0.5;  ///< of TaskAlignedAssigner, for the one-to-one head
};

/// The loss of YOLOv10 (Wang et al., NeurIPS 2024) as undivided sums, so that images may be spread over ranks and
/// micro-steps in any way: divided by max(sum of target scores, 1) after the reduction, a head's sum is the published
/// loss of the whole batch.
///
/// For each head, over the anchors that the assigner gave to a box, with w the anchor's target score:
///   box             sum of w * (1 - CIoU), boxes in stride units;
///   classification  sum over all anchors and classes of the binary cross-entropy against the target score;
///   distribution    sum of w * mean over the four sides of the cross-entropy against the two bins next to the true
///   distance
///                   (DFL: Li et al., "Generalized Focal Loss", NeurIPS 2020).
class DetectionLoss {
  public:
    enum Head : std::int32_t { one_to_many = 0, one_to_one = 1 };
    static constexpr std::array part_names = {"box", "classification", "distribution"};

    explicit DetectionLoss(DetectionLossOptions options);

    /// A logit that isn't finite makes its head's sum NaN. Any number of images and boxes, none included; any floating
    /// type (16-bit ones are computed in FP32) and memory format. For each head: the sum with graph, the denominator
    /// (sum of target scores), and the three parts with their gains.
    comm::LossSums operator()(const DetectorOutput& output, const DetectionTargets& targets) const;

    /// What the anchors of one head, in the order of make_anchor_points, learn from these targets.
    Assignment assign(Head head, const DetectorOutput& output, const DetectionTargets& targets) const;

  private:
    TaskAlignedAssigner assigner_of(Head head) const;

    DetectionLossOptions options_;
};

}  // namespace lockstep::trainer
