#include "trainer/letterbox_boxes.h"

#include <algorithm>

namespace lockstep::trainer {

PictureBox to_source(const Detection& detection, const sharding::Letterbox& letterbox) {
    const auto x = [&](float value) {
        return std::clamp((double{value} - letterbox.pad_left) / letterbox.scale, 0.0,
                          static_cast<double>(letterbox.source_width));
    };
    const auto y = [&](float value) {
        return std::clamp((double{value} - letterbox.pad_top) / letterbox.scale, 0.0,
                          static_cast<double>(letterbox.source_height));
    };
    return {x(detection.box[0]), y(detection.box[1]),     x(detection.box[2]),
            y(detection.box[3]), double{detection.score}, static_cast<std::int32_t>(detection.class_index)};
}

}  // namespace lockstep::trainer
