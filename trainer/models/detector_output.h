#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep::trainer {

/// Bins of the distribution over one side's distance: 0, 1, ... 15 strides.
constexpr std::int64_t distance_bins = 16;
/// Logits of the four distances (left, top, right, bottom; the bins of a side together) before those of the classes.
constexpr std::int64_t distance_channels = 4 * distance_bins;

/// What a detector gives before decoding: per level B x (distance_channels + classes) x H x W, levels in order of
/// stride.
struct DetectorOutput {
    std::vector<at::Tensor> one_to_many;  ///< empty in evaluation of the deployed network
    std::vector<at::Tensor> one_to_one;
};

}  // namespace lockstep::trainer
