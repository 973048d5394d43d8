#include "trainer/drawing.h"

#include <array>
#include <cmath>
#include <opencv2/imgproc.hpp>

#include "base/text.h"

namespace lockstep::trainer {

void draw_boxes(sharding::Image& image, std::span<const PictureBox> boxes, std::span<const std::string> classes) {
    static const std::array<cv::Scalar, 6> colours = {cv::Scalar(66, 135, 245), cv::Scalar(245, 130, 49),
                                                      cv::Scalar(60, 180, 75),  cv::Scalar(200, 80, 210),
                                                      cv::Scalar(70, 200, 210), cv::Scalar(230, 60, 80)};
    cv::Mat canvas(static_cast<int>(image.height), static_cast<int>(image.width), CV_8UC3, image.pixels.data());
    const double text_scale = 0.4;
    for (const auto& box : boxes) {
        const auto index = static_cast<std::size_t>(box.class_index);
        const cv::Scalar& colour = colours[index % colours.size()];
        const cv::Point corner(static_cast<int>(std::lround(box.x1)), static_cast<int>(std::lround(box.y1)));
        cv::rectangle(canvas, corner, {static_cast<int>(std::lround(box.x2)), static_cast<int>(std::lround(box.y2))},
                      colour, 2);
        const std::string label = base::str(index < classes.size() ? classes[index] : base::str("class ", index), " ",
                                            base::fixed(box.score, 2));
        int below = 0;
        const cv::Size size = cv::getTextSize(label, cv::FONT_HERSHEY_SIMPLEX, text_scale, 1, &below);
        const int baseline = std::max(size.height + 2, corner.y - 3);
        cv::rectangle(canvas, {corner.x, baseline - size.height - 2}, {corner.x + size.width + 2, baseline + below},
                      colour, cv::FILLED);
        cv::putText(canvas, label, {corner.x + 1, baseline}, cv::FONT_HERSHEY_SIMPLEX, text_scale, {255, 255, 255}, 1,
                    cv::LINE_AA);
    }
}

}  // namespace lockstep::trainer
