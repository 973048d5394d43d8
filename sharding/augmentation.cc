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

/// An image at a place in a scene; what lies beyond the scene is cut off.
struct Tile {
    FittedSample sample;
    std::int64_t left = 0, top = 0;
};

/// What is seen through one affine map: tiles on a plane of this size.
struct Scene {
    std::vector<Tile> tiles;
    std::int64_t width = 0, height = 0;
    Affine to_output;
    double gain = 1;  ///< by how much the map enlarges, shear apart
};

/// Padding before an image; an odd pixel goes behind it.
std::int64_t centred(std::int64_t side, std::uint32_t extent) {
    return (side - extent) / 2;
}

// ---- Sampling
// -------------------------------------------------------------------------------------------------------------

/// Scene coordinates in 32.32 fixed point: exact for whole pixels, and the same on every machine.
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
void draw(const Tile& tile, const Scene& scene, const Affine& to_scene, const Canvas& canvas, std::uint8_t* output) {
    const std::uint8_t* const pixels = tile.sample.pixels.get();
    const std::int64_t width = tile.sample.width;
    const std::int64_t height = tile.sample.height;
    const std::int64_t stride = width * channels;
    const std::int64_t step_u = fixed_point(to_scene.xx);
    const std::int64_t step_v = fixed_point(to_scene.yx);

    // The tile's visible part, in its own pixel indices (pixel i has its centre at i).
    const std::int64_t low_u = std::max<std::int64_t>(0, -tile.left) * one - half;
    const std::int64_t high_u = std::min(width, scene.width - tile.left) * one - half;
    const std::int64_t low_v = std::max<std::int64_t>(0, -tile.top) * one - half;
    const std::int64_t high_v = std::min(height, scene.height - tile.top) * one - half;

    for (std::uint32_t row = 0; row < canvas.height; ++row) {
        // Rounded on the scene, then shifted by whole pixels: tiles that touch share every output pixel out exactly.
        const Point first = to_scene({0.5, row + 0.5});
        const std::int64_t start_u = fixed_point(first.x) - tile.left * one - half;
        const std::int64_t start_v = fixed_point(first.y) - tile.top * one - half;
        const Columns across = columns_within({0, canvas.width}, start_u, step_u, low_u, high_u);
        const Columns visible = columns_within(across, start_v, step_v, low_v, high_v);
        if (visible.begin == visible.end) {
            continue;
        }
        std::uint8_t* const target = output + static_cast<std::size_t>(row) * canvas.width * channels;

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

/// Whether the first tile alone is seen: it covers the scene, and the output's corners lie on it.
bool leaves_nothing_to_fill(const Scene& scene, const Affine& to_scene, const Canvas& canvas) {
    const Tile& tile = scene.tiles.front();
    const auto scene_width = static_cast<double>(scene.width);
    const auto scene_height = static_cast<double>(scene.height);
    const double width = canvas.width;
    const double height = canvas.height;
    const std::array<Point, 4> corners{{{0, 0}, {width, 0}, {0, height}, {width, height}}};
    return tile.left <= 0 && tile.top <= 0 && tile.left + tile.sample.width >= scene.width &&
           tile.top + tile.sample.height >= scene.height && std::ranges::all_of(corners, [&](Point corner) {
               const auto [x, y] = to_scene(corner);
               return x >= 0 && x <= scene_width && y >= 0 && y <= scene_height;
           });
}

void draw(const Scene& scene, const Canvas& canvas, std::uint8_t fill, std::uint8_t* output) {
    const Affine to_scene = scene.to_output.inverse();
    if (!leaves_nothing_to_fill(scene, to_scene, canvas)) {
        std::memset(output, fill, canvas.pixels() * channels);
    }
    for (const Tile& tile : scene.tiles) {
        draw(tile, scene, to_scene, canvas, output);
    }
}

// ---- Boxes
// ----------------------------------------------------------------------------------------------------------------

/// Appends the boxes of the scene, carried into the output and clipped to it. An augmented box stays only where enough
/// of it is left (reference section 8); an image that is merely placed keeps every box that has an area.
void place_boxes(const Scene& scene, const Canvas& canvas, bool augmented, std::vector<TargetBox>& boxes) {
    constexpr double least_side = 2, least_area_left = 0.1, greatest_aspect = 100;
    const auto scene_width = static_cast<double>(scene.width);
    const auto scene_height = static_cast<double>(scene.height);
    const double across = canvas.width;
    const double down = canvas.height;
    for (const Tile& tile : scene.tiles) {
        const double scale = canvas.bounds.scale_of({tile.sample.source.width, tile.sample.source.height});
        for (const Box& box : tile.sample.source.boxes) {
            if (box.flags & (box_crowd | box_difficult)) {
                continue;
            }
            const double left = std::clamp(box.x1 * scale + tile.left, 0.0, scene_width);
            const double right = std::clamp(box.x2 * scale + tile.left, 0.0, scene_width);
            const double top = std::clamp(box.y1 * scale + tile.top, 0.0, scene_height);
            const double bottom = std::clamp(box.y2 * scale + tile.top, 0.0, scene_height);
            const double area_before = (right - left) * (bottom - top) * scene.gain * scene.gain;

            const std::array corners{scene.to_output({left, top}), scene.to_output({right, top}),
                                     scene.to_output({left, bottom}), scene.to_output({right, bottom})};
            const auto [min_x, max_x] = std::minmax({corners[0].x, corners[1].x, corners[2].x, corners[3].x});
            const auto [min_y, max_y] = std::minmax({corners[0].y, corners[1].y, corners[2].y, corners[3].y});
            const double x1 = std::clamp(min_x, 0.0, across), x2 = std::clamp(max_x, 0.0, across);
            const double y1 = std::clamp(min_y, 0.0, down), y2 = std::clamp(max_y, 0.0, down);
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

/// One image in the middle of a scene that has the output's size.
Scene centred_scene(FittedSample sample, const Canvas& canvas) {
    const std::int64_t left = centred(canvas.width, sample.width);
    const std::int64_t top = centred(canvas.height, sample.height);
    Scene scene;
    scene.width = canvas.width;
    scene.height = canvas.height;
    scene.tiles.push_back({std::move(sample), left, top});
    return scene;
}

/// Four images that meet at a random point of a scene of twice the output's sides (reference section 8).
Scene mosaic_scene(std::array<FittedSample, 4> samples, const Canvas& canvas, base::Random& random) {
    const auto centre_x = static_cast<std::int64_t>(canvas.width / 2 + random.below(canvas.width + 1));
    const auto centre_y = static_cast<std::int64_t>(canvas.height / 2 + random.below(canvas.height + 1));
    Scene scene;
    scene.width = 2 * std::int64_t{canvas.width};
    scene.height = 2 * std::int64_t{canvas.height};
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

/// Turns, scales and shears around the scene's middle and puts it near the output's middle.
void draw_affine(const AugmentationOptions& options, const Canvas& canvas, base::Random& random, Scene& scene) {
    const double angle = radians(random.uniform(-options.degrees, options.degrees));
    scene.gain = random.uniform(1 - options.scale, 1 + options.scale);
    const double shear_x = std::tan(radians(random.uniform(-options.shear, options.shear)));
    const double shear_y = std::tan(radians(random.uniform(-options.shear, options.shear)));
    const double middle_x = random.uniform(0.5 - options.translate, 0.5 + options.translate) * canvas.width;
    const double middle_y = random.uniform(0.5 - options.translate, 0.5 + options.translate) * canvas.height;

    const double c = scene.gain * std::cos(angle);
    const double s = scene.gain * std::sin(angle);
    const Affine rotation{c, s, 0, -s, c, 0};
    const Affine shear{1, shear_x, 0, shear_y, 1, 0};
    const Affine from_middle =
        Affine::translation(-static_cast<double>(scene.width) / 2, -static_cast<double>(scene.height) / 2);
    scene.to_output = Affine::translation(middle_x, middle_y) * shear * rotation * from_middle;
}

/// Classification: a window of the padded image, as a shift of the image under the window.
Affine draw_crop(std::uint32_t padding, base::Random& random) {
    const double x = static_cast<double>(random.below(2 * std::uint64_t{padding} + 1)) - padding;
    const double y = static_cast<double>(random.below(2 * std::uint64_t{padding} + 1)) - padding;
    return Affine::translation(x, y);
}

/// Flips of the output, and quarter turns (counter-clockwise), which have its width for its height.
Affine draw_orientation(const AugmentationOptions& options, const Canvas& canvas, base::Random& random) {
    const double width = canvas.width;
    Affine orientation;
    if (random.coin(options.flip_horizontal)) {
        orientation = Affine{-1, 0, width, 0, 1, 0} * orientation;
    }
    if (random.coin(options.flip_vertical)) {
        orientation = Affine{1, 0, 0, 0, -1, static_cast<double>(canvas.height)} * orientation;
    }
    const std::uint64_t turns = random.coin(options.quarter_turns) ? 1 + random.below(3) : 0;
    for (std::uint64_t turn = 0; turn < turns; ++turn) {
        orientation = Affine{0, 1, 0, -1, 0, width} * orientation;
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

using HsvTables = std::array<std::array<std::uint8_t, 256>, channels>;

/// Looks up hue, saturation and value of every pixel.
void map_hsv(std::span<std::uint8_t> pixels, std::uint32_t width, const HsvTables& tables) {
    // A few rows at a time: the copy in HSV stays in the cache.
    constexpr std::size_t rows_at_once = 16;
    const std::size_t row_bytes = std::size_t{width} * channels;
    cv::Mat hsv;
    for (std::size_t begin = 0; begin < pixels.size(); begin += rows_at_once * row_bytes) {
        const std::size_t rows = std::min(rows_at_once, (pixels.size() - begin) / row_bytes);
        cv::Mat rgb(static_cast<int>(rows), static_cast<int>(width), CV_8UC3, pixels.data() + begin);
        cv::cvtColor(rgb, hsv, cv::COLOR_RGB2HSV);
        std::uint8_t* const end = hsv.data + rows * row_bytes;
        for (std::uint8_t* pixel = hsv.data; pixel != end; pixel += channels) {  // twice as fast as cv::LUT
            pixel[0] = tables[0][pixel[0]];
            pixel[1] = tables[1][pixel[1]];
            pixel[2] = tables[2][pixel[2]];
        }
        cv::cvtColor(hsv, rgb, cv::COLOR_HSV2RGB);
    }
}

/// ColorJitter: all gains are drawn, then the order in which they are applied.
void draw_jitter(const AugmentationOptions& options, std::span<std::uint8_t> pixels, std::uint32_t size,
                 base::Random& random) {
    const auto gain = [&](double range) { return 1 + random.uniform(-range, range); };
    const double brightness = gain(options.jitter_brightness);
    const double contrast = gain(options.contrast);
    const double saturation = gain(options.jitter_saturation);
    const double hue = random.uniform(-options.jitter_hue, options.jitter_hue);
    std::array<int, 4> order{0, 1, 2, 3};
    for (std::size_t left = order.size(); left > 1; --left) {
        std::swap(order[left - 1], order[random.below(left)]);
    }
    for (const int what : order) {
        if (what == 0 && options.jitter_brightness != 0) {
            scale_brightness(pixels, brightness);
        } else if (what == 1 && options.contrast != 0) {
            scale_contrast(pixels, contrast);
        } else if (what == 2 && options.jitter_saturation != 0) {
            scale_saturation(pixels, saturation);
        } else if (what == 3 && options.jitter_hue != 0) {
            shift_hue(pixels, size, hue);
        }
    }
}

/// A window of a random part of the image's area and a random aspect, or after ten that don't fit the largest in the
/// middle; as the map from the image to the output square.
Affine draw_resized_crop(ImageSize image, double least_area, std::uint32_t size, base::Random& random) {
    constexpr double least_aspect = 3.0 / 4, greatest_aspect = 4.0 / 3;
    constexpr int attempts = 10;
    const auto to_square = [&](double left, double top, double width, double height) {
        const double across = size / width;
        const double down = size / height;
        return Affine{across, 0, -left * across, 0, down, -top * down};
    };
    for (int attempt = 0; attempt < attempts; ++attempt) {
        const double area = random.uniform(least_area, 1) * image.width * image.height;
        const double aspect = std::exp(random.uniform(std::log(least_aspect), std::log(greatest_aspect)));
        const auto width = static_cast<std::uint64_t>(std::lround(std::sqrt(area * aspect)));
        const auto height = static_cast<std::uint64_t>(std::lround(std::sqrt(area / aspect)));
        if (width > 0 && height > 0 && width <= image.width && height <= image.height) {
            const auto left = static_cast<double>(random.below(image.width - width + 1));
            const auto top = static_cast<double>(random.below(image.height - height + 1));
            return to_square(left, top, static_cast<double>(width), static_cast<double>(height));
        }
    }
    const double width = std::min<double>(image.width, std::round(image.height * greatest_aspect));
    const double height = std::min<double>(image.height, std::round(image.width / least_aspect));
    return to_square((image.width - width) / 2, (image.height - height) / 2, width, height);
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
    require_between("jitter_brightness", options.jitter_brightness, 0, 1);
    require_between("jitter_saturation", options.jitter_saturation, 0, 1);
    require_between("jitter_hue", options.jitter_hue, 0, 0.5);
    require_between("resized_crop", options.resized_crop, 0, 1);
    require_between("flip_horizontal", options.flip_horizontal, 0, 1);
    require_between("flip_vertical", options.flip_vertical, 0, 1);
    require_between("quarter_turns", options.quarter_turns, 0, 1);
    require_between("erase", options.erase, 0, 1);
    if (options.enabled && task == Task::classification) {
        const std::string_view remedy = "detection only; set it to 0 for a classification data set";
        require(options.mosaic == 0, "mosaic", options.mosaic, remedy);
        require(options.mixup == 0, "mixup", options.mixup, remedy);
        require(options.resized_crop == 0 || options.crop_padding == 0, "crop_padding", options.crop_padding,
                "resized_crop cuts a window out already; set one of the two to 0");
    }
    if (options.enabled && task == Task::detection) {
        const std::string_view remedy = "classification only; set it to 0 for a detection data set";
        require(options.crop_padding == 0, "crop_padding", options.crop_padding, remedy);
        require(options.resized_crop == 0, "resized_crop", options.resized_crop, remedy);
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
    ImageBuffers buffers;
    return fit(sample, std::move(pixels), given.value_or(ImageSize{sample.width, sample.height}), task, image_size,
               buffers);
}

FittedSample fit(const Sample& sample, std::shared_ptr<const std::uint8_t> pixels, ImageSize given, Task task,
                 std::uint32_t image_size, ImageBuffers& buffers) {
    return resized({.source = sample, .width = given.width, .height = given.height, .pixels = std::move(pixels)},
                   fitted_size({sample.width, sample.height}, task, image_size), buffers);
}

FittedSample resized(FittedSample sample, ImageSize size, ImageBuffers& buffers) {
    if (ImageSize{sample.width, sample.height} == size) {
        return sample;
    }
    const cv::Mat source(static_cast<int>(sample.height), static_cast<int>(sample.width), CV_8UC3,
                         const_cast<std::uint8_t*>(sample.pixels.get()));
    const std::shared_ptr<Image> image = buffers.take();
    image->resize(size.width, size.height);
    cv::Mat target(static_cast<int>(size.height), static_cast<int>(size.width), CV_8UC3, image->pixels.data());
    cv::resize(source, target, target.size(), 0, 0, cv::INTER_LINEAR);
    return {.source = sample.source,
            .width = size.width,
            .height = size.height,
            .pixels = std::shared_ptr<const std::uint8_t>(image, image->pixels.data())};
}

void scale_hsv(std::span<std::uint8_t> pixels, std::uint32_t width, double hue, double saturation, double value) {
    HsvTables tables;
    for (std::size_t i = 0; i < tables[0].size(); ++i) {
        const auto level = static_cast<double>(i);
        tables[0][i] = static_cast<std::uint8_t>(std::lround(level * hue) % 180);
        tables[1][i] = cv::saturate_cast<std::uint8_t>(level * saturation);
        tables[2][i] = cv::saturate_cast<std::uint8_t>(level * value);
    }
    map_hsv(pixels, width, tables);
}

void shift_hue(std::span<std::uint8_t> pixels, std::uint32_t width, double turn) {
    constexpr long whole_turn = 180;
    const long shift = std::lround(turn * whole_turn) + whole_turn;
    HsvTables tables;
    for (std::size_t i = 0; i < tables[0].size(); ++i) {
        tables[0][i] = static_cast<std::uint8_t>((static_cast<long>(i) + shift) % whole_turn);
        tables[1][i] = tables[2][i] = static_cast<std::uint8_t>(i);
    }
    map_hsv(pixels, width, tables);
}

void scale_brightness(std::span<std::uint8_t> pixels, double gain) {
    std::array<std::uint8_t, 256> table;
    for (std::size_t i = 0; i < table.size(); ++i) {
        table[i] = cv::saturate_cast<std::uint8_t>(static_cast<double>(i) * gain);
    }
    for (std::uint8_t& value : pixels) {
        value = table[value];
    }
}

void scale_saturation(std::span<std::uint8_t> pixels, double gain) {
    const auto factor = static_cast<float>(gain);
    for (std::size_t i = 0; i < pixels.size(); i += channels) {
        const float gray = 0.299F * pixels[i] + 0.587F * pixels[i + 1] + 0.114F * pixels[i + 2];
        for (std::size_t c = 0; c < channels; ++c) {
            pixels[i + c] = cv::saturate_cast<std::uint8_t>(gray + (pixels[i + c] - gray) * factor);
        }
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
    return make(epoch, id, Canvas::square(image_size_), fetch, pixels, boxes);
}

Placement Augmenter::make(std::uint64_t epoch, std::uint64_t id, const Canvas& canvas, const Fetch& fetch,
                          std::span<std::uint8_t> pixels, std::vector<TargetBox>& boxes) const {
    LOCKSTEP_CHECK_EQ(pixels.size(), canvas.pixels() * channels);
    const bool may_be_a_rectangle = task_ == Task::detection && (!options_.enabled || options_.quarter_turns == 0);
    LOCKSTEP_CHECK(may_be_a_rectangle || canvas.width == canvas.height, canvas.width, "x", canvas.height);
    const std::uint8_t fill = task_ == Task::detection ? detection_fill : classification_fill;
    FittedSample primary = fetch(id);
    Placement placement;
    placement.letterbox.source_width = primary.source.width;
    placement.letterbox.source_height = primary.source.height;

    if (!options_.enabled) {
        if (task_ == Task::detection) {
            placement.letterbox.scale = canvas.bounds.scale_of({primary.source.width, primary.source.height});
            placement.letterbox.pad_left = static_cast<float>(centred(canvas.width, primary.width));
            placement.letterbox.pad_top = static_cast<float>(centred(canvas.height, primary.height));
        }
        const Scene scene = centred_scene(std::move(primary), canvas);
        draw(scene, canvas, fill, pixels.data());
        place_boxes(scene, canvas, false, boxes);
        return placement;
    }

    base::Random random(seed_, base::RandomPurpose::augmentation, epoch, id);
    base::Random partners(seed_, base::RandomPurpose::mosaic, epoch, id);
    const bool closing = epoch >= closing_epoch_;
    const auto fetch_partner = [&] {
        ++placement.partners;
        return fetch(partners.below(dataset_size_));
    };
    const Affine orientation = draw_orientation(options_, canvas, random);
    const auto add_scene = [&](FittedSample first, std::span<std::uint8_t> target) {
        Scene scene;
        if (random.coin(closing ? 0 : options_.mosaic)) {
            FittedSample second = fetch_partner(), third = fetch_partner(), fourth = fetch_partner();
            scene = mosaic_scene({std::move(first), std::move(second), std::move(third), std::move(fourth)}, canvas,
                                 random);
        } else {
            scene = centred_scene(std::move(first), canvas);
        }
        const bool cuts = options_.resized_crop > 0;
        const ImageSize whole{scene.tiles.front().sample.width, scene.tiles.front().sample.height};
        draw_affine(options_, canvas, random, scene);
        const Affine crop = cuts ? draw_resized_crop(whole, options_.resized_crop, canvas.width, random)
                                 : draw_crop(options_.crop_padding, random);
        scene.to_output = orientation * scene.to_output * crop;
        if (cuts) {  // the scene was the square that the window goes to; now it is the whole image
            scene.tiles.front().left = scene.tiles.front().top = 0;
            scene.width = scene.height = std::max(whole.width, whole.height);
        }
        draw(scene, canvas, fill, target.data());
        place_boxes(scene, canvas, true, boxes);
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
        scale_hsv(pixels, canvas.width, hue, saturation, value);
    }
    if (options_.jitter_brightness + options_.jitter_saturation + options_.jitter_hue != 0) {
        draw_jitter(options_, pixels, canvas.width, random);
    } else if (options_.contrast != 0) {
        scale_contrast(pixels, 1 + random.uniform(-options_.contrast, options_.contrast));
    }
    if (random.coin(options_.erase)) {
        draw_erasure(pixels, canvas.width, random);
    }
    return placement;
}

std::vector<std::uint64_t> Augmenter::likely_partners(std::uint64_t epoch, std::uint64_t id) const {
    constexpr std::size_t of_mosaic = 3;
    std::vector<std::uint64_t> partners;
    if (options_.enabled && options_.mosaic > 0.5 && epoch < closing_epoch_) {
        base::Random random(seed_, base::RandomPurpose::mosaic, epoch, id);
        for (std::size_t i = 0; i < of_mosaic; ++i) {
            partners.push_back(random.below(dataset_size_));
        }
    }
    return partners;
}

}  // namespace lockstep::sharding
