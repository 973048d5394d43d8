#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::trainer {

/// A box on a picture, in the picture's pixels.
struct PictureBox {
    double x1, y1, x2, y2;
    double score;  ///< of a prediction; 1 for a true box
    std::int32_t class_index;
};

/// A validation image with what is there and what was found, for the report.
struct Picture {
    std::string caption;
    std::uint32_t width = 0, height = 0;
    std::vector<std::uint8_t> pixels;  ///< RGB, height x width x 3
    std::vector<PictureBox> truth;
    std::vector<PictureBox> predicted;  ///< by falling score
};

}  // namespace lockstep::trainer
