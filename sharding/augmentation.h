#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sharding/dataset.h"

namespace cv {
class Mat;
}

namespace lockstep::sharding {

/// How an image was placed in a square: x_square = x_image * scale + pad_left. Reference section 9: bilinear, colour 114,
/// padding split evenly with the odd pixel at the bottom/right.
struct Letterbox {
    float scale = 1;
    float pad_left = 0, pad_top = 0;
    std::uint32_t source_width = 0, source_height = 0;
};

/// Training augmentation of detection (reference section 8) and classification. All off by default.
struct AugmentationOptions {
    bool enabled = false;
    double mosaic = 0;             ///< probability of a 2x2 mosaic with three partners drawn from the whole set
    double mixup = 0;              ///< probability
    double degrees = 0;            ///< rotation +-
    double translate = 0;          ///< fraction of the side, +-
    double scale = 0;              ///< gain: uniform in 1 +- scale
    double shear = 0;              ///< degrees, +-
    double hsv_hue = 0, hsv_saturation = 0, hsv_value = 0;
    double flip_horizontal = 0, flip_vertical = 0;  ///< probabilities
    double quarter_turns = 0;      ///< probability of a turn by 90, 180 or 270 degrees (aerial photos)
    std::uint32_t crop_padding = 0;  ///< classification: pad by this many pixels and crop at random
    double erase = 0;              ///< classification: probability of erasing a random rectangle
};

/// An image with its boxes, in pixels of the image.
struct AugmentedSample;

}  // namespace lockstep::sharding
