#include "sharding/sheet.h"

#include <algorithm>
#include <array>
#include <opencv2/core.hpp>
#include <opencv2/imgproc.hpp>
#include <utility>

#include "base/error.h"

namespace lockstep::sharding {
namespace {

constexpr std::uint32_t side = 240, columns = 6;

cv::Scalar colour_of(std::int32_t class_index) {
    constexpr std::array<std::array<int, 3>, 6> colours{
        {{255, 80, 80}, {80, 220, 80}, {90, 150, 255}, {255, 200, 60}, {220, 110, 255}, {70, 220, 220}}};
    const auto& [red, green, blue] = colours[static_cast<std::size_t>(class_index) % colours.size()];
    return cv::Scalar(red, green, blue);
}

}  // namespace

Sheet::Sheet(std::uint64_t images, std::vector<std::string> classes)
    : sheet_(Image::blank(static_cast<std::uint32_t>(std::min<std::uint64_t>(images, columns)) * side,
                          static_cast<std::uint32_t>((images + columns - 1) / columns) * side)),
      classes_(std::move(classes)) {}

void Sheet::add(const Image& image, const std::vector<Mark>& marks, std::int32_t label) {
    const double scale = double(side) / std::max(image.width, image.height);
    Image small = resize(image, fitted_size({image.width, image.height}, side));
    const cv::Point origin(static_cast<int>(added_ % columns * side), static_cast<int>(added_ / columns * side));
    LOCKSTEP_CHECK(static_cast<std::uint32_t>(origin.y) < sheet_.height, "more images than the sheet was made for");
    ++added_;
    const cv::Mat canvas(static_cast<int>(sheet_.height), static_cast<int>(sheet_.width), CV_8UC3,
                         sheet_.pixels.data());
    const cv::Mat cell =
        canvas(cv::Rect(origin, cv::Size(static_cast<int>(small.width), static_cast<int>(small.height))));
    cv::Mat(cell.rows, cell.cols, CV_8UC3, small.pixels.data()).copyTo(cell);
    const auto write = [&](std::int32_t class_index, cv::Point at) {
        cv::putText(cell, classes_.at(static_cast<std::size_t>(class_index)), at, cv::FONT_HERSHEY_SIMPLEX, 0.4,
                    colour_of(class_index), 1, cv::LINE_AA);
    };
    constexpr int text_height = 11;
    for (const Mark& mark : marks) {
        const cv::Point first(cvRound(mark.x1 * scale), cvRound(mark.y1 * scale));
        const cv::Point last(cvRound(mark.x2 * scale) - 1, cvRound(mark.y2 * scale) - 1);
        cv::rectangle(cell, first, last, colour_of(mark.class_index), 1);
        write(mark.class_index, {first.x, std::max(first.y - 2, text_height)});
    }
    if (label >= 0) {
        write(label, {2, text_height});
    }
}

std::vector<std::uint8_t> Sheet::png() const {
    return encode_png(sheet_);
}

}  // namespace lockstep::sharding
