#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::trainer {

/// What a detector head gives before decoding: per level B x (4*reg_max + classes) x H x W, levels in order of stride
/// 8, 16, 32.
struct DetectorOutput {
    std::vector<at::Tensor> one_to_many;  ///< empty in evaluation of the deployed network
    std::vector<at::Tensor> one_to_one;
};

/// Ground truth padded to a fixed number of boxes, so that shapes depend on the configuration only.
struct DetectionTargets {
    at::Tensor boxes;    ///< B x M x 4, xyxy pixels of the network's input, floating
    at::Tensor classes;  ///< B x M, int64
    at::Tensor real;     ///< B x M, bool: false marks padding; its boxes may be anything finite, its classes anything
};

}  // namespace lockstep::trainer
