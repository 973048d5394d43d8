#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::trainer {

/// True for 7x7 windows on a CPU, FP32, FP64 and bf16 maps.
bool can_use_depthwise7x7(const at::Tensor& x, const at::Tensor& weight);

/// Depthwise convolution of stride 1 and padding 3, weight C x 1 x 7 x 7, without bias. As at::conv2d, but oneDNN has
/// no depthwise kernel for the weight gradient of this size: its general one took 40 times as long as ours.
at::Tensor depthwise7x7(const at::Tensor& x, const at::Tensor& weight);

}  // namespace lockstep::trainer
