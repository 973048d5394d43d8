#pragma once

#include <ATen/core/Tensor.h>

#include "sharding/loader.h"
#include "trainer/losses/detection_targets.h"

namespace lockstep::trainer {

/// B x 3 x H x W in [0, 1], channels_last.
at::Tensor image_tensor(const sharding::MicroBatch& micro, at::ScalarType type);

/// B x max_boxes; throws base::Error naming the sample where an image has more boxes.
DetectionTargets detection_targets(const sharding::MicroBatch& micro, std::int64_t max_boxes, at::ScalarType type);

/// B, int64.
at::Tensor label_tensor(const sharding::MicroBatch& micro);

}  // namespace lockstep::trainer
