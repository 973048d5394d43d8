#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep::tests {

/// By the names of the public checkpoints.
using State = std::map<std::string, at::Tensor>;

/// B x (64 + classes) x H x W, for strides 8, 16 and 32.
struct PlainMaps {
    std::vector<at::Tensor> one_to_many, one_to_one;
};

/// YOLOv10 once more, for trainer/models to be compared with: the published table of layers, read row by row and
/// computed in FP64 by LibTorch's own functions on a dictionary of tensors. Shares nothing with trainer/models. Batch
/// norms go by their running statistics. What `state` lacks is drawn into it: weights, and statistics that are not
/// those of a new batch norm.
PlainMaps plain_yolov10(char variant, std::int64_t classes, const at::Tensor& images, State& state);

}  // namespace lockstep::tests
