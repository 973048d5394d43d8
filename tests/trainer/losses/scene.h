#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tests/trainer/losses/slow_detection_loss.h"
#include "trainer/losses/detection_targets.h"

namespace lockstep::trainer {

struct SceneOptions {
    std::int64_t images = 2;
    std::int64_t height = 64, width = 96;  ///< pixels, so that the axes can't be mixed up unseen
    std::int64_t classes = 3;
    std::int64_t max_boxes = 12;
    std::int64_t boxes = 8;  ///< real ones in each image, at random places among the padding
};

/// One head's random output with ground truth, in FP64: boxes smaller than a stride, larger than the image,
/// overlapping; predicted boxes that hit and that miss; padding filled with boxes and classes that must not matter.
struct Scene {
    std::vector<at::Tensor> levels;
    DetectionTargets targets;
};
Scene random_scene(const SceneOptions& options, std::uint64_t seed);

// The same as the plain version takes it.
std::vector<slow::Anchor> slow_anchors(const Scene& scene);
std::vector<slow::Prediction> slow_predictions(const Scene& scene, std::int64_t image);
std::vector<slow::Target> slow_targets(const Scene& scene, std::int64_t image);

/// Images [begin, end).
Scene images_of(const Scene& scene, std::int64_t begin, std::int64_t end);
/// Levels that are leaves of a graph, of another type where wanted.
std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& levels, at::ScalarType type = at::kDouble);

}  // namespace lockstep::trainer
