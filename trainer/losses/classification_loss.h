#pragma once

#include <ATen/core/Tensor.h>

#include "comm/gradient_reducer.h"

namespace lockstep::trainer {

/// Softmax cross-entropy as an undivided sum over the batch: one head, the number of samples as its denominator, the
/// sum as its only part. Works with no samples.
class ClassificationLoss {
  public:
    /// With smoothing e a target is 1 - e + e/classes for the true class and e/classes for the others (Szegedy et al.,
    /// CVPR 2016).
    explicit ClassificationLoss(double label_smoothing);

    /// `logits` B x classes, floating (16-bit types are computed in FP32); `labels` B, int64.
    comm::LossSums operator()(const at::Tensor& logits, const at::Tensor& labels) const;

  private:
    double label_smoothing_;
};

}  // namespace lockstep::trainer
