#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/models/channel_kernels.h"

namespace lockstep::trainer {

/// Per channel, in the type of the batch norm's weights.
struct Moments {
    at::Tensor mean;
    at::Tensor variance;  ///< biased
};

/// True on a CPU for FP32, FP64 and bf16 maps; the batch norm's weights are then FP32 (FP64 for FP64 maps).
bool can_fuse_batch_norm(const at::Tensor& x, const at::Tensor& weight);

/// Mean and variance of x, B x C x H x W with at least one element. Moves the running statistics towards them, in
/// place: running = (1 - momentum) * running + momentum * batch, with the unbiased variance.
Moments batch_moments(const at::Tensor& x, at::Tensor& running_mean, at::Tensor& running_var, double momentum);

/// Batch norm and activation in one pass over x, differentiable by x, weight and bias: LibTorch's own two operators
/// read and write the maps about twice as often and keep one more of them for the backward pass. The result is in
/// channels_last. `of_batch`: the moments are x's own, and their dependence on x counts in the gradient.
at::Tensor fused_batch_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const Moments& moments, double epsilon, bool of_batch, Activation activation);

}  // namespace lockstep::trainer
