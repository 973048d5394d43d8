#include "sharding/import_composed.h"

#include <algorithm>
#include <array>
#include <opencv2/core.hpp>
#include <opencv2/imgproc.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/random.h"
#include "base/text.h"
#include "sharding/dataset_writer.h"
#include "sharding/import_images.h"
#include "sharding/ordered_parallel.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;

/// Article pixels darker than this are background: they neither show nor count for the box.
constexpr std::uint8_t visible_from = 24;
/// Tries to find a free place for an article before it is left out.
constexpr int placement_attempts = 20;

cv::Mat view(const Image& image) {
    return {static_cast<int>(image.height), static_cast<int>(image.width), CV_8UC3,
            const_cast<std::uint8_t*>(image.pixels.data())};
}

/// A random rectangle of a random photo, of the scene's shape, from its size to twice that, scaled to the scene.
Image random_background(const std::vector<Image>& photos, ImageSize size, base::Random& random) {
    const Image& photo = photos[random.below(photos.size())];
    const auto widest = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(photo.width, std::uint64_t{photo.height} * size.width / size.height));
    const std::uint32_t least = std::min(size.width, widest);
    const std::uint32_t most = std::min(2 * size.width, widest);
    const auto width = static_cast<std::uint32_t>(least + random.below(most - least + 1));
    const auto height =
        std::max<std::uint32_t>(1, static_cast<std::uint32_t>(std::uint64_t{width} * size.height / size.width));
    const auto x = static_cast<int>(random.below(photo.width - width + 1));
    const auto y = static_cast<int>(random.below(photo.height - height + 1));
    Image background = Image::blank(size.width, size.height);
    cv::Mat to = view(background);
    cv::resize(view(photo)(cv::Rect(x, y, static_cast<int>(width), static_cast<int>(height))), to, to.size(), 0, 0,
               width >= size.width ? cv::INTER_AREA : cv::INTER_LINEAR);
    return background;
}

/// Square, or of a random shape, upright or lying; with numbers of its own, so that squares have all others as before.
ImageSize random_size(const ComposedOptions& options, std::uint64_t split, std::uint64_t index) {
    if (options.longest <= options.size) {
        return {options.size, options.size};
    }
    constexpr std::uint64_t of_sizes = 2;
    base::Random random(options.seed, base::RandomPurpose::composition, of_sizes + split, index);
    const auto longer = static_cast<std::uint32_t>(options.size + random.below(options.longest - options.size + 1));
    return random.coin(0.5) ? ImageSize{options.size, longer} : ImageSize{longer, options.size};
}

/// Smallest rectangle around the visible pixels; nothing where none is visible.
std::optional<cv::Rect> visible_part(const cv::Mat& article) {
    const cv::Rect box = cv::boundingRect(article >= visible_from);
    return box.empty() ? std::nullopt : std::optional(box);
}

using Colour = std::array<double, 3>;

/// What belongs to the article: 255 for its visible pixels and for dark cloth that these enclose, 0 outside and in
/// openings, such as that under a bag's handle. Dark cloth is never black all over, and an opening is.
cv::Mat silhouette(const cv::Mat& article) {
    cv::Mat mask = article >= visible_from;
    cv::Mat regions;
    const int count = cv::connectedComponents(mask == 0, regions, 4);
    for (int region = 1; region < count; ++region) {
        const cv::Mat part = regions == region;
        const cv::Rect box = cv::boundingRect(part);
        const bool enclosed = box.x > 0 && box.y > 0 && box.br().x < mask.cols && box.br().y < mask.rows;
        constexpr double black = 0.5;
        if (enclosed && cv::mean(article, part)[0] > black) {
            mask.setTo(255, part);
        }
    }
    return mask;
}

/// The article covers the background, however dark it is; only its dim outline lets the background through.
void blend(const cv::Mat& article, const Colour& colour, int left, int top, Image& scene) {
    constexpr double opaque_from = 64;
    const cv::Mat mask = silhouette(article);
    cv::Mat inside;
    cv::erode(mask, inside, cv::Mat(), {-1, -1}, 1, cv::BORDER_CONSTANT, 0);
    for (int y = 0; y < article.rows; ++y) {
        std::uint8_t* to =
            scene.row(static_cast<std::uint32_t>(top + y)) + std::size_t{3} * static_cast<std::size_t>(left);
        for (int x = 0; x < article.cols; ++x) {
            const std::uint8_t value = article.at<std::uint8_t>(y, x);
            const double outline = mask.at<std::uint8_t>(y, x) == 0 ? 0 : std::min(1.0, value / opaque_from);
            const double alpha = inside.at<std::uint8_t>(y, x) == 0 ? outline : 1;
            for (const double part : colour) {
                *to = static_cast<std::uint8_t>((1 - alpha) * *to + alpha * part * value + 0.5);
                ++to;
            }
        }
    }
}

std::vector<Image> read_photos(const std::vector<fs::path>& sources, unsigned threads) {
    std::vector<fs::path> files;
    for (const fs::path& source : sources) {
        if (!fs::is_directory(source)) {
            files.push_back(source);
            continue;
        }
        std::vector<fs::path> inside;
        for (const fs::directory_entry& entry : fs::directory_iterator(source)) {
            std::string extension = entry.path().extension().string();
            std::transform(extension.begin(), extension.end(), extension.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
            if (extension == ".jpg" || extension == ".jpeg" || extension == ".png") {
                inside.push_back(entry.path());
            }
        }
        if (inside.empty()) {
            throw base::Error(base::str(source.string(), ": no .jpg or .png photo in this folder"));
        }
        std::sort(inside.begin(), inside.end());
        files.insert(files.end(), inside.begin(), inside.end());
    }
    // They are kept decoded: a crop of any of them may be the next background.
    constexpr std::uint64_t budget = std::uint64_t{4} << 30;
    std::uint64_t bytes = 0;
    for (const fs::path& file : files) {
        const ImageSize size = probe_size(base::MappedFile(file).bytes(), file.string());
        bytes += std::uint64_t{3} * size.width * size.height;
        if (bytes > budget) {
            throw base::UsageError(base::str("the background photos take more than ", base::human_bytes(budget),
                                             " decoded; some hundred of them are enough: give fewer with --photos"));
        }
    }
    std::vector<Image> photos;
    ordered_parallel(
        files.size(), threads,
        [&](std::uint64_t i) { return decode_rgb(base::read_bytes(files[i]), files[i].string()); },
        [&](std::uint64_t, Image&& photo) { photos.push_back(std::move(photo)); });
    return photos;
}

void check(const ComposedOptions& options) {
    if (options.images == 0) {
        throw base::UsageError("0 scenes are asked for: give a positive --images");
    }
    if (options.photos.empty()) {
        throw base::UsageError("no photo is given: name files or folders with --photos");
    }
    if (options.smallest == 0 || options.smallest > options.largest || options.largest > options.size) {
        throw base::UsageError(base::str("articles of ", options.smallest, " to ", options.largest,
                                         " pixels in scenes of ", options.size,
                                         ": it must be 0 < smallest <= largest <= size"));
    }
    if (options.most_articles == 0) {
        throw base::UsageError("scenes of 0 articles have nothing to find: give a positive --most-articles");
    }
    if (options.fewest_articles == 0 || options.fewest_articles > options.most_articles) {
        throw base::UsageError(base::str("--fewest-articles ", options.fewest_articles,
                                         ": it must be at least 1 and at most --most-articles ",
                                         options.most_articles));
    }
    if (options.longest != 0 && options.longest < options.size) {
        throw base::UsageError(base::str("--longest ", options.longest, " is below --size ", options.size,
                                         ", which is a scene's short side; give more, or leave it out for squares"));
    }
    if (std::uint64_t{options.size} * std::max(options.size, options.longest) > max_image_pixels) {
        throw base::UsageError(base::str("scenes of ", options.size, " pixels are too large"));
    }
    check_class_names(options.classes);
}

}  // namespace

Scene compose_scene(const IdxSet& articles, const std::vector<Image>& photos, const ComposedOptions& options,
                    std::uint64_t index) {
    const std::uint64_t split = options.split == "train" ? 0 : 1;
    base::Random random(options.seed, base::RandomPurpose::composition, split, index);
    const ImageSize size = random_size(options, split, index);
    Scene scene{.image = random_background(photos, size, random), .boxes = {}};
    std::vector<cv::Rect> taken;
    const std::uint64_t count =
        options.fewest_articles + random.below(std::uint64_t{options.most_articles} - options.fewest_articles + 1);
    for (std::uint64_t i = 0; i < count; ++i) {
        const std::size_t chosen = random.below(articles.size());
        const auto side = static_cast<int>(options.smallest + random.below(options.largest - options.smallest + 1));
        const cv::Mat original(static_cast<int>(articles.height), static_cast<int>(articles.width), CV_8U,
                               const_cast<std::uint8_t*>(articles.image(chosen).data()));
        cv::Mat scaled;
        cv::resize(original, scaled, {side, side}, 0, 0,
                   side < static_cast<int>(articles.width) ? cv::INTER_AREA : cv::INTER_LINEAR);
        Colour colour{1, 1, 1};
        if (options.tint) {
            std::generate(colour.begin(), colour.end(), [&] { return random.uniform(0.3, 1); });
        }
        const std::optional<cv::Rect> part = visible_part(scaled);
        for (int attempt = 0; part && attempt < placement_attempts; ++attempt) {
            const cv::Rect place(
                static_cast<int>(random.below(size.width - static_cast<std::uint32_t>(part->width) + 1)),
                static_cast<int>(random.below(size.height - static_cast<std::uint32_t>(part->height) + 1)), part->width,
                part->height);
            if (std::any_of(taken.begin(), taken.end(),
                            [&](const cv::Rect& other) { return !(place & other).empty(); })) {
                continue;
            }
            taken.push_back(place);
            blend(scaled(*part), colour, place.x, place.y, scene.image);
            scene.boxes.push_back({.x1 = static_cast<float>(place.x),
                                   .y1 = static_cast<float>(place.y),
                                   .x2 = static_cast<float>(place.x + place.width),
                                   .y2 = static_cast<float>(place.y + place.height),
                                   .area = static_cast<float>(place.area()),
                                   .class_index = articles.labels[chosen],
                                   .flags = 0,
                                   .annotation_id = 0});
            break;
        }
    }
    return scene;
}

void import_composed(const ComposedOptions& options) {
    check(options);
    const IdxSet articles = read_idx(options.articles, options.split);
    const std::vector<Image> photos = read_photos(options.photos, options.threads);
    const unsigned highest = *std::max_element(articles.labels.begin(), articles.labels.end());
    std::vector<std::string> classes = options.classes;
    for (unsigned label = 0; options.classes.empty() && label <= highest; ++label) {
        classes.push_back(std::to_string(label));
    }
    if (highest >= classes.size()) {
        throw base::Error(base::str(options.articles.string(), ": a label of ", options.split, " is ", highest,
                                    ", and ", classes.size(), " classes are given: name them all with --classes"));
    }
    const DatasetDescription description{
        .task = Task::detection,
        .encoding = options.raw ? Encoding::raw : Encoding::encoded,
        .classes = classes,
        .source = base::str("composed scenes, not real ones: articles of ", options.articles.string(), " (",
                            options.split, ") on crops of ", photos.size(), " photos, seed ", options.seed)};
    write_dataset(options.out, description, [&](DatasetWriter& writer) {
        base::Progress progress("compose", "scenes", options.images);
        struct Composed {
            ImageSize size;
            std::vector<std::uint8_t> bytes;
            std::vector<Box> boxes;
        };
        const auto produce = [&](std::uint64_t i) -> Composed {
            Scene scene = compose_scene(articles, photos, options, i);
            const ImageSize size{scene.image.width, scene.image.height};
            return {size, options.raw ? std::move(scene.image.pixels) : encode_jpeg(scene.image, 95),
                    std::move(scene.boxes)};
        };
        std::int64_t annotations = 0;
        const auto consume = [&](std::uint64_t i, Composed&& scene) {
            for (Box& box : scene.boxes) {
                box.annotation_id = ++annotations;
            }
            writer.add({.id = 0,
                        .image_id = static_cast<std::int64_t>(i) + 1,
                        .width = scene.size.width,
                        .height = scene.size.height,
                        .label = -1,
                        .bytes = scene.bytes,
                        .boxes = scene.boxes},
                       base::str("composed#", i));
            progress.update(i + 1);
        };
        ordered_parallel(options.images, options.threads, produce, consume);
        progress.finish();
    });
}

}  // namespace lockstep::sharding
