#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trainer/models/model_names.h"

namespace lockstep::trainer {

class Yolov10;
class ResNet;

/// What a recipe, a checkpoint or the metadata of weights says about a model.
struct ModelSpec {
    std::string name;               ///< one of detector_names() or classifier_names()
    std::int64_t classes = 80;      ///< at least 1
    std::int64_t image_size = 640;  ///< side of the square input, pixels; a multiple of 32 for detectors
    bool small_images = false;      ///< classifiers only: stem for images of some 32 pixels
};

/// Initialised from the seed, in training mode. Throws base::UsageError for an unknown name (suggesting the nearest),
/// no classes or an impossible image size.
std::shared_ptr<Yolov10> make_detector(const ModelSpec& spec, std::uint64_t seed);
std::shared_ptr<ResNet> make_classifier(const ModelSpec& spec, std::uint64_t seed);

}  // namespace lockstep::trainer
