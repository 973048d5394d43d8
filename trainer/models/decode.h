#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "trainer/models/anchor_points.h"

namespace lockstep::trainer {

/// The boxes (xyxy, stride units) of ... x A x distance_channels logits: a side's distance from the anchor point is the
/// expectation of the softmax over its bins (DFL: Li et al., "Generalized Focal Loss", NeurIPS 2020). Differentiable.
at::Tensor decode_boxes(const at::Tensor& distances, const AnchorPoints& anchors);

/// A head's maps as boxes and scores; A anchors in the order of make_anchor_points.
struct DecodedMaps {
    at::Tensor boxes;   ///< B x A x 4, xyxy pixels of the network's input
    at::Tensor scores;  ///< B x A x classes, sigmoid of the logits
};

/// `maps`: one head's levels as DetectorOutput has them. 16-bit maps are decoded in FP32. Differentiable.
DecodedMaps decode_maps(std::span<const at::Tensor> maps, std::span<const std::int64_t> strides);

struct Detection {
    std::array<float, 4> box;  ///< xyxy, pixels of the network's input, not clipped
    float score;
    std::int64_t class_index;
};

/// The end-to-end selection of YOLOv10, without suppression of overlaps: per image the `max_detections` anchors of the
/// highest class score, then among their scores the `max_detections` highest, so an anchor may appear with several
/// classes; those below `min_score` are left out. Best first; equal scores in the order of
/// (anchor, class). Throws base::Error where a score or a box is not finite.
std::vector<std::vector<Detection>> select_detections(const DecodedMaps& decoded, double min_score,
                                                      std::int64_t max_detections = 300);

}  // namespace lockstep::trainer
