#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::trainer {

/// Ground truth padded to a fixed number of boxes, so that shapes depend on the configuration only.
struct DetectionTargets {
    at::Tensor boxes;    ///< B x M x 4, xyxy pixels of the network's input, floating
    at::Tensor classes;  ///< B x M, int64
    at::Tensor real;     ///< B x M, bool: false marks padding, whose boxes and classes may be anything
};

}  // namespace lockstep::trainer
