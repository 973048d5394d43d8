#pragma once

#include <span>
#include <string>

#include "sharding/image.h"
#include "trainer/picture.h"

namespace lockstep::trainer {

/// Draws each box with its class and score, a colour for each class.
void draw_boxes(sharding::Image& image, std::span<const PictureBox> boxes, std::span<const std::string> classes);

}  // namespace lockstep::trainer
