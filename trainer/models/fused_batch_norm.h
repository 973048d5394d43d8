#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>

#include "trainer/models/channel_kernels.h"

namespace lockstep::trainer {

/// Per channel, in the type of the batch norm's weights.
struct Moments {
    at::Tensor mean;
    at::Tensor variance;  ///< biased
    double cells = 0;     ///< that they were taken over, on all ranks that share them; 0: running ones, constants
};

/// Which of a batch norm's two passes asks for sums.
enum class BatchNormPass { forward, backward };

/// Adds the values over all ranks that normalise by common statistics, in place. Collective: each of them calls for the
/// same layers and passes in the same order, also without images.
using SumOverRanks = std::function<void(std::span<double> values, BatchNormPass pass)>;

/// True on a CPU for FP32, FP64 and bf16 maps; the batch norm's weights are then FP32 (FP64 for FP64 maps).
bool can_fuse_batch_norm(const at::Tensor& x, const at::Tensor& weight);

/// Mean and variance of x, B x C x H x W, over all ranks where `sum` is given. Moves the running statistics towards
/// them, in place: running = (1 - momentum) * running + momentum * batch, with the unbiased variance. Without a cell
/// anywhere, the running ones as they are. With `sum` the running mean must be the same on all ranks.
Moments batch_moments(const at::Tensor& x, at::Tensor& running_mean, at::Tensor& running_var, double momentum,
                      const SumOverRanks& sum = {});

/// Batch norm and activation in one pass over x, differentiable by x, weight and bias: LibTorch's own two operators
/// read and write the maps about twice as often and keep one more of them for the backward pass. The result is in
/// channels_last. Moments of a batch depend on x, and that counts in the gradient: over all ranks with the `sum` that
/// they were made with, for a loss that is the sum of all ranks' losses. Gradients of weight and bias are this rank's
/// part of that loss's.
at::Tensor fused_batch_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const Moments& moments, double epsilon, Activation activation,
                            const SumOverRanks& sum = {});

}  // namespace lockstep::trainer
