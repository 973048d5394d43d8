#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/models/layers.h"

namespace lockstep::trainer {

/// True for maps of at most 2 x 2 cells after the convolution, ungrouped, in FP32 or FP64 on a CPU: in bf16 the sum
/// over the taps would be rounded after each.
bool can_use_small_map_convolution(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options);

/// Square convolution padded by half its kernel, without bias: x is B x C x H x W, weight O x C x kernel x kernel, the
/// result in channels_last. As at::conv2d, as one matrix product for each tap of the kernel that meets the map. oneDNN
/// falls back to rank-1 updates of the whole weight gradient there, image by image: at 512 channels on 2 x 2 cells they
/// took ten times as long as these products.
at::Tensor small_map_convolution(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options);

}  // namespace lockstep::trainer
