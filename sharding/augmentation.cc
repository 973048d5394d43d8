#include "sharding/augmentation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <opencv2/imgproc.hpp>
#include <string_view>

#include "base/error.h"
#include "base/random.h"

namespace lockstep::sharding {
namespace {

constexpr int channels = 3;
constexpr std::uint8_t detection_fill = 114;
constexpr std::uint8_t classification_fill = 0;

struct Point {
    double x, y;
};

/// (x, y) -> (xx * x + xy * y + x0, yx * x + yy * y + y0). Coordinates are continuous: pixel i covers [i, i + 1).
struct Affine {
    double xx = 1, xy = 0, x0 = 0;
    double yx = 0, yy = 1, y0 = 0;

    Point operator()(Point p) const { return {xx * p.x + xy * p.y + x0, yx * p.x + yy * p.y + y0}; }

    /// First `inner`, then this.
    Affine operator*(const Affine& inner) const {
        const Point origin = (*this)({inner.x0, inner.y0});
        return {xx * inner.xx + xy * inner.yx, xx * inner.xy + xy * inner.yy, origin.x,
                yx * inner.xx + yy * inner.yx, yx * inner.xy + yy * inner.yy, origin.y};
    }

    Affine inverse() const {
        const double determinant = xx * yy - xy * yx;
        const Affine linear{yy / determinant, -xy / determinant, 0, -yx / determinant, xx / determinant, 0};
        const Point origin = linear({x0, y0});
        return {linear.xx, linear.xy, -origin.x, linear.yx, linear.yy, -origin.y};
    }

    static Affine translation(double x, double y) { return {1, 0, x, 0, 1, y}; }
};

/// An image at a place on the canvas; what lies beyond the canvas is cut off.
struct Tile {
    FittedSample sample;
    std::int64_t left = 0, top = 0;
};

/// What is seen through one affine map: tiles on a square canvas.
struct Scene {
    std::vector<Tile> tiles;
    std::int64_t canvas = 0;  ///< side
    Affine to_output;
    double gain = 1;  ///< by how much the map enlarges, shear apart
};

float letterbox_scale(const Sample& sample, std::uint32_t image_size) {
    return static_cast<float>(image_size) / static_cast<float>(std::max(sample.width, sample.height));
}

/// Padding before an image; an odd pixel goes behind it.
std::int64_t centred(std::int64_t canvas, std::uint32_t extent) {
    return (canvas - extent) / 2;
}

// ---- Sampling
// -------------------------------------------------------------------------------------------------------------

/// Canvas coordinates in 32.32 fixed point: exact for whole pixels, and the same on every machine.
constexpr int fraction_bits = 32;
constexpr std::int64_t one = std::int64_t{1} << fraction_bits;
constexpr std::int64_t half = one / 2;

std::int64_t fixed_point(double value) {
    return std::llround(value * static_cast<double>(one));
}

std::int64_t ceil_div(std::int64_t numerator, std::int64_t positive_denominator) {
    const std::int64_t quotient = numerator / positive_denominator;
    return quotient + (numerator % positive_denominator > 0 ? 1 : 0);
}

struct Columns {
    std::int64_t begin, end;
};

/// The columns of `columns` in which low <= start + column * step < high.
Columns columns_within(Columns columns, std::int64_t start, std::int64_t step, std::int64_t low, std::int64_t high) {
    if (step < 0) {
        return columns_within(columns, -start, -step, 1 - high, 1 - low);
    }
    if (step == 0) {
        return low <= start && start < high ? columns : Columns{columns.begin, columns.begin};
    }
    columns.begin = std::max(columns.begin, ceil_div(low - start, step));
    columns.end = std::max(columns.begin, std::min(columns.end, ceil_div(high - start, step)));
    return columns;
}

/// Weights have 8 bits, so a sum of four products has 24.
std::uint8_t bilinear(int top_left, int top_right, int bottom_left, int bottom_right, int wx, int wy) {
    const int top = top_left * (256 - wx) + top_right * wx;
    const int bottom = bottom_left * (256 - wx) + bottom_right * wx;
    return static_cast<std::uint8_t>((top * (256 - wy) + bottom * wy + (1 << 15)) >> 16);
}

/// Draws what the tile shows of itself; neighbours beyond the tile's edge are its edge pixels.
void draw(const Tile& tile, const Scene& scene, const Affine& to_canvas, std::uint32_t size, std::uint8_t* output) {
    const std::uint8_t* const pixels = tile.sample.pixels.get();
    const std::int64_t width = tile.sample.width;
    const std::int64_t height = tile.sample.height;
    const std::int64_t stride = width * channels;
    const std::int64_t step_u = fixed_point(to_canvas.xx);
    const std::int64_t step_v = fixed_point(to_canvas.yx);

    // The tile's visible part, in its own pixel indices (pixel i has its centre at i).
    const std::int64_t low_u = std::max<std::int64_t>(0, -tile.left) * one - half;
    const std::int64_t high_u = std::min(width, scene.canvas - tile.left) * one - half;
    const std::int64_t low_v = std::max<std::int64_t>(0, -tile.top) * one - half;
    const std::int64_t high_v = std::min(height, scene.canvas - tile.top) * one - half;

    for (std::uint32_t row = 0; row < size; ++row) {
        // Rounded on the canvas, then shifted by whole pixels: tiles that touch share every output pixel out exactly.
        const Point first = to_canvas({0.5, row + 0.5});
        const std::int64_t start_u = fixed_point(first.x) - tile.left * one - half;
        const std::int64_t start_v = fixed_point(first.y) - tile.top * one - half;
        const Columns across = columns_within({0, size}, start_u, step_u, low_u, high_u);
        const Columns visible = columns_within(across, start_v, step_v, low_v, high_v);
        if (visible.begin == visible.end) {
            continue;
        }
        std::uint8_t* const target = output + static_cast<std::size_t>(row) * size * channels;

        // Flips and turns alone move whole pixels.
        if ((step_u | step_v | start_u | start_v) % one == 0) {
            const std::int64_t step = (step_v / one) * stride + (step_u / one) * channels;
            const std::uint8_t* source =
                pixels + (start_v / one) * stride + (start_u / one) * channels + visible.begin * step;
            if (step == channels) {
                std::memcpy(target + visible.begin * channels, source, (visible.end - visible.begin) * channels);
                continue;
            }
            for (std::int64_t column = visible.begin; column < visible.end; ++column, source += step) {
                std::memcpy(target + column * channels, source, channels);
            }
            continue;
        }

        const auto sample = [&](Columns columns, auto limited_x, auto limited_y) {
            std::int64_t u = start_u + columns.begin * step_u;
            std::int64_t v = start_v + columns.begin * step_v;
            for (std::int64_t column = columns.begin; column < columns.end; ++column, u += step_u, v += step_v) {
                const std::int64_t x = u >> fraction_bits;
                const std::int64_t y = v >> fraction_bits;
                const int wx = (u >> (fraction_bits - 8)) & 255;
                const int wy = (v >> (fraction_bits - 8)) & 255;
                const std::uint8_t* const top = pixels + limited_y(y) * stride;
                const std::uint8_t* const bottom = pixels + limited_y(y + 1) * stride;
                const std::int64_t left = limited_x(x) * channels;
                const std::int64_t right = limited_x(x + 1) * channels;
                for (int c = 0; c < channels; ++c) {
                    target[column * channels + c] =
                        bilinear(top[left + c], top[right + c], bottom[left + c], bottom[right + c], wx, wy);
                }
            }
        };
        const auto free = [](std::int64_t i) { return i; };
        const auto clamped_x = [&](std::int64_t i) { return std::clamp<std::int64_t>(i, 0, width - 1); };
        const auto clamped_y = [&](std::int64_t i) { return std::clamp<std::int64_t>(i, 0, height - 1); };

        // Columns whose four neighbours all exist need no care, and they are nearly all.
        const Columns inner_u = columns_within(visible, start_u, step_u, 0, (width - 1) * one);
        const Columns inner = columns_within(inner_u, start_v, step_v, 0, (height - 1) * one);
        sample({visible.begin, std::min(inner.begin, visible.end)}, clamped_x, clamped_y);
        sample(inner, free, free);
        sample({std::max(inner.end, visible.begin), visible.end}, clamped_x, clamped_y);
    }
}

void draw(const Scene& scene, std::uint32_t size, std::uint8_t fill, std::uint8_t* output) {
    std::memset(output, fill, std::size_t{size} * size * channels);
    const Affine to_canvas = scene.to_output.inverse();
    for (const Tile& tile : scene.tiles) {
        draw(tile, scene, to_canvas, size, output);
    }
}

// ---- Boxes
// ----------------------------------------------------------------------------------------------------------------

/// Appends the boxes of the scene, carried into the output and clipped to it. An augmented box stays only where enough
/// of it is left (reference section 8); an image that is merely placed keeps every box that has an area.
void place_boxes(const Scene& scene, std::uint32_t size, bool augmented, std::vector<TargetBox>& boxes) {
    constexpr double least_side = 2, least_area_left = 0.1, greatest_aspect = 100;
    const auto canvas = static_cast<double>(scene.canvas);
    for (const Tile& tile : scene.tiles) {
        const double scale = letterbox_scale(tile.sample.source, size);
        for (const Box& box : tile.sample.source.boxes) {
            if (box.flags & (box_crowd | box_difficult)) {
                continue;
            }
            const double left = std::clamp(box.x1 * scale + tile.left, 0.0, canvas);
            const double right = std::clamp(box.x2 * scale + tile.left, 0.0, canvas);
            const double top = std::clamp(box.y1 * scale + tile.top, 0.0, canvas);
            const double bottom = std::clamp(box.y2 * scale + tile.top, 0.0, canvas);
            const double area_before = (right - left) * (bottom - top) * scene.gain * scene.gain;

            const std::array corners{scene.to_output({left, top}), scene.to_output({right, top}),
                                     scene.to_output({left, bottom}), scene.to_output({right, bottom})};
            const auto [min_x, max_x] = std::minmax({corners[0].x, corners[1].x, corners[2].x, corners[3].x});
            const auto [min_y, max_y] = std::minmax({corners[0].y, corners[1].y, corners[2].y, corners[3].y});
            const double x1 = std::clamp(min_x, 0.0, double(size)), x2 = std::clamp(max_x, 0.0, double(size));
            const double y1 = std::clamp(min_y, 0.0, double(size)), y2 = std::clamp(max_y, 0.0, double(size));
            const double width = x2 - x1;
            const double height = y2 - y1;
            const bool has_area = width > 0 && height > 0 && area_before > 0;
            const bool enough = width > least_side && height > least_side &&
                                width * height > least_area_left * area_before &&
                                std::max(width, height) < greatest_aspect * std::min(width, height);
            if (has_area && (enough || !augmented)) {
                boxes.push_back({.image = 0,
                                 .class_index = box.class_index,
                                 .x1 = static_cast<float>(x1),
                                 .y1 = static_cast<float>(y1),
                                 .x2 = static_cast<float>(x2),
                                 .y2 = static_cast<float>(y2)});
            }
        }
    }
}

// ---- Drawing lots
// ---------------------------------------------------------------------------------------------------------

/// One image in the middle of a canvas that has the output's size.
Scene centred_scene(FittedSample sample, std::uint32_t size) {
    const std::int64_t left = centred(size, sample.width);
    const std::int64_t top = centred(size, sample.height);
    Scene scene;
    scene.canvas = size;
    scene.tiles.push_back({std::move(sample), left, top});
    return scene;
}

/// Four images that meet at a random point of a canvas of twice the side (reference section 8).
Scene mosaic_scene(std::array<FittedSample, 4> samples, std::uint32_t size, base::Random& random) {
    const auto centre_x = static_cast<std::int64_t>(size / 2 + random.below(size + 1));
    const auto centre_y = static_cast<std::int64_t>(size / 2 + random.below(size + 1));
    Scene scene;
    scene.canvas = 2 * std::int64_t{size};
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const bool left_of_centre = i % 2 == 0;
        const bool above_centre = i < 2;
        const std::int64_t left = left_of_centre ? centre_x - samples[i].width : centre_x;
        const std::int64_t top = above_centre ? centre_y - samples[i].height : centre_y;
        scene.tiles.push_back({std::move(samples[i]), left, top});
    }
    return scene;
}

double radians(double degrees) {
    return degrees * std::numbers::pi / 180;
}

/// Turns, scales and shears around the canvas's middle and puts it near the output's middle.
void draw_affine(const AugmentationOptions& options, std::uint32_t size, base::Random& random, Scene& scene) {
    const double angle = radians(random.uniform(-options.degrees, options.degrees));
    scene.gain = random.uniform(1 - options.scale, 1 + options.scale);
    const double shear_x = std::tan(radians(random.uniform(-options.shear, options.shear)));
    const double shear_y = std::tan(radians(random.uniform(-options.shear, options.shear)));
    const double middle_x = random.uniform(0.5 - options.translate, 0.5 + options.translate) * size;
    const double middle_y = random.uniform(0.5 - options.translate, 0.5 + options.translate) * size;

    const double c = scene.gain * std::cos(angle);
    const double s = scene.gain * std::sin(angle);
    const Affine rotation{c, s, 0, -s, c, 0};
    const Affine shear{1, shear_x, 0, shear_y, 1, 0};
    const double middle = static_cast<double>(scene.canvas) / 2;
    scene.to_output =
        Affine::translation(middle_x, middle_y) * shear * rotation * Affine::translation(-middle, -middle);
}

/// Classification: a window of the padded image, as a shift of the image under the window.
Affine draw_crop(std::uint32_t padding, base::Random& random) {
    const double x = static_cast<double>(random.below(2 * std::uint64_t{padding} + 1)) - padding;
    const double y = static_cast<double>(random.below(2 * std::uint64_t{padding} + 1)) - padding;
    return Affine::translation(x, y);
}

/// Flips and quarter turns (counter-clockwise) of the output square.
Affine draw_orientation(const AugmentationOptions& options, std::uint32_t size, base::Random& random) {
    const double side = size;
    Affine orientation;
    if (random.coin(options.flip_horizontal)) {
        orientation = Affine{-1, 0, side, 0, 1, 0} * orientation;
    }
    if (random.coin(options.flip_vertical)) {
        orientation = Affine{1, 0, 0, 0, -1, side} * orientation;
    }
    const std::uint64_t turns = random.coin(options.quarter_turns) ? 1 + random.below(3) : 0;
    for (std::uint64_t turn = 0; turn < turns; ++turn) {
        orientation = Affine{0, 1, 0, -1, 0, side} * orientation;
    }
    return orientation;
}

/// Beta(32, 32), mixup's weight in the reference: the median of 63 uniform numbers has this distribution.
double draw_mixup_weight(base::Random& random) {
    std::array<double, 63> uniform;
    for (double& value : uniform) {
        value = random.uniform();
    }
    std::nth_element(uniform.begin(), uniform.begin() + 31, uniform.end());
    return uniform[31];
}

void blend(std::span<std::uint8_t> pixels, std::span<const std::uint8_t> others, double weight) {
    const auto w = static_cast<std::uint32_t>(std::lround(weight * 256));
    for (std::size_t i = 0; i < pixels.size(); ++i) {
        pixels[i] = static_cast<std::uint8_t>((pixels[i] * w + others[i] * (256 - w) + 128) >> 8);
    }
}

/// Random erasing (Zhong et al., AAAI 2020): a rectangle of 2 to 33 % of the area and an aspect of 0.3 to 3.3 is
/// blackened.
void draw_erasure(std::span<std::uint8_t> pixels, std::uint32_t size, base::Random& random) {
    constexpr int attempts = 10;
    for (int attempt = 0; attempt < attempts; ++attempt) {
        const double area = random.uniform(0.02, 0.33) * size * size;
        const double aspect = std::exp(random.uniform(std::log(0.3), std::log(3.3)));
        const auto width = static_cast<std::uint64_t>(std::lround(std::sqrt(area * aspect)));
        const auto height = static_cast<std::uint64_t>(std::lround(std::sqrt(area / aspect)));
        if (width == 0 || height == 0 || width > size || height > size) {
            continue;
        }
        const std::uint64_t left = random.below(size - width + 1);
        const std::uint64_t top = random.below(size - height + 1);
        for (std::uint64_t row = top; row < top + height; ++row) {
            std::memset(pixels.data() + (row * size + left) * channels, classification_fill, width * channels);
        }
        return;
    }
}

void require(bool condition, std::string_view option, double value, std::string_view remedy) {
    if (!condition) {
        throw base::UsageError(base::str("augmentation.", option, " = ", value, ": ", remedy));
    }
}

void check(const AugmentationOptions& options, Task task) {
    const auto require_between = [](std::string_view option, double value, double low, double high) {
        require(value >= low && value <= high, option, value, base::str("give a value from ", low, " to ", high));
    };
    require_between("mosaic", options.mosaic, 0, 1);
    require_between("mixup", options.mixup, 0, 1);
    require_between("degrees", options.degrees, 0, 180);
    require_between("translate", options.translate, 0, 1);
    require_between("scale", options.scale, 0, 0.99);
    require_between("shear", options.shear, 0, 40);  // two shears of 45 degrees would fold the plane onto a line
    require_between("hsv_hue", options.hsv_hue, 0, 1);
    require_between("hsv_saturation", options.hsv_saturation, 0, 1);
    require_between("hsv_value", options.hsv_value, 0, 1);
    require_between("contrast", options.contrast, 0, 1);
    require_between("flip_horizontal", options.flip_horizontal, 0, 1);
    require_between("flip_vertical", options.flip_vertical, 0, 1);
    require_between("quarter_turns", options.quarter_turns, 0, 1);
    require_between("erase", options.erase, 0, 1);
    if (options.enabled && task == Task::classification) {
        const std::string_view remedy = "detection only; set it to 0 for a classification data set";
        require(options.mosaic == 0, "mosaic", options.mosaic, remedy);
        require(options.mixup == 0, "mixup", options.mixup, remedy);
    }
    if (options.enabled && task == Task::detection) {
        const std::string_view remedy = "classification only; set it to 0 for a detection data set";
        require(options.crop_padding == 0, "crop_padding", options.crop_padding, remedy);
        require(options.erase == 0, "erase", options.erase, remedy);
    }
}

}  // namespace

ImageSize fitted_size(ImageSize sample, Task task, std::uint32_t image_size) {
    LOCKSTEP_CHECK(sample.width > 0 && sample.height > 0);
    if (task == Task::classification) {
        return {image_size, image_size};
    }
    return fitted_size(sample, image_size);
}

FittedSample fit(const Sample& sample, std::shared_ptr<const std::uint8_t> pixels, Task task, std::uint32_t image_size,
                 std::optional<ImageSize> given) {
    const ImageSize size = given.value_or(ImageSize{sample.width, sample.height});
    const auto [width, height] = fitted_size({sample.width, sample.height}, task, image_size);
    FittedSample fitted{.source = sample, .width = width, .height = height, .pixels = std::move(pixels)};
    if (fitted.width != size.width || fitted.height != size.height) {
        const cv::Mat source(static_cast<int>(size.height), static_cast<int>(size.width), CV_8UC3,
                             const_cast<std::uint8_t*>(fitted.pixels.get()));
        const auto resized =
            std::make_shared<std::vector<std::uint8_t>>(std::size_t{fitted.width} * fitted.height * channels);
        cv::Mat target(static_cast<int>(fitted.height), static_cast<int>(fitted.width), CV_8UC3, resized->data());
        cv::resize(source, target, target.size(), 0, 0, cv::INTER_LINEAR);
        fitted.pixels = std::shared_ptr<const std::uint8_t>(resized, resized->data());
    }
    return fitted;
}

void scale_hsv(std::span<std::uint8_t> pixels, std::uint32_t width, double hue, double saturation, double value) {
    cv::Mat table(1, 256, CV_8UC3);
    for (int i = 0; i < 256; ++i) {
        table.at<cv::Vec3b>(0, i) = {static_cast<std::uint8_t>(std::lround(i * hue) % 180),
                                     cv::saturate_cast<std::uint8_t>(i * saturation),
                                     cv::saturate_cast<std::uint8_t>(i * value)};
    }
    // A few rows at a time: the copy in HSV stays in the cache.
    constexpr std::size_t rows_at_once = 16;
    const std::size_t row_bytes = std::size_t{width} * channels;
    cv::Mat hsv;
    for (std::size_t begin = 0; begin < pixels.size(); begin += rows_at_once * row_bytes) {
        const std::size_t rows = std::min(rows_at_once, (pixels.size() - begin) / row_bytes);
        cv::Mat rgb(static_cast<int>(rows), static_cast<int>(width), CV_8UC3, pixels.data() + begin);
        cv::cvtColor(rgb, hsv, cv::COLOR_RGB2HSV);
        cv::LUT(hsv, table, hsv);
        cv::cvtColor(hsv, rgb, cv::COLOR_HSV2RGB);
    }
}

void scale_contrast(std::span<std::uint8_t> pixels, double gain) {
    if (pixels.empty()) {
        return;
    }
    std::array<std::uint64_t, channels> sums{};
    for (std::size_t i = 0; i < pixels.size(); i += channels) {
        for (std::size_t c = 0; c < channels; ++c) {
            sums[c] += pixels[i + c];
        }
    }
    const std::size_t pixel_count = pixels.size() / channels;
    const auto count = static_cast<double>(pixel_count);
    const auto sum = [&](std::size_t c) { return static_cast<double>(sums[c]); };
    const double mean = std::round((0.299 * sum(0) + 0.587 * sum(1) + 0.114 * sum(2)) / count);
    std::array<std::uint8_t, 256> table;
    for (std::size_t i = 0; i < table.size(); ++i) {
        table[i] = cv::saturate_cast<std::uint8_t>(mean + (static_cast<double>(i) - mean) * gain);
    }
    for (std::uint8_t& value : pixels) {
        value = table[value];
    }
}

Augmenter::Augmenter(const AugmentationOptions& options, Task task, std::uint32_t image_size, std::uint64_t seed,
                     std::uint64_t closing_epoch, std::uint64_t dataset_size)
    : options_(options),
      task_(task),
      image_size_(image_size),
      seed_(seed),
      closing_epoch_(closing_epoch),
      dataset_size_(dataset_size) {
    LOCKSTEP_CHECK(image_size > 0);
    check(options, task);
}

Placement Augmenter::make(std::uint64_t epoch, std::uint64_t id, const Fetch& fetch, std::span<std::uint8_t> pixels,
                          std::vector<TargetBox>& boxes) const {
    LOCKSTEP_CHECK_EQ(pixels.size(), std::size_t{image_size_} * image_size_ * channels);
    const std::uint8_t fill = task_ == Task::detection ? detection_fill : classification_fill;
    FittedSample primary = fetch(id);
    Placement placement;
    placement.letterbox.source_width = primary.source.width;
    placement.letterbox.source_height = primary.source.height;

    if (!options_.enabled) {
        if (task_ == Task::detection) {
            placement.letterbox.scale = letterbox_scale(primary.source, image_size_);
            placement.letterbox.pad_left = static_cast<float>(centred(image_size_, primary.width));
            placement.letterbox.pad_top = static_cast<float>(centred(image_size_, primary.height));
        }
        const Scene scene = centred_scene(std::move(primary), image_size_);
        draw(scene, image_size_, fill, pixels.data());
        place_boxes(scene, image_size_, false, boxes);
        return placement;
    }

    base::Random random(seed_, base::RandomPurpose::augmentation, epoch, id);
    base::Random partners(seed_, base::RandomPurpose::mosaic, epoch, id);
    const bool closing = epoch >= closing_epoch_;
    const auto fetch_partner = [&] {
        ++placement.partners;
        return fetch(partners.below(dataset_size_));
    };
    const Affine orientation = draw_orientation(options_, image_size_, random);
    const auto add_scene = [&](FittedSample first, std::span<std::uint8_t> target) {
        Scene scene;
        if (random.coin(closing ? 0 : options_.mosaic)) {
            FittedSample second = fetch_partner(), third = fetch_partner(), fourth = fetch_partner();
            scene = mosaic_scene({std::move(first), std::move(second), std::move(third), std::move(fourth)},
                                 image_size_, random);
        } else {
            scene = centred_scene(std::move(first), image_size_);
        }
        draw_affine(options_, image_size_, random, scene);
        scene.to_output = orientation * scene.to_output * draw_crop(options_.crop_padding, random);
        draw(scene, image_size_, fill, target.data());
        place_boxes(scene, image_size_, true, boxes);
    };

    add_scene(std::move(primary), pixels);
    if (random.coin(closing ? 0 : options_.mixup)) {
        std::vector<std::uint8_t> others(pixels.size());
        add_scene(fetch_partner(), others);
        blend(pixels, others, draw_mixup_weight(random));
    }
    if (options_.hsv_hue != 0 || options_.hsv_saturation != 0 || options_.hsv_value != 0) {
        const double hue = 1 + random.uniform(-options_.hsv_hue, options_.hsv_hue);
        const double saturation = 1 + random.uniform(-options_.hsv_saturation, options_.hsv_saturation);
        const double value = 1 + random.uniform(-options_.hsv_value, options_.hsv_value);
        scale_hsv(pixels, image_size_, hue, saturation, value);
    }
    if (options_.contrast != 0) {
        scale_contrast(pixels, 1 + random.uniform(-options_.contrast, options_.contrast));
    }
    if (random.coin(options_.erase)) {
        draw_erasure(pixels, image_size_, random);
    }
    return placement;
}

}  // namespace lockstep::sharding
