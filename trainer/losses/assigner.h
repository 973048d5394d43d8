#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trainer/losses/detection_targets.h"
#include "trainer/models/anchor_points.h"

namespace lockstep::trainer {

/// What each anchor learns.
struct Assignment {
    at::Tensor box;    ///< B x A, int64: index of the target box; of no meaning where the score is 0
    at::Tensor score;  ///< B x A: soft target for that box's class, in [0, 1]; 0 for background
    at::Tensor
        metric;  ///< B x A: t of the anchor and its box, by which a flip can be told from a fault; 0 for background
};

/// Task-aligned assignment (Feng et al., "TOOD", ICCV 2021) with beta = 6 and, as published for both heads of YOLOv10,
/// alpha = 0.5.
///
/// An anchor is a candidate for a box if its centre lies strictly inside. With s the predicted probability of the box's
/// class and u = max(CIoU, 0), both 0 outside candidates, a box claims the `topk` anchors of greatest metric t =
/// s^alpha * u^6, as far as they are candidates. An anchor claimed more than once goes to the box of greatest u among
/// all boxes. The score is t / (greatest t of the box + 1e-9) * greatest u of the box, over the anchors that the box
/// got in the end. Equal metrics go to the lower anchor index, equal overlaps to the lower box index.
///
/// Two implementations of one definition: loops for the CPU, where work on real boxes and candidates only makes it many
/// times faster; and tensor operations whose shapes depend on B, M, A and topk only and which never read a value on the
/// host, for a captured step. No gradient flows through either.
class TaskAlignedAssigner {
  public:
    explicit TaskAlignedAssigner(std::int64_t topk, double alpha = 0.5);

    /// `probabilities` B x A x classes, `boxes` B x A x 4 (xyxy, pixels), both of one floating type, on one device with
    /// the rest. The class of a real target must be below `classes`.
    Assignment operator()(const at::Tensor& probabilities, const at::Tensor& boxes, const AnchorPoints& anchors,
                          const DetectionTargets& targets) const;

    Assignment with_loops(const at::Tensor& probabilities, const at::Tensor& boxes, const AnchorPoints& anchors,
                          const DetectionTargets& targets) const;
    Assignment with_tensor_operations(const at::Tensor& probabilities, const at::Tensor& boxes,
                                      const AnchorPoints& anchors, const DetectionTargets& targets) const;

  private:
    std::int64_t topk_;
    double alpha_;
};

}  // namespace lockstep::trainer
