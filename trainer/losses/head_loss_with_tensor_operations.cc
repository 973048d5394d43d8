#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>

#include "trainer/losses/complete_iou.h"
#include "trainer/losses/head_loss.h"
#include "trainer/models/decode.h"

namespace lockstep::trainer {

HeadSums head_loss_with_tensor_operations(const HeadPredictions& predictions, const AnchorPoints& anchors,
                                          const DetectionTargets& targets, const Assignment& assignment,
                                          const DetectionGains& gains) {
    const auto& weight = assignment.score;
    // An anchor without a box points at the first one, which may be padding; its weight of 0 hides finite values only.
    const auto of_corners = assignment.box.unsqueeze(-1).expand({-1, -1, 4});
    const auto boxes =
        targets.boxes.masked_fill(~targets.real.unsqueeze(-1), 0).gather(1, of_corners) / anchors.strides;
    const auto zero_or_nan = nan_unless_finite(predictions.distances).sum();
    const auto box =
        (weight * (1 - complete_iou(decode_boxes(predictions.distances, anchors), boxes))).sum() + zero_or_nan;

    // The cross-entropy of logit x against target t is softplus(x) - t*x; t is 0 but for one class of the anchors with
    // a box.
    const auto classes = targets.classes.masked_fill(~targets.real, 0).gather(1, assignment.box);
    const auto logit_of_class = predictions.classes.gather(-1, classes.unsqueeze(-1)).squeeze(-1);
    const auto classification = at::softplus(predictions.classes, 1, softplus_threshold).sum() -
                                (weight * logit_of_class).sum() + nan_unless_finite(predictions.classes).sum();

    const auto distances =
        at::cat({anchors.points - boxes.narrow(-1, 0, 2), boxes.narrow(-1, 2, 2) - anchors.points}, -1)
            .clamp(0, greatest_distance);
    const auto bin = distances.floor();
    const auto share = at::stack({bin + 1 - distances, distances - bin}, -1);
    const auto two_bins = at::stack({bin, bin + 1}, -1).to(at::kLong);
    const auto log_probability =
        at::log_softmax(predictions.distances.unflatten(-1, {4, distance_bins}), -1).gather(-1, two_bins);
    const auto distribution = (weight * -(share * log_probability).sum(-1).mean(-1)).sum() + zero_or_nan;

    const auto parts =
        at::stack({gains.box * box, gains.classification * classification, gains.distribution * distribution});
    return {.sum = parts.sum(), .denominator = weight.sum(), .parts = parts.detach()};
}

}  // namespace lockstep::trainer
