#include "sharding/inspect.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <opencv2/core.hpp>
#include <opencv2/imgproc.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "sharding/checksums.h"
#include "sharding/dataset_format.h"
#include "sharding/image.h"
#include "sharding/ordered_parallel.h"

namespace lockstep::sharding {
namespace {

std::vector<std::uint64_t> samples_by_class(const Dataset& set) {
    std::vector<std::uint64_t> counts(set.classes().size());
    for (std::uint64_t id = 0; id < set.size(); ++id) {
        const Sample sample = set.sample(id);
        if (set.task() == Task::classification) {
            ++counts[static_cast<std::size_t>(sample.label)];
        }
        for (const Box& box : sample.boxes) {
            ++counts[static_cast<std::size_t>(box.class_index)];
        }
    }
    return counts;
}

std::uint64_t images_without_boxes(const Dataset& set) {
    std::uint64_t count = 0;
    for (std::uint64_t id = 0; set.task() == Task::detection && id < set.size(); ++id) {
        count += set.sample(id).boxes.empty();
    }
    return count;
}

std::string hex(std::uint64_t value) {
    return base::str("0x", std::hex, value);
}

std::string drops_text(const DropCounts& drops) {
    std::vector<std::string> parts;
    for (const auto& [reason, count] : drops) {
        parts.push_back(base::str(reason, " ", count));
    }
    return parts.empty() ? "none" : base::join(parts, ", ");
}

}  // namespace

std::string describe_text(const Dataset& set) {
    const bool detection = set.task() == Task::detection;
    std::string text = base::str("data set        ", set.directory().string(), "\n",       //
                                 "source          ", set.source(), "\n",                   //
                                 "task            ", format::task_name(set.task()), ", ",  //
                                 format::encoding_name(set.encoding()), "\n",              //
                                 "images          ", set.size());
    if (detection) {
        text +=
            base::str(" (", images_without_boxes(set), " without a box)\n",  //
                      "boxes           ", set.box_count(), " (at most ", set.max_boxes_per_image(), " in an image)");
    }
    if (detection) {
        const auto [small, medium, large] = box_sizes(set);
        text += base::str("\nbox sizes       ", small, " small (under 32 x 32), ", medium, " medium, ", large,
                          " large (over 96 x 96)");
    }
    text += base::str("\n",                                                                                     //
                      "on disk         ", base::human_bytes(static_cast<double>(set.bytes_on_disk())), " in ",  //
                      set.shard_count(), set.shard_count() == 1 ? " shard\n" : " shards\n",                     //
                      "content hash    ", hex(set.content_hash()), "\n",                                        //
                      "dropped images  ", drops_text(set.dropped_images()), "\n",                               //
                      "dropped boxes   ", drops_text(set.dropped_boxes()), "\n",                                //
                      "noted           ", drops_text(set.notes()), "\n",                                        //
                      "classes         ", set.classes().size(), "\n");
    const std::vector<std::uint64_t> counts = samples_by_class(set);
    for (std::size_t c = 0; c < counts.size(); ++c) {
        text += base::str("  ", c, "  ", set.classes()[c], "  ", counts[c], detection ? " boxes\n" : " images\n");
    }
    return text;
}

std::string describe_json(const Dataset& set) {
    const auto [small, medium, large] = box_sizes(set);
    const nlohmann::json description = {
        {"images", set.size()},
        {"boxes", set.box_count()},
        {"classes", set.classes()},
        {"shards", set.shard_count()},
        {"bytes", set.bytes_on_disk()},
        {"dropped_images", set.dropped_images()},
        {"dropped_boxes", set.dropped_boxes()},
        {"notes", set.notes()},
        {"box_sizes", {{"small", small}, {"medium", medium}, {"large", large}}},
        {"task", format::task_name(set.task())},
        {"encoding", format::encoding_name(set.encoding())},
        {"source", set.source()},
        {"content_hash", hex(set.content_hash())},
        {"max_boxes_per_image", set.max_boxes_per_image()},
        {"images_without_boxes", images_without_boxes(set)},
        {"per_class", samples_by_class(set)},
    };
    // Names come from files of others and need not be valid UTF-8.
    return description.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

BoxSizes box_sizes(const Dataset& set) {
    constexpr float small_area = 32 * 32, medium_area = 96 * 96;
    BoxSizes sizes;
    for (std::uint64_t id = 0; id < set.size(); ++id) {
        for (const Box& box : set.sample(id).boxes) {
            ++(box.area < small_area ? sizes.small : box.area <= medium_area ? sizes.medium : sizes.large);
        }
    }
    return sizes;
}

std::vector<std::uint8_t> draw_sheet(const Dataset& set, std::uint64_t count) {
    constexpr std::uint32_t side = 240, columns = 6;
    count = std::min(count, set.size());
    const auto across = static_cast<std::uint32_t>(std::min<std::uint64_t>(count, columns));
    Image sheet = Image::blank(across * side, static_cast<std::uint32_t>((count + columns - 1) / columns) * side);
    const cv::Mat canvas(static_cast<int>(sheet.height), static_cast<int>(sheet.width), CV_8UC3, sheet.pixels.data());
    constexpr std::array<std::array<int, 3>, 6> colours{
        {{255, 80, 80}, {80, 220, 80}, {90, 150, 255}, {255, 200, 60}, {220, 110, 255}, {70, 220, 220}}};
    const auto colour_of = [&](std::int32_t class_index) {
        const auto& [red, green, blue] = colours[static_cast<std::size_t>(class_index) % colours.size()];
        return cv::Scalar(red, green, blue);
    };
    for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t id = i * set.size() / count;
        const Sample sample = set.sample(id);
        const std::string name = base::str(set.directory().string(), ": sample ", id, " (", set.file_name(id), ")");
        Image image = set.encoding() == Encoding::encoded
                          ? decode_rgb(sample.bytes, name)
                          : Image{sample.width, sample.height, {sample.bytes.begin(), sample.bytes.end()}};
        const double scale = double(side) / std::max(image.width, image.height);
        image = resize(image, fitted_size({image.width, image.height}, side));
        const cv::Point origin(static_cast<int>(i % columns * side), static_cast<int>(i / columns * side));
        const cv::Mat cell =
            canvas(cv::Rect(origin, cv::Size(static_cast<int>(image.width), static_cast<int>(image.height))));
        cv::Mat(cell.rows, cell.cols, CV_8UC3, image.pixels.data()).copyTo(cell);
        const auto label = [&](std::int32_t class_index, cv::Point at) {
            const std::string& text = set.classes()[static_cast<std::size_t>(class_index)];
            cv::putText(cell, text, at, cv::FONT_HERSHEY_SIMPLEX, 0.4, colour_of(class_index), 1, cv::LINE_AA);
        };
        constexpr int text_height = 11;
        for (const Box& box : sample.boxes) {
            const cv::Point first(cvRound(box.x1 * scale), cvRound(box.y1 * scale));
            const cv::Point last(cvRound(box.x2 * scale) - 1, cvRound(box.y2 * scale) - 1);
            cv::rectangle(cell, first, last, colour_of(box.class_index), 1);
            label(box.class_index, {first.x, std::max(first.y - 2, text_height)});
        }
        if (set.task() == Task::classification) {
            label(sample.label, {2, text_height});
        }
    }
    return encode_png(sheet);
}

std::uint64_t verify_directory(const std::filesystem::path& directory, unsigned threads) {
    if (!check_checksums(directory)) {
        base::log_warning(base::str(directory.string(), " has no ", format::checksum_file,
                                    ", as data sets of an earlier version: what lies between the tables can't be "
                                    "verified"));
    }
    const Dataset set = Dataset::open(directory);
    verify_all(set, threads);
    return set.size();
}

void verify_all(const Dataset& set, unsigned threads) {
    if (const std::uint64_t actual = set.compute_content_hash(); actual != set.content_hash()) {
        throw base::Error(base::str(set.directory().string(), ": the tables' content hash is ", hex(actual),
                                    " instead of ", hex(set.content_hash()),
                                    ": a table was changed; import the data again"));
    }
    base::Progress progress("verify", "images", set.size());
    const auto check = [&](std::uint64_t id) {
        set.verify(id);
        if (set.encoding() == Encoding::encoded) {
            const Sample sample = set.sample(id);
            const std::string name = base::str(set.directory().string(), ": sample ", id, " (", set.file_name(id), ")");
            const Image image = decode_rgb(sample.bytes, name);
            if (image.width != sample.width || image.height != sample.height) {
                throw base::Error(base::str(name, ": decodes to ", image.width, " x ", image.height,
                                            " pixels, the tables say ", sample.width, " x ", sample.height));
            }
        }
        return true;
    };
    ordered_parallel(set.size(), threads, check, [&](std::uint64_t id, bool) { progress.update(id + 1); });
    progress.finish();
}

}  // namespace lockstep::sharding
