#include "sharding/augmentation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <opencv2/core.hpp>
#include <opencv2/imgproc.hpp>
#include <set>
#include <string>

#include "base/error.h"
#include "base/random.h"

namespace lockstep::sharding {
namespace {

constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

/// A small data set in memory.
struct Photo {
    cv::Mat pixels;  ///< RGB
    std::vector<Box> boxes;
};

Box box(float x1, float y1, float x2, float y2, int class_index = 0, std::uint8_t flags = 0) {
    return {x1, y1, x2, y2, (x2 - x1) * (y2 - y1), class_index, flags, 0};
}

Sample sample_of(const Photo& photo, std::uint64_t id) {
    return {.id = id,
            .image_id = 0,
            .width = static_cast<std::uint32_t>(photo.pixels.cols),
            .height = static_cast<std::uint32_t>(photo.pixels.rows),
            .label = -1,
            .bytes = {},
            .boxes = photo.boxes};
}

FittedSample fitted(const Photo& photo, std::uint64_t id, std::uint32_t size, Task task) {
    const auto owner = std::make_shared<cv::Mat>(photo.pixels);
    return fit(sample_of(photo, id), {owner, owner->data}, task, size);
}

FittedSample fitted(const Photo& photo, std::uint64_t id, const SideBounds& bounds) {
    const Sample sample = sample_of(photo, id);
    const auto owner = std::make_shared<cv::Mat>(photo.pixels);
    ImageBuffers buffers;
    return resized({.source = sample, .width = sample.width, .height = sample.height, .pixels = {owner, owner->data}},
                   fitted_size({sample.width, sample.height}, bounds), buffers);
}

struct Made {
    cv::Mat pixels;
    std::vector<TargetBox> boxes;
    Placement placement;
    std::vector<std::uint64_t> fetched;  ///< primary, then partners in the order drawn
};

/// Runs the augmenter over photos.
class Studio {
  public:
    Studio(std::vector<Photo> photos, AugmentationOptions options, std::uint32_t size, Task task = Task::detection,
           std::uint64_t seed = 1, std::uint64_t closing_epoch = never)
        : photos_(std::move(photos)),
          size_(size),
          task_(task),
          augmenter_(options, task, size, seed, closing_epoch, photos_.size()) {}

    Made make_on(const Canvas& canvas, std::uint64_t epoch, std::uint64_t id) const {
        Made made;
        made.pixels.create(static_cast<int>(canvas.height), static_cast<int>(canvas.width), CV_8UC3);
        const auto fetch = [&](std::uint64_t wanted) {
            made.fetched.push_back(wanted);
            return fitted(photos_.at(wanted), wanted, canvas.bounds);
        };
        made.placement =
            augmenter_.make(epoch, id, canvas, fetch, {made.pixels.data, made.pixels.total() * 3}, made.boxes);
        return made;
    }

    Made make(std::uint64_t epoch, std::uint64_t id) const {
        Made made;
        made.pixels.create(static_cast<int>(size_), static_cast<int>(size_), CV_8UC3);
        const auto fetch = [&](std::uint64_t wanted) {
            made.fetched.push_back(wanted);
            return fitted(photos_.at(wanted), wanted, size_, task_);
        };
        made.placement = augmenter_.make(epoch, id, fetch, {made.pixels.data, made.pixels.total() * 3}, made.boxes);
        return made;
    }

  private:
    std::vector<Photo> photos_;
    std::uint32_t size_;
    Task task_;
    Augmenter augmenter_;
};

std::vector<Photo> several(int count, const std::function<Photo(int)>& photo) {
    std::vector<Photo> photos(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
        photos[static_cast<std::size_t>(i)] = photo(i);
    }
    return photos;
}

AugmentationOptions enabled(const std::function<void(AugmentationOptions&)>& set = {}) {
    AugmentationOptions options;
    options.enabled = true;
    if (set) {
        set(options);
    }
    return options;
}

cv::Mat noise(int width, int height, std::uint64_t seed) {
    cv::Mat image(height, width, CV_8UC3);
    base::Random random(seed, base::RandomPurpose::test, 0, 0);
    for (std::size_t i = 0; i < image.total() * 3; ++i) {
        image.data[i] = static_cast<std::uint8_t>(random.below(256));
    }
    return image;
}

testing::AssertionResult same_pixels(const cv::Mat& a, const cv::Mat& b) {
    if (a.size() != b.size()) {
        return testing::AssertionFailure() << a.size() << " against " << b.size();
    }
    for (int y = 0; y < a.rows; ++y) {
        for (int x = 0; x < a.cols; ++x) {
            if (a.at<cv::Vec3b>(y, x) != b.at<cv::Vec3b>(y, x)) {
                return testing::AssertionFailure() << "at " << x << "," << y << ": " << a.at<cv::Vec3b>(y, x)
                                                   << " against " << b.at<cv::Vec3b>(y, x);
            }
        }
    }
    return testing::AssertionSuccess();
}

/// Pure colours, so that a pixel that is more than half of one is recognised by the high bit of each channel.
constexpr std::array<std::array<std::uint8_t, 3>, 6> pure_colours{
    {{255, 0, 0}, {0, 255, 0}, {0, 0, 255}, {255, 255, 0}, {255, 0, 255}, {0, 255, 255}}};

struct Found {
    int left = std::numeric_limits<int>::max(), top = left, right = -1, bottom = -1;
    int pixels = 0;
};

/// The oracle of the boxes: where the colour is seen.
Found find_colour(const cv::Mat& image, int colour) {
    Found found;
    for (int y = 0; y < image.rows; ++y) {
        for (int x = 0; x < image.cols; ++x) {
            const auto& pixel = image.at<cv::Vec3b>(y, x);
            const auto& pure = pure_colours[colour];
            if ((pixel[0] > 127) == (pure[0] > 127) && (pixel[1] > 127) == (pure[1] > 127) &&
                (pixel[2] > 127) == (pure[2] > 127)) {
                found.left = std::min(found.left, x);
                found.top = std::min(found.top, y);
                found.right = std::max(found.right, x + 1);
                found.bottom = std::max(found.bottom, y + 1);
                ++found.pixels;
            }
        }
    }
    return found;
}

/// Black, with one rectangle of the colour that stands for its class.
Photo with_rectangle(int width, int height, cv::Rect rectangle, int colour) {
    Photo photo{cv::Mat(height, width, CV_8UC3, cv::Scalar::all(0)), {}};
    const auto& pure = pure_colours[colour];
    photo.pixels(rectangle).setTo(cv::Scalar(pure[0], pure[1], pure[2]));
    photo.boxes.push_back(
        box(rectangle.x, rectangle.y, rectangle.x + rectangle.width, rectangle.y + rectangle.height, colour));
    return photo;
}

struct Transform {
    std::string name;
    std::function<void(AugmentationOptions&)> set;
    bool turns_boxes;  ///< a turned rectangle that is cut by the border no longer fills its box
};

class BoxesFollowThePixels : public testing::TestWithParam<Transform> {
  protected:
    /// A square, and where nothing turns by quarters a landscape and a portrait.
    static std::vector<Canvas> canvases() {
        const SideBounds bounds{96, 160};
        const bool turns = enabled(GetParam().set).quarter_turns > 0;
        return turns ? std::vector{Canvas::square(128)}
                     : std::vector{Canvas::square(128), Canvas{160, 96, bounds}, Canvas{128, 160, bounds}};
    }
    static bool lies_inside(const TargetBox& box, const Canvas& canvas) {
        return box.x1 > 0 && box.y1 > 0 && box.x2 < static_cast<float>(canvas.width) &&
               box.y2 < static_cast<float>(canvas.height);
    }
};

TEST_P(BoxesFollowThePixels, OfOneImage) {
    for (const Canvas& canvas : canvases()) {
        const Photo photo = with_rectangle(200, 150, {70, 40, 45, 60}, 0);
        const double area = 45.0 * 60.0 * 0.64 * 0.64;
        const Studio studio({photo}, enabled(GetParam().set), 128);
        int compared = 0;
        for (std::uint64_t epoch = 0; epoch < 200; ++epoch) {
            const Made made = studio.make_on(canvas, epoch, 0);
            const Found found = find_colour(made.pixels, 0);
            if (made.boxes.empty()) {
                EXPECT_LT(found.pixels, 0.15 * area * 2.25) << "epoch " << epoch << " lost its box";
                continue;
            }
            ASSERT_EQ(made.boxes.size(), 1u);
            const TargetBox& b = made.boxes[0];
            EXPECT_GE(std::min(b.x1, b.y1), 0);
            EXPECT_LE(b.x2, canvas.width);
            EXPECT_LE(b.y2, canvas.height);
            const bool inside = lies_inside(b, canvas);
            if (GetParam().turns_boxes && !inside) {
                continue;
            }
            ++compared;
            EXPECT_NEAR(b.x1, found.left, 1.5) << "epoch " << epoch;
            EXPECT_NEAR(b.y1, found.top, 1.5) << "epoch " << epoch;
            EXPECT_NEAR(b.x2, found.right, 1.5) << "epoch " << epoch;
            EXPECT_NEAR(b.y2, found.bottom, 1.5) << "epoch " << epoch;
        }
        EXPECT_GT(compared, 100) << canvas.width << "x" << canvas.height;
    }
}

TEST_P(BoxesFollowThePixels, OfAMosaic) {
    for (const Canvas& canvas : canvases()) {
        std::vector<Photo> photos;
        for (int colour = 0; colour < 6; ++colour) {
            const int width = 128 - 8 * colour;  // tiles of unlike shapes
            photos.push_back(with_rectangle(width, 128, {20 + 5 * colour, 30, 35, 40 + 8 * colour}, colour));
        }
        const Studio studio(photos, enabled([](AugmentationOptions& options) {
                                GetParam().set(options);
                                options.mosaic = 1;
                            }),
                            128);
        int compared = 0;
        for (std::uint64_t epoch = 0; epoch < 900; ++epoch) {
            const Made made = studio.make_on(canvas, epoch, epoch % 6);
            ASSERT_EQ(made.fetched.size(), 4u);
            ASSERT_EQ(made.placement.partners, 3u);
            const std::set<std::uint64_t> distinct(made.fetched.begin(), made.fetched.end());
            if (distinct.size() < 4) {
                continue;  // a colour twice: its bounding box says nothing
            }
            std::set<int> with_box;
            for (const TargetBox& b : made.boxes) {
                ASSERT_TRUE(distinct.contains(b.class_index));
                ASSERT_TRUE(with_box.insert(b.class_index).second) << "two boxes of class " << b.class_index;
                const bool inside = lies_inside(b, canvas);
                if (GetParam().turns_boxes && !inside) {
                    continue;
                }
                const Found found = find_colour(made.pixels, b.class_index);
                ++compared;
                EXPECT_NEAR(b.x1, found.left, 1.5) << "epoch " << epoch << " class " << b.class_index;
                EXPECT_NEAR(b.y1, found.top, 1.5) << "epoch " << epoch << " class " << b.class_index;
                EXPECT_NEAR(b.x2, found.right, 1.5) << "epoch " << epoch << " class " << b.class_index;
                EXPECT_NEAR(b.y2, found.bottom, 1.5) << "epoch " << epoch << " class " << b.class_index;
            }
            for (std::uint64_t id : distinct) {
                if (!with_box.contains(static_cast<int>(id))) {
                    const Box& source = photos[id].boxes[0];
                    EXPECT_LT(find_colour(made.pixels, static_cast<int>(id)).pixels, 0.15 * source.area * 2.25)
                        << "epoch " << epoch << " class " << id << " lost its box";
                }
            }
        }
        EXPECT_GT(compared, 60) << canvas.width << "x" << canvas.height;
    }
}

INSTANTIATE_TEST_SUITE_P(
    Each, BoxesFollowThePixels,
    testing::Values(Transform{"nothing", [](AugmentationOptions&) {}, false},
                    Transform{"flip_horizontal", [](AugmentationOptions& o) { o.flip_horizontal = 0.5; }, false},
                    Transform{"flip_vertical", [](AugmentationOptions& o) { o.flip_vertical = 0.5; }, false},
                    Transform{"quarter_turns", [](AugmentationOptions& o) { o.quarter_turns = 0.9; }, false},
                    Transform{"translate", [](AugmentationOptions& o) { o.translate = 0.4; }, false},
                    Transform{"scale", [](AugmentationOptions& o) { o.scale = 0.5; }, false},
                    Transform{"degrees", [](AugmentationOptions& o) { o.degrees = 45; }, true},
                    Transform{"shear", [](AugmentationOptions& o) { o.shear = 10; }, true},
                    Transform{"straight",
                              [](AugmentationOptions& o) {
                                  o.flip_horizontal = o.flip_vertical = o.quarter_turns = 0.5;
                                  o.translate = 0.1;
                                  o.scale = 0.5;
                              },
                              false},
                    Transform{"all",
                              [](AugmentationOptions& o) {
                                  o.flip_horizontal = o.flip_vertical = o.quarter_turns = 0.5;
                                  o.translate = 0.1;
                                  o.scale = 0.5;
                                  o.degrees = 20;
                                  o.shear = 5;
                              },
                              true}),
    [](const auto& info) { return info.param.name; });

/// Red tells x, green tells y (of the pixel's centre, less a half), blue tells which image.
Photo with_coordinates(int size, int blue) {
    Photo photo{cv::Mat(size, size, CV_8UC3), {}};
    for (int y = 0; y < size; ++y) {
        for (int x = 0; x < size; ++x) {
            photo.pixels.at<cv::Vec3b>(y, x) = {static_cast<std::uint8_t>(x), static_cast<std::uint8_t>(y),
                                                static_cast<std::uint8_t>(blue)};
        }
    }
    return photo;
}

/// Source coordinates as an affine function of output coordinates, by least squares over the pixels of one image.
struct FittedMap {
    cv::Matx23d to_source;
    double worst = 0;  ///< residual in levels of colour, which are pixels of the source
    int pixels = 0;
};

FittedMap fit_map(const cv::Mat& image, int blue) {
    cv::Matx33d normal = cv::Matx33d::zeros();
    cv::Matx<double, 3, 2> right = cv::Matx<double, 3, 2>::zeros();
    FittedMap map;
    const auto visit = [&](const auto& body) {
        for (int y = 0; y < image.rows; ++y) {
            for (int x = 0; x < image.cols; ++x) {
                const auto& pixel = image.at<cv::Vec3b>(y, x);
                if (pixel[2] == blue) {
                    body(cv::Vec3d(x + 0.5, y + 0.5, 1), cv::Vec2d(pixel[0] + 0.5, pixel[1] + 0.5));
                }
            }
        }
    };
    visit([&](const cv::Vec3d& at, const cv::Vec2d& source) {
        normal += at * at.t();
        right += at * source.t();
        ++map.pixels;
    });
    if (map.pixels < 100) {
        return map;
    }
    map.to_source = (normal.inv() * right).t();
    visit([&](const cv::Vec3d& at, const cv::Vec2d& source) {
        const cv::Vec2d error = map.to_source * at - source;
        map.worst = std::max({map.worst, std::abs(error[0]), std::abs(error[1])});
    });
    return map;
}

TEST(Affine, PixelsAndBoxesFollowOneMapWithinItsRanges) {
    const int size = 200;
    Photo photo = with_coordinates(size, 255);
    photo.boxes.push_back(box(60, 70, 120, 100));
    const Studio studio({photo}, enabled([](AugmentationOptions& o) {
                            o.degrees = 30;
                            o.scale = 0.4;
                            o.translate = 0.1;
                        }),
                        size);
    double least_gain = 9, greatest_gain = 0, least_angle = 9, greatest_angle = -9, least_shift = 999,
           greatest_shift = -999;
    for (std::uint64_t epoch = 0; epoch < 150; ++epoch) {
        const Made made = studio.make(epoch, 0);
        const FittedMap map = fit_map(made.pixels, 255);
        ASSERT_GT(map.pixels, 1000);
        EXPECT_LT(map.worst, 1.2) << "epoch " << epoch;

        const cv::Matx22d linear(map.to_source(0, 0), map.to_source(0, 1), map.to_source(1, 0), map.to_source(1, 1));
        const cv::Matx22d forward = linear.inv();
        const cv::Vec2d shift(map.to_source(0, 2), map.to_source(1, 2));
        const auto to_output = [&](double x, double y) { return forward * (cv::Vec2d(x, y) - shift); };

        const double gain = std::sqrt(cv::determinant(forward));
        const double angle = std::atan2(forward(0, 1), forward(0, 0)) * 180 / std::numbers::pi;
        EXPECT_NEAR(forward(0, 0), forward(1, 1), 0.01);
        EXPECT_NEAR(forward(0, 1), -forward(1, 0), 0.01);
        const cv::Vec2d middle = to_output(size / 2.0, size / 2.0);
        least_gain = std::min(least_gain, gain);
        greatest_gain = std::max(greatest_gain, gain);
        least_angle = std::min(least_angle, angle);
        greatest_angle = std::max(greatest_angle, angle);
        for (double coordinate : {middle[0], middle[1]}) {
            least_shift = std::min(least_shift, coordinate - size / 2.0);
            greatest_shift = std::max(greatest_shift, coordinate - size / 2.0);
        }

        std::array<cv::Vec2d, 4> corners{to_output(60, 70), to_output(120, 70), to_output(60, 100),
                                         to_output(120, 100)};
        ASSERT_LE(made.boxes.size(), 1u);
        for (const TargetBox& b : made.boxes) {
            const auto [x1, x2] = std::minmax({corners[0][0], corners[1][0], corners[2][0], corners[3][0]});
            const auto [y1, y2] = std::minmax({corners[0][1], corners[1][1], corners[2][1], corners[3][1]});
            EXPECT_NEAR(b.x1, std::max(x1, 0.0), 0.3) << "epoch " << epoch;
            EXPECT_NEAR(b.y1, std::max(y1, 0.0), 0.3) << "epoch " << epoch;
            EXPECT_NEAR(b.x2, std::min(x2, double(size)), 0.3) << "epoch " << epoch;
            EXPECT_NEAR(b.y2, std::min(y2, double(size)), 0.3) << "epoch " << epoch;
        }
    }
    // The whole range is drawn from, and nothing beyond it.
    EXPECT_GT(least_gain, 0.595);
    EXPECT_LT(least_gain, 0.65);
    EXPECT_GT(greatest_gain, 1.35);
    EXPECT_LT(greatest_gain, 1.405);
    EXPECT_GT(least_angle, -30.2);
    EXPECT_LT(least_angle, -27);
    EXPECT_GT(greatest_angle, 27);
    EXPECT_LT(greatest_angle, 30.2);
    EXPECT_GT(least_shift, -20.2);
    EXPECT_LT(least_shift, -18);
    EXPECT_GT(greatest_shift, 18);
    EXPECT_LT(greatest_shift, 20.2);
}

TEST(Affine, KeepsABoxByTheStatedRule) {
    const int size = 200;
    Photo photo = with_coordinates(size, 255);
    photo.boxes = {box(2, 80, 42, 120, 0), box(170, 3, 175, 43, 1), box(100, 100, 101.9F, 150, 2),
                   box(0, 90, 200, 91, 3)};
    const Studio studio({photo}, enabled([](AugmentationOptions& o) { o.translate = 0.25; }), size);
    int kept = 0, dropped = 0;
    for (std::uint64_t epoch = 0; epoch < 200; ++epoch) {
        const Made made = studio.make(epoch, 0);
        const FittedMap map = fit_map(made.pixels, 255);
        const double shift_x = -map.to_source(0, 2), shift_y = -map.to_source(1, 2);
        for (const Box& b : photo.boxes) {
            const double width = std::clamp(b.x2 + shift_x, 0.0, 200.0) - std::clamp(b.x1 + shift_x, 0.0, 200.0);
            const double height = std::clamp(b.y2 + shift_y, 0.0, 200.0) - std::clamp(b.y1 + shift_y, 0.0, 200.0);
            const double left_of_area = width * height / b.area;
            if (std::abs(left_of_area - 0.1) < 0.01 || std::abs(width - 2) < 0.05 || std::abs(height - 2) < 0.05) {
                continue;  // too close to call from the pixels
            }
            const bool expected = width > 2 && height > 2 && left_of_area > 0.1;
            const bool present = std::ranges::any_of(
                made.boxes, [&](const TargetBox& target) { return target.class_index == b.class_index; });
            EXPECT_EQ(present, expected) << "epoch " << epoch << " class " << b.class_index << ": " << width << " x "
                                         << height;
            (present ? kept : dropped) += 1;
        }
    }
    EXPECT_GT(kept, 200);
    EXPECT_GT(dropped, 420);  // the 1.9 px and the 1 px box always, the others at times
}

TEST(Mosaic, TilesMeetAtACentreWithinTheMiddleOfTheCanvas) {
    const int size = 120;
    const double side = size;
    const std::vector<Photo> photos = several(40, [&](int i) { return with_coordinates(size, 15 + 6 * i); });
    const auto all = [](AugmentationOptions& o) {
        o.mosaic = 1;
        o.degrees = 10;
        o.scale = 0.5;
        o.translate = 0.1;
        o.shear = 3;
        o.quarter_turns = 0.5;
        o.flip_horizontal = 0.5;
    };
    const Studio studio(photos, enabled(all), size);
    int pairs = 0;
    for (std::uint64_t epoch = 0; epoch < 200; ++epoch) {
        const Made made = studio.make(epoch, epoch % 40);
        if (std::set(made.fetched.begin(), made.fetched.end()).size() < 4) {
            continue;
        }
        std::array<FittedMap, 4> maps;
        for (std::size_t tile = 0; tile < 4; ++tile) {
            maps[tile] = fit_map(made.pixels, 15 + 6 * static_cast<int>(made.fetched[tile]));
            EXPECT_LT(maps[tile].worst, 1.3) << "epoch " << epoch << " tile " << tile;
        }
        // Tiles are drawn in the order top left, top right, bottom left, bottom right, all by one map: the same point
        // of the output lies a tile's side further left in the right one, further up in the lower one.
        for (std::size_t a = 0; a < 4; ++a) {
            for (std::size_t b = a + 1; b < 4; ++b) {
                if (maps[a].pixels < 2000 || maps[b].pixels < 2000) {
                    continue;
                }
                ++pairs;
                const cv::Vec3d middle(side / 2, side / 2, 1);
                const cv::Vec2d difference = maps[a].to_source * middle - maps[b].to_source * middle;
                EXPECT_NEAR(difference[0], a % 2 != b % 2 ? (b % 2 ? side : -side) : 0, 1.0) << "epoch " << epoch;
                EXPECT_NEAR(difference[1], a / 2 != b / 2 ? (b / 2 ? side : -side) : 0, 1.0) << "epoch " << epoch;
                for (int i : {0, 1}) {
                    for (int j : {0, 1}) {
                        EXPECT_NEAR(maps[a].to_source(i, j), maps[b].to_source(i, j), 0.02) << "epoch " << epoch;
                    }
                }
            }
        }
        // No holes where tiles meet.
        for (int y = 1; y + 1 < size; ++y) {
            for (int x = 1; x + 1 < size; ++x) {
                const cv::Vec3b fill(114, 114, 114);
                const auto is_fill = [&](int dx, int dy) { return made.pixels.at<cv::Vec3b>(y + dy, x + dx) == fill; };
                const bool hole =
                    is_fill(0, 0) && !is_fill(-1, 0) && !is_fill(1, 0) && !is_fill(0, -1) && !is_fill(0, 1);
                EXPECT_FALSE(hole) << "epoch " << epoch << " at " << x << "," << y;
            }
        }
    }
    EXPECT_GT(pairs, 60);
}

TEST(Mosaic, WithoutAffineShowsTheMiddleOfTheCanvasExactly) {
    const int size = 64;
    const std::vector<Photo> photos = several(8, [&](int i) { return Photo{noise(size, size, i), {}}; });
    const Studio studio(photos, enabled([](AugmentationOptions& o) { o.mosaic = 1; }), size);
    std::set<int> centres;
    for (std::uint64_t epoch = 0; epoch < 60; ++epoch) {
        const Made made = studio.make(epoch, 3);
        ASSERT_EQ(made.fetched.at(0), 3u);
        // The slow way: every centre is tried on a real canvas of twice the side.
        int matches = 0;
        for (int centre_y = size / 2; centre_y <= 3 * size / 2 && matches == 0; ++centre_y) {
            for (int centre_x = size / 2; centre_x <= 3 * size / 2 && matches == 0; ++centre_x) {
                cv::Mat canvas(4 * size, 4 * size, CV_8UC3, cv::Scalar::all(114));  // with room around
                const cv::Point centre(centre_x + size, centre_y + size);
                const std::array corners{centre - cv::Point(size, size), centre - cv::Point(0, size),
                                         centre - cv::Point(size, 0), centre};
                const cv::Point middle(3 * size / 2, 3 * size / 2);
                // One pixel of each candidate first: nearly all fail there.
                const int tile = (centre_x > size / 2 ? 0 : 1) + (centre_y > size / 2 ? 0 : 2);
                const cv::Point probe = middle - corners[tile];
                if (photos[made.fetched[tile]].pixels.at<cv::Vec3b>(probe) != made.pixels.at<cv::Vec3b>(0, 0)) {
                    continue;
                }
                for (int i = 0; i < 4; ++i) {
                    photos[made.fetched[i]].pixels.copyTo(canvas(cv::Rect(corners[i], cv::Size(size, size))));
                }
                if (same_pixels(canvas(cv::Rect(middle, cv::Size(size, size))), made.pixels)) {
                    ++matches;
                    centres.insert(centre_x);
                    centres.insert(centre_y);
                }
            }
        }
        EXPECT_EQ(matches, 1) << "epoch " << epoch;
    }
    EXPECT_LT(*centres.begin(), 36);
    EXPECT_GT(*centres.rbegin(), 92);
}

TEST(Mosaic, PartnersComeFromTheWholeSetAndCloseWithTheEpoch) {
    std::vector<Photo> photos(50, with_rectangle(32, 32, {5, 5, 20, 20}, 0));
    const AugmentationOptions options = enabled([](AugmentationOptions& o) { o.mosaic = o.mixup = 1; });
    const Studio studio(photos, options, 32, Task::detection, 1, 10);
    std::set<std::uint64_t> partners;
    for (std::uint64_t id = 0; id < 50; ++id) {
        const Made made = studio.make(9, id);
        EXPECT_EQ(made.fetched.at(0), id);
        EXPECT_EQ(made.placement.partners, 7u);
        EXPECT_EQ(made.fetched.size(), 8u);
        partners.insert(made.fetched.begin() + 1, made.fetched.end());
        const Made closed = studio.make(10, id);
        EXPECT_EQ(closed.placement.partners, 0u);
        EXPECT_EQ(closed.fetched, std::vector{id});
    }
    EXPECT_EQ(partners.size(), 50u);
}

TEST(Mosaic, ItsPartnersCanBeReadAhead) {
    const std::vector<Photo> photos(50, with_rectangle(32, 32, {5, 5, 20, 20}, 0));
    const AugmentationOptions options = enabled([](AugmentationOptions& o) { o.mosaic = 1; });
    const Studio studio(photos, options, 32, Task::detection, 1, 10);
    const Augmenter augmenter(options, Task::detection, 32, 1, 10, 50);
    for (std::uint64_t id = 0; id < 50; ++id) {
        const std::vector<std::uint64_t> fetched = studio.make(9, id).fetched;
        EXPECT_EQ(augmenter.likely_partners(9, id), std::vector(fetched.begin() + 1, fetched.end()));
        EXPECT_TRUE(augmenter.likely_partners(10, id).empty());
    }
}

TEST(Mixup, BlendsByABetaDistributedWeight) {
    std::vector<Photo> photos;
    for (int level : {0, 200}) {
        photos.push_back({cv::Mat(16, 16, CV_8UC3, cv::Scalar::all(level)), {box(2, 2, 12, 12, level)}});
    }
    const Studio studio(photos, enabled([](AugmentationOptions& o) { o.mixup = 1; }), 16);
    std::vector<double> weights;
    for (std::uint64_t epoch = 0; epoch < 2000; ++epoch) {
        const Made made = studio.make(epoch, 0);
        ASSERT_EQ(made.placement.partners, 1u);
        ASSERT_EQ(made.boxes.size(), 2u);
        EXPECT_EQ(made.boxes[0].class_index, 0);
        EXPECT_EQ(made.boxes[1].class_index, made.fetched[1] == 1 ? 200 : 0);
        EXPECT_EQ(made.pixels.at<cv::Vec3b>(0, 0), made.pixels.at<cv::Vec3b>(15, 15));
        if (made.fetched[1] == 1) {
            weights.push_back(made.pixels.at<cv::Vec3b>(5, 5)[0] / 200.0);
        }
    }
    ASSERT_GT(weights.size(), 900u);
    double mean = 0, variance = 0;
    for (double weight : weights) {
        mean += weight / weights.size();
    }
    for (double weight : weights) {
        variance += (weight - mean) * (weight - mean) / weights.size();
    }
    // Beta(32, 32): mean 1/2, variance 1/260. Bounds: five standard errors.
    EXPECT_NEAR(mean, 0.5, 0.010);
    EXPECT_NEAR(std::sqrt(variance), std::sqrt(1.0 / 260), 0.0075);
}

class Exactly : public testing::TestWithParam<int> {};

TEST_P(Exactly, FlipsAreMirrors) {
    const int size = GetParam();
    const auto s = static_cast<float>(size);
    const Photo photo{noise(size, size, 1), {box(3, 5, 20, 12)}};
    cv::Mat expected;

    const Made horizontal = Studio({photo}, enabled([](auto& o) { o.flip_horizontal = 1; }), size).make(0, 0);
    cv::flip(photo.pixels, expected, 1);
    EXPECT_TRUE(same_pixels(horizontal.pixels, expected));
    ASSERT_EQ(horizontal.boxes.size(), 1u);
    EXPECT_EQ(horizontal.boxes[0], (TargetBox{0, 0, s - 20, 5, s - 3, 12}));

    const Made vertical = Studio({photo}, enabled([](auto& o) { o.flip_vertical = 1; }), size).make(0, 0);
    cv::flip(photo.pixels, expected, 0);
    EXPECT_TRUE(same_pixels(vertical.pixels, expected));
    ASSERT_EQ(vertical.boxes.size(), 1u);
    EXPECT_EQ(vertical.boxes[0], (TargetBox{0, 0, 3, s - 12, 20, s - 5}));
}

TEST_P(Exactly, QuarterTurnsAreRotations) {
    const int size = GetParam();
    const auto s = static_cast<float>(size);
    const Photo photo{noise(size, size, 1), {box(3, 5, 20, 12)}};
    const Studio studio({photo}, enabled([](auto& o) { o.quarter_turns = 1; }), size);
    const std::array codes{cv::ROTATE_90_COUNTERCLOCKWISE, cv::ROTATE_180, cv::ROTATE_90_CLOCKWISE};
    const std::array turned{TargetBox{0, 0, 5, s - 20, 12, s - 3}, TargetBox{0, 0, s - 20, s - 12, s - 3, s - 5},
                            TargetBox{0, 0, s - 12, 3, s - 5, 20}};
    std::array<int, 3> seen{};
    for (std::uint64_t epoch = 0; epoch < 60; ++epoch) {
        const Made made = studio.make(epoch, 0);
        ASSERT_EQ(made.boxes.size(), 1u);
        for (std::size_t i = 0; i < 3; ++i) {
            cv::Mat expected;
            cv::rotate(photo.pixels, expected, codes[i]);
            if (same_pixels(made.pixels, expected)) {
                ++seen[i];
                EXPECT_EQ(made.boxes[0], turned[i]);
            }
        }
    }
    EXPECT_EQ(seen[0] + seen[1] + seen[2], 60);
    EXPECT_GT(*std::ranges::min_element(seen), 8);
}

TEST_P(Exactly, NothingDrawnIsTheLetterbox) {
    const int size = GetParam();
    for (cv::Size source :
         {cv::Size(size, size), cv::Size(size, size / 2), cv::Size(91, 40), cv::Size(17, 300), cv::Size(300, 1)}) {
        const Photo photo{noise(source.width, source.height, 2), {box(1, 0.25F, 12, 1)}};
        const Made plain = Studio({photo}, {}, size).make(0, 0);
        const Made augmented = Studio({photo}, enabled(), size).make(0, 0);

        const double scale = double(size) / std::max(source.width, source.height);
        const cv::Size resized(std::max(1, int(std::lround(source.width * scale))),
                               std::max(1, int(std::lround(source.height * scale))));
        cv::Mat expected;
        cv::resize(photo.pixels, expected, resized, 0, 0, cv::INTER_LINEAR);
        const int left = int(std::lround((size - resized.width) / 2.0 - 0.1));
        const int right = int(std::lround((size - resized.width) / 2.0 + 0.1));
        const int top = int(std::lround((size - resized.height) / 2.0 - 0.1));
        const int bottom = int(std::lround((size - resized.height) / 2.0 + 0.1));
        cv::copyMakeBorder(expected, expected, top, bottom, left, right, cv::BORDER_CONSTANT, cv::Scalar::all(114));
        EXPECT_TRUE(same_pixels(plain.pixels, expected)) << source;
        EXPECT_TRUE(same_pixels(augmented.pixels, expected)) << source;

        const Letterbox& letterbox = plain.placement.letterbox;
        EXPECT_FLOAT_EQ(letterbox.scale, float(scale));
        EXPECT_EQ(letterbox.pad_left, left);
        EXPECT_EQ(letterbox.pad_top, top);
        EXPECT_EQ(letterbox.source_width, unsigned(source.width));
        EXPECT_EQ(letterbox.source_height, unsigned(source.height));
        EXPECT_EQ(augmented.placement.letterbox, (Letterbox{1, 0, 0, unsigned(source.width), unsigned(source.height)}));
        ASSERT_EQ(plain.boxes.size(), 1u) << source;
        EXPECT_NEAR(plain.boxes[0].x1, 1 * scale + left, 1e-4);
        EXPECT_NEAR(plain.boxes[0].y1, 0.25 * scale + top, 1e-4);
        EXPECT_NEAR(plain.boxes[0].x2, 12 * scale + left, 1e-4);
        EXPECT_NEAR(plain.boxes[0].y2, 1 * scale + top, 1e-4);
    }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Exactly, testing::Values(64, 57));

// ---- Rectangles

/// The middle of what the square shows, where both place a sample alike.
TEST(Rectangles, AreTheMiddleOfTheSquareLetterbox) {
    for (const auto& [width, height] : {std::pair{100, 50}, {50, 100}, {64, 32}, {300, 148}}) {
        Photo photo{noise(width, height, 5), {box(3, 4, 40, 30), box(10, 10, 20, 31)}};
        const Studio studio({photo}, {}, 64);
        const Made square = studio.make(0, 0);
        const bool is_wide = width > height;
        const Canvas canvas{is_wide ? 64U : 32U, is_wide ? 32U : 64U, {64, 64}};
        const Made made = studio.make_on(canvas, 0, 0);
        const cv::Rect middle(is_wide ? 0 : 16, is_wide ? 16 : 0, made.pixels.cols, made.pixels.rows);
        EXPECT_TRUE(same_pixels(made.pixels, square.pixels(middle))) << width << "x" << height;
        ASSERT_EQ(made.boxes.size(), 2u);
        for (std::size_t i = 0; i < 2; ++i) {
            EXPECT_NEAR(made.boxes[i].x1, square.boxes[i].x1 - static_cast<float>(middle.x), 1e-5);
            EXPECT_NEAR(made.boxes[i].y1, square.boxes[i].y1 - static_cast<float>(middle.y), 1e-5);
            EXPECT_NEAR(made.boxes[i].x2, square.boxes[i].x2 - static_cast<float>(middle.x), 1e-5);
            EXPECT_NEAR(made.boxes[i].y2, square.boxes[i].y2 - static_cast<float>(middle.y), 1e-5);
        }
        EXPECT_EQ(made.placement.letterbox.scale, square.placement.letterbox.scale);
        EXPECT_EQ(made.placement.letterbox.pad_left,
                  square.placement.letterbox.pad_left - static_cast<float>(middle.x));
        EXPECT_EQ(made.placement.letterbox.pad_top, square.placement.letterbox.pad_top - static_cast<float>(middle.y));
    }
}

TEST(Rectangles, HoldASampleOfThePublishedSizeInTheirMiddle) {
    const ScalingOptions options{
        .rule = ScalingRule::published, .short_side = 64, .long_side = 128, .multiple = 32, .megapixels = 0};
    for (const auto& [width, height] : {std::pair{100, 53}, {53, 100}, {64, 64}, {500, 40}, {31, 37}}) {
        const Photo photo{noise(width, height, 6), {box(0, 0, width, height)}};
        const ImageSize size{static_cast<std::uint32_t>(width), static_cast<std::uint32_t>(height)};
        const Canvas canvas = Canvas::of_sample(size, options);
        const Made made = Studio({photo}, {}, 64).make_on(canvas, 0, 0);

        const double scale = std::min(64.0 / std::min(width, height), 128.0 / std::max(width, height));
        cv::Mat small;
        cv::resize(photo.pixels, small,
                   {static_cast<int>(std::lround(width * scale)), static_cast<int>(std::lround(height * scale))});
        const cv::Rect place((made.pixels.cols - small.cols) / 2, (made.pixels.rows - small.rows) / 2, small.cols,
                             small.rows);
        cv::Mat expected(made.pixels.size(), CV_8UC3, cv::Scalar::all(114));
        small.copyTo(expected(place));
        EXPECT_TRUE(same_pixels(made.pixels, expected)) << width << "x" << height;
        ASSERT_EQ(made.boxes.size(), 1u);
        EXPECT_NEAR(made.boxes[0].x1, place.x, 0.51);
        EXPECT_NEAR(made.boxes[0].y2, place.y + place.height, 0.51);
    }
}

TEST(Rectangles, FlipsAreMirrors) {
    const Photo photo{noise(90, 50, 7), {}};
    const Canvas canvas{96, 64, {64, 96}};
    const Made plain = Studio({photo}, {}, 64).make_on(canvas, 0, 0);
    for (const int direction : {0, 1}) {  // of cv::flip: around x, around y
        const Studio studio(
            {photo},
            enabled([&](AugmentationOptions& o) { (direction == 1 ? o.flip_horizontal : o.flip_vertical) = 1; }), 64);
        cv::Mat expected;
        cv::flip(plain.pixels, expected, direction);
        EXPECT_TRUE(same_pixels(studio.make_on(canvas, 0, 0).pixels, expected)) << direction;
    }
}

TEST(Boxes, CrowdDifficultAndEmptyOnesAreLeftOut) {
    const Photo photo{noise(40, 40, 1),
                      {box(1, 1, 20, 20, 0, box_crowd), box(1, 1, 20, 20, 1, box_difficult), box(5, 5, 5, 20, 2),
                       box(1, 1, 20, 20, 3)}};
    for (const AugmentationOptions& options : {AugmentationOptions{}, enabled()}) {
        const Made made = Studio({photo}, options, 40).make(0, 0);
        ASSERT_EQ(made.boxes.size(), 1u);
        EXPECT_EQ(made.boxes[0].class_index, 3);
    }
}

TEST(Hsv, EqualsThePlainConversionOfTheWholeImage) {
    for (int width : {1, 7, 64, 101}) {
        const cv::Mat image = noise(width, 53, width);
        for (const cv::Vec3d& gains :
             {cv::Vec3d(1, 1, 1), cv::Vec3d(1.015, 1.7, 0.6), cv::Vec3d(0.3, 0, 1.4), cv::Vec3d(1.9, 0.4, 2)}) {
            cv::Mat expected;
            cv::cvtColor(image, expected, cv::COLOR_RGB2HSV);
            for (std::size_t i = 0; i < expected.total(); ++i) {
                auto& pixel = expected.at<cv::Vec3b>(static_cast<int>(i) / width, static_cast<int>(i) % width);
                pixel[0] = static_cast<std::uint8_t>(static_cast<int>(std::round(pixel[0] * gains[0])) % 180);
                for (int c : {1, 2}) {
                    pixel[c] = static_cast<std::uint8_t>(std::min(255.0, std::nearbyint(pixel[c] * gains[c])));
                }
            }
            cv::cvtColor(expected, expected, cv::COLOR_HSV2RGB);
            cv::Mat made = image.clone();
            scale_hsv({made.data, made.total() * 3}, width, gains[0], gains[1], gains[2]);
            EXPECT_TRUE(same_pixels(made, expected)) << width << " " << gains;
        }
    }
}

TEST(Hsv, GainsAreDrawnFromTheirWholeRangeAroundOne) {
    const Photo gray{cv::Mat(8, 8, CV_8UC3, cv::Scalar::all(100)), {}};
    const Studio studio({gray}, enabled([](auto& o) { o.hsv_value = 0.4; }), 8);
    int least = 255, greatest = 0;
    for (std::uint64_t epoch = 0; epoch < 300; ++epoch) {
        const auto pixel = studio.make(epoch, 0).pixels.at<cv::Vec3b>(0, 0);
        EXPECT_TRUE(pixel[0] == pixel[1] && pixel[1] == pixel[2]) << pixel;
        least = std::min<int>(least, pixel[0]);
        greatest = std::max<int>(greatest, pixel[0]);
    }
    EXPECT_GE(least, 60);
    EXPECT_LE(least, 62);
    EXPECT_GE(greatest, 138);
    EXPECT_LE(greatest, 140);
}

TEST(Contrast, StretchesAndShrinksAroundTheMeanGray) {
    // Mean gray (0.299 * 40 + 0.587 * 120 + 0.114 * 200 + 60) / 2 = 82.6, rounded to 83.
    const std::vector<std::uint8_t> image{40, 120, 200, 60, 60, 60};
    const auto scaled = [&](double gain) {
        std::vector<std::uint8_t> pixels = image;
        scale_contrast(pixels, gain);
        return pixels;
    };
    EXPECT_EQ(scaled(1), image);
    EXPECT_EQ(scaled(0), std::vector<std::uint8_t>(6, 83));
    EXPECT_EQ(scaled(1.5), (std::vector<std::uint8_t>{18, 138, 255, 48, 48, 48}));
    std::vector<std::uint8_t> none;
    scale_contrast(none, 0.5);
}

TEST(Contrast, IsDrawnFromItsWholeRangeAroundOne) {
    cv::Mat halves(8, 8, CV_8UC3, cv::Scalar::all(50));
    halves.colRange(4, 8).setTo(cv::Scalar::all(150));
    const Studio studio({Photo{halves, {}}}, enabled([](auto& o) { o.contrast = 0.5; }), 8);
    int least = 255, greatest = 0;
    for (std::uint64_t epoch = 0; epoch < 300; ++epoch) {
        const cv::Mat pixels = studio.make(epoch, 0).pixels;
        const int difference = std::abs(pixels.at<cv::Vec3b>(0, 0)[0] - pixels.at<cv::Vec3b>(0, 7)[0]);
        least = std::min(least, difference);
        greatest = std::max(greatest, difference);
    }
    EXPECT_GE(least, 50);
    EXPECT_LE(least, 52);
    EXPECT_GE(greatest, 148);
    EXPECT_LE(greatest, 150);
}

TEST(Classification, WithoutAugmentationIsResizedToTheSquare) {
    const Photo photo{noise(28, 20, 1), {}};
    const Made made = Studio({photo}, {}, 32, Task::classification).make(0, 0);
    cv::Mat expected;
    cv::resize(photo.pixels, expected, {32, 32}, 0, 0, cv::INTER_LINEAR);
    EXPECT_TRUE(same_pixels(made.pixels, expected));
    EXPECT_EQ(made.placement.letterbox, (Letterbox{1, 0, 0, 28, 20}));
}

TEST(Classification, CropsAWindowOfThePaddedImage) {
    const int size = 24, padding = 3;
    const Photo photo{noise(size, size, 1), {}};
    const Studio studio({photo}, enabled([](auto& o) {
                            o.crop_padding = padding;
                            o.flip_horizontal = 0.5;
                        }),
                        size, Task::classification);
    std::set<std::array<int, 3>> windows;
    for (std::uint64_t epoch = 0; epoch < 1000; ++epoch) {
        const Made made = studio.make(epoch, 0);
        int matches = 0;
        for (int flip : {0, 1}) {
            cv::Mat padded;
            cv::copyMakeBorder(photo.pixels, padded, padding, padding, padding, padding, cv::BORDER_CONSTANT, {});
            for (int y = 0; y <= 2 * padding; ++y) {
                for (int x = 0; x <= 2 * padding; ++x) {
                    cv::Mat window = padded(cv::Rect(x, y, size, size)).clone();
                    if (flip) {
                        cv::flip(window, window, 1);
                    }
                    if (same_pixels(made.pixels, window)) {
                        ++matches;
                        windows.insert({flip, y, x});
                    }
                }
            }
        }
        ASSERT_EQ(matches, 1) << "epoch " << epoch;
    }
    EXPECT_EQ(windows.size(), 98u);
}

/// Samples as they are, for windows to be cut out.
Made make_uncut(const cv::Mat& image, const AugmentationOptions& options, std::uint32_t size, std::uint64_t epoch) {
    Made made;
    made.pixels.create(static_cast<int>(size), static_cast<int>(size), CV_8UC3);
    const auto fetch = [&](std::uint64_t id) {
        FittedSample sample = fitted({image, {}}, id, size, Task::classification);
        const auto owner = std::make_shared<cv::Mat>(image);
        sample.width = static_cast<std::uint32_t>(image.cols);
        sample.height = static_cast<std::uint32_t>(image.rows);
        sample.pixels = {owner, owner->data};
        return sample;
    };
    const Augmenter augmenter(options, Task::classification, size, 1, never, 1);
    augmenter.make(epoch, 0, fetch, {made.pixels.data, made.pixels.total() * 3}, made.boxes);
    return made;
}

/// Red and green tell a pixel's column and row, so an output's gradient tells the window that was cut out.
TEST(Classification, ResizesAWindowOfTheStatedAreaAndAspect) {
    constexpr int size = 32, width = 120, height = 90;
    cv::Mat image(height, width, CV_8UC3);
    for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
            image.at<cv::Vec3b>(y, x) = {static_cast<std::uint8_t>(2 * x), static_cast<std::uint8_t>(2 * y), 0};
        }
    }
    const AugmentationOptions options = enabled([](auto& o) { o.resized_crop = 0.25; });
    double least_area = 1, greatest_area = 0, least_aspect = 9, greatest_aspect = 0, least_left = 999,
           greatest_right = 0;
    for (std::uint64_t epoch = 0; epoch < 400; ++epoch) {
        const cv::Mat pixels = make_uncut(image, options, size, epoch).pixels;
        // (along, step) of the window's first edge and extent, from two pixels far from its edges.
        const auto window = [&](auto value) {
            const double step = (value(28) - value(3)) / 2.0 / 25;
            return std::pair(value(3) / 2.0 + 0.5 - 3.5 * step, step * size);
        };
        const auto [left, across] = window([&](int i) { return static_cast<double>(pixels.at<cv::Vec3b>(16, i)[0]); });
        const auto [top, down] = window([&](int i) { return static_cast<double>(pixels.at<cv::Vec3b>(i, 16)[1]); });
        EXPECT_GT(left, -1.5) << epoch;
        EXPECT_GT(top, -1.5) << epoch;
        EXPECT_LT(left + across, width + 1.5) << epoch;
        EXPECT_LT(top + down, height + 1.5) << epoch;
        const double area = across * down / (width * height), aspect = across / down;
        least_area = std::min(least_area, area), greatest_area = std::max(greatest_area, area);
        least_aspect = std::min(least_aspect, aspect), greatest_aspect = std::max(greatest_aspect, aspect);
        least_left = std::min(least_left, left), greatest_right = std::max(greatest_right, left + across);
    }
    EXPECT_NEAR(least_area, 0.25, 0.03);
    EXPECT_GT(greatest_area, 0.9);
    EXPECT_NEAR(least_aspect, 0.75, 0.05);
    EXPECT_NEAR(greatest_aspect, 4.0 / 3, 0.06);
    EXPECT_LT(least_left, 3);
    EXPECT_GT(greatest_right, width - 3);
}

TEST(Classification, WithoutAWindowThatFitsTheWholeImageIsResized) {
    const cv::Mat image = noise(40, 36, 1);
    cv::Mat expected;
    cv::resize(image, expected, {24, 24}, 0, 0, cv::INTER_LINEAR);
    const cv::Mat got = make_uncut(image, enabled([](auto& o) { o.resized_crop = 1; }), 24, 0).pixels;
    cv::Mat difference;
    cv::absdiff(got, expected, difference);
    EXPECT_LE(cv::norm(difference, cv::NORM_INF), 2);  // weights of 8 bits against OpenCV's 11
}

TEST(Jitter, ScalesBrightnessAndSaturationAsThePlainFormula) {
    const cv::Mat image = noise(31, 17, 5);
    for (const double gain : {0.0, 0.4, 1.0, 1.7}) {
        cv::Mat brighter = image.clone(), stronger = image.clone();
        scale_brightness({brighter.data, brighter.total() * 3}, gain);
        scale_saturation({stronger.data, stronger.total() * 3}, gain);
        for (int y = 0; y < image.rows; ++y) {
            for (int x = 0; x < image.cols; ++x) {
                const auto pixel = image.at<cv::Vec3b>(y, x);
                const double gray = 0.299 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2];
                for (int c = 0; c < 3; ++c) {
                    EXPECT_NEAR(brighter.at<cv::Vec3b>(y, x)[c], std::clamp(pixel[c] * gain, 0.0, 255.0), 0.51);
                    EXPECT_NEAR(stronger.at<cv::Vec3b>(y, x)[c],
                                std::clamp(gray + (pixel[c] - gray) * gain, 0.0, 255.0), 0.51);
                }
            }
        }
    }
}

TEST(Jitter, TurnsHues) {
    const auto turned = [](cv::Vec3b colour, double turn) {
        cv::Mat image(2, 3, CV_8UC3, cv::Scalar(colour[0], colour[1], colour[2]));
        shift_hue({image.data, image.total() * 3}, 3, turn);
        return image.at<cv::Vec3b>(1, 2);
    };
    EXPECT_EQ(turned({255, 0, 0}, 1.0 / 3), cv::Vec3b(0, 255, 0));
    EXPECT_EQ(turned({255, 0, 0}, -1.0 / 3), cv::Vec3b(0, 0, 255));
    EXPECT_EQ(turned({0, 0, 200}, 0.5), cv::Vec3b(200, 200, 0));
    EXPECT_EQ(turned({90, 90, 90}, 0.3), cv::Vec3b(90, 90, 90));
}

TEST(Jitter, IsDrawnFromItsWholeRangeInEveryOrder) {
    // White is clipped where brightness comes first, so that contrast finds another mean: both orders are told apart.
    Photo photo{cv::Mat(8, 8, CV_8UC3, cv::Scalar::all(100)), {}};
    photo.pixels.row(0).setTo(cv::Scalar::all(250));
    const Studio brightness({photo}, enabled([](auto& o) { o.jitter_brightness = 0.5; }), 8, Task::classification);
    const Studio both({photo}, enabled([](auto& o) { o.jitter_brightness = o.contrast = 0.5; }), 8,
                      Task::classification);
    int least = 255, greatest = 0;
    for (std::uint64_t epoch = 0; epoch < 300; ++epoch) {
        const int value = brightness.make(epoch, 0).pixels.at<cv::Vec3b>(7, 7)[0];
        least = std::min(least, value), greatest = std::max(greatest, value);
    }
    EXPECT_NEAR(least, 50, 2);
    EXPECT_NEAR(greatest, 150, 2);

    int brightness_first = 0, contrast_first = 0;
    for (std::uint64_t epoch = 0; epoch < 200; ++epoch) {
        const cv::Mat pixels = both.make(epoch, 0).pixels;
        const int dark = pixels.at<cv::Vec3b>(7, 7)[0], bright = pixels.at<cv::Vec3b>(0, 0)[0];
        // Which gains, in which order, give these two? A search over both, 1 % apart.
        double best[2] = {1e9, 1e9};
        for (double b = 0.5; b <= 1.5; b += 0.01) {
            for (double c = 0.5; c <= 1.5; c += 0.01) {
                const auto clip = [](double v) { return std::clamp(std::round(v), 0.0, 255.0); };
                const auto contrast = [&](double v, double one, double other) {
                    const double mean = std::round((one + 7 * other) / 8);
                    return clip(mean + (v - mean) * c);
                };
                const double first = std::abs(contrast(clip(250 * b), clip(250 * b), clip(100 * b)) - bright) +
                                     std::abs(contrast(clip(100 * b), clip(250 * b), clip(100 * b)) - dark);
                const double second = std::abs(clip(contrast(250, 250, 100) * b) - bright) +
                                      std::abs(clip(contrast(100, 250, 100) * b) - dark);
                best[0] = std::min(best[0], first);
                best[1] = std::min(best[1], second);
            }
        }
        EXPECT_LE(std::min(best[0], best[1]), 3) << epoch;
        brightness_first += best[0] < best[1] - 3;
        contrast_first += best[1] < best[0] - 3;
    }
    EXPECT_GT(brightness_first, 0);
    EXPECT_GT(contrast_first, 0);
}

TEST(Classification, ErasesARectangleOfTheStatedSize) {
    const int size = 50;
    const Photo photo{cv::Mat(size, size, CV_8UC3, cv::Scalar::all(9)), {}};
    const Studio studio({photo}, enabled([](auto& o) { o.erase = 0.5; }), size, Task::classification);
    int erased_images = 0;
    for (std::uint64_t epoch = 0; epoch < 200; ++epoch) {
        const Made made = studio.make(epoch, 0);
        cv::Mat black;
        cv::inRange(made.pixels, cv::Scalar::all(0), cv::Scalar::all(0), black);
        const int area = cv::countNonZero(black);
        if (area == 0) {
            EXPECT_TRUE(same_pixels(made.pixels, photo.pixels));
            continue;
        }
        ++erased_images;
        const cv::Rect bounds = cv::boundingRect(black);
        EXPECT_EQ(bounds.area(), area) << "epoch " << epoch;
        EXPECT_NEAR(area, 0.175 * size * size, 0.175 * size * size);
        EXPECT_GT(bounds.width, 0.25 * bounds.height);
        EXPECT_LT(bounds.width, 4 * bounds.height);
    }
    EXPECT_GT(erased_images, 65);
    EXPECT_LT(erased_images, 135);
}

TEST(Augmenter, IsAPureFunctionOfSeedEpochAndId) {
    const std::vector<Photo> photos = several(9, [&](int i) {
        return Photo{noise(40, 40, i), {box(3, 3, 30, 30, i)}};
    });
    const AugmentationOptions options = enabled([](auto& o) {
        o.mosaic = 0.5;
        o.mixup = 0.3;
        o.degrees = 10;
        o.translate = 0.1;
        o.scale = 0.5;
        o.hsv_saturation = 0.7;
        o.flip_horizontal = o.quarter_turns = 0.5;
    });
    const Studio studio(photos, options, 40);
    const Studio same(photos, options, 40);
    const Studio other_seed(photos, options, 40, Task::detection, 2);
    int alike = 0;
    for (std::uint64_t id = 9; id-- > 0;) {
        const Made made = studio.make(3, id);
        const Made again = same.make(3, id);
        EXPECT_TRUE(same_pixels(made.pixels, again.pixels));
        EXPECT_EQ(made.boxes, again.boxes);
        EXPECT_EQ(made.fetched, again.fetched);
        alike += bool(same_pixels(made.pixels, studio.make(4, id).pixels));
        alike += bool(same_pixels(made.pixels, other_seed.make(3, id).pixels));
    }
    EXPECT_EQ(alike, 0);
}

TEST(Augmenter, NamesTheOptionThatIsImpossible) {
    struct Case {
        std::string option;
        Task task;
        std::function<void(AugmentationOptions&)> set;
    };
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const std::vector<Case> cases{
        {"mosaic", Task::detection, [](auto& o) { o.mosaic = 1.5; }},
        {"mixup", Task::detection, [](auto& o) { o.mixup = -0.1; }},
        {"degrees", Task::detection, [](auto& o) { o.degrees = 181; }},
        {"translate", Task::detection, [&](auto& o) { o.translate = nan; }},
        {"scale", Task::detection, [](auto& o) { o.scale = 1; }},
        {"shear", Task::detection, [](auto& o) { o.shear = 45; }},
        {"hsv_hue", Task::detection, [](auto& o) { o.hsv_hue = -1; }},
        {"hsv_saturation", Task::detection, [](auto& o) { o.hsv_saturation = 2; }},
        {"hsv_value", Task::detection, [&](auto& o) { o.hsv_value = nan; }},
        {"contrast", Task::detection, [&](auto& o) { o.contrast = 1.5; }},
        {"flip_horizontal", Task::detection, [](auto& o) { o.flip_horizontal = 2; }},
        {"flip_vertical", Task::detection, [](auto& o) { o.flip_vertical = -1; }},
        {"quarter_turns", Task::detection, [](auto& o) { o.quarter_turns = 3; }},
        {"erase", Task::classification, [](auto& o) { o.erase = 1.1; }},
        {"erase", Task::detection, [](auto& o) { o.erase = 0.5; }},
        {"crop_padding", Task::detection, [](auto& o) { o.crop_padding = 4; }},
        {"jitter_brightness", Task::detection, [](auto& o) { o.jitter_brightness = 1.1; }},
        {"jitter_saturation", Task::detection, [](auto& o) { o.jitter_saturation = -0.1; }},
        {"jitter_hue", Task::classification, [](auto& o) { o.jitter_hue = 0.6; }},
        {"resized_crop", Task::classification, [](auto& o) { o.resized_crop = 1.5; }},
        {"resized_crop", Task::detection, [](auto& o) { o.resized_crop = 0.5; }},
        {"crop_padding", Task::classification, [](auto& o) { o.resized_crop = 0.5, o.crop_padding = 4; }},
        {"mosaic", Task::classification, [](auto& o) { o.mosaic = 1; }},
        {"mixup", Task::classification, [](auto& o) { o.mixup = 1; }},
    };
    for (const Case& wrong : cases) {
        try {
            Augmenter(enabled(wrong.set), wrong.task, 32, 0, never, 1);
            ADD_FAILURE() << wrong.option << " was taken";
        } catch (const base::UsageError& error) {
            EXPECT_NE(std::string(error.what()).find("augmentation." + wrong.option + " = "), std::string::npos)
                << error.what();
        }
    }
}

}  // namespace
}  // namespace lockstep::sharding
