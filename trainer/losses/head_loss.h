#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trainer/losses/detection_loss.h"

namespace lockstep::trainer {

/// Bins of the distribution over one side's distance: 0, 1, ... 15 strides.
constexpr std::int64_t distance_bins = 16;
/// Logits of the four distances (left, top, right, bottom; the bins of a side together) before those of the classes.
constexpr std::int64_t distance_channels = 4 * distance_bins;
/// True distances are clamped to this, so that each lies between two bins.
constexpr double greatest_distance = distance_bins - 1 - 0.01;
/// Above this logit softplus(x) is x, to the last bit of a double.
constexpr double softplus_threshold = 40;

/// One head's sums, as comm::LossSums wants them.
struct HeadSums {
    at::Tensor sum;          ///< scalar with graph
    at::Tensor denominator;  ///< scalar, detached
    at::Tensor parts;        ///< 3, detached
};

/// Boxes (xyxy, stride units) that the predictions (B x A x (distance_channels + classes)) expect, B x A x 4;
/// differentiable.
at::Tensor decode_boxes(const at::Tensor& predictions, const AnchorPoints& anchors);

/// The loss that DetectionLoss describes, of one head under a given assignment, twice: predictions as above in FP32 or
/// FP64, with targets and anchors of the same type.

/// Dense tensor operations and autograd's own gradient. Shapes depend on B, M, A and classes only; nothing is read on
/// the host.
HeadSums head_loss_with_tensor_operations(const at::Tensor& predictions, const AnchorPoints& anchors,
                                          const DetectionTargets& targets, const Assignment& assignment,
                                          const DetectionGains& gains);

/// Loops over the anchors that have a box, which find the gradient together with the value. CPU only; differentiable
/// once.
HeadSums head_loss_with_loops(const at::Tensor& predictions, const AnchorPoints& anchors,
                              const DetectionTargets& targets, const Assignment& assignment,
                              const DetectionGains& gains);

}  // namespace lockstep::trainer
