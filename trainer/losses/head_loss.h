#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "trainer/losses/detection_loss.h"
#include "trainer/models/detector_output.h"

namespace lockstep::trainer {

/// True distances are clamped to this, so that each lies between two bins.
constexpr double greatest_distance = distance_bins - 1 - 0.01;
/// Above this logit softplus(x) is x, to the last bit of a double.
constexpr double softplus_threshold = 40;

/// One head's output with its levels in a row, FP32 or FP64.
struct HeadPredictions {
    at::Tensor distances;  ///< B x A x distance_channels, logits
    at::Tensor classes;    ///< B x A x classes, logits
};

/// One head's sums, as comm::LossSums wants them.
struct HeadSums {
    at::Tensor sum;          ///< scalar with graph
    at::Tensor denominator;  ///< scalar, detached
    at::Tensor parts;        ///< 3, detached
};

/// 0 for each finite value, NaN for each other. A head's sum adds it for all logits, since most have no part in it (an
/// anchor without a box, a score of 0), and a diverged network must not look like one that finds nothing.
inline at::Tensor nan_unless_finite(const at::Tensor& logits) {
    return logits.detach() - logits.detach();
}

// Decoding and loss come twice, with anchors and targets of the predictions' type: as dense tensor operations
// (decode_boxes is one), whose shapes depend on B, M, A and the number of classes only and which read nothing on the
// host; and as loops for the CPU, which look only at anchors that can matter.

/// As decode_boxes, but only of anchors whose centre lies within a real target's borders; the others are zero. Not
/// differentiable.
at::Tensor decode_boxes_in_targets(const at::Tensor& distances, const AnchorPoints& anchors,
                                   const DetectionTargets& targets);

/// The loss that DetectionLoss describes, of one head under a given assignment.
HeadSums head_loss_with_tensor_operations(const HeadPredictions& predictions, const AnchorPoints& anchors,
                                          const DetectionTargets& targets, const Assignment& assignment,
                                          const DetectionGains& gains);
/// Finds the gradient together with the value; differentiable once.
HeadSums head_loss_with_loops(const HeadPredictions& predictions, const AnchorPoints& anchors,
                              const DetectionTargets& targets, const Assignment& assignment,
                              const DetectionGains& gains);

}  // namespace lockstep::trainer
