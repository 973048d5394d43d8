#include "sharding/inspect.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
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
    text += base::str("\n",                                                                                     //
                      "on disk         ", base::human_bytes(static_cast<double>(set.bytes_on_disk())), " in ",  //
                      set.shard_count(), set.shard_count() == 1 ? " shard\n" : " shards\n",                     //
                      "content hash    ", hex(set.content_hash()), "\n",                                        //
                      "dropped images  ", drops_text(set.dropped_images()), "\n",                               //
                      "dropped boxes   ", drops_text(set.dropped_boxes()), "\n",                                //
                      "classes         ", set.classes().size(), "\n");
    const std::vector<std::uint64_t> counts = samples_by_class(set);
    for (std::size_t c = 0; c < counts.size(); ++c) {
        text += base::str("  ", c, "  ", set.classes()[c], "  ", counts[c], detection ? " boxes\n" : " images\n");
    }
    return text;
}

std::string describe_json(const Dataset& set) {
    const nlohmann::json description = {
        {"images", set.size()},
        {"boxes", set.box_count()},
        {"classes", set.classes()},
        {"shards", set.shard_count()},
        {"bytes", set.bytes_on_disk()},
        {"dropped_images", set.dropped_images()},
        {"dropped_boxes", set.dropped_boxes()},
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
