#include "sharding/import_detection.h"

#include <algorithm>
#include <future>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "sharding/dataset_writer.h"
#include "sharding/ordered_parallel.h"

namespace lockstep::sharding {
namespace {

/// Decoded by the first thread that asks; one that is damaged gives the same error to every thread.
std::shared_future<Image> decode_when_asked(const std::filesystem::path& file) {
    return std::async(std::launch::deferred, [file] { return decode_rgb(base::read_bytes(file), file.string()); });
}

/// A sample to be: a whole image, or a tile of one.
struct Part {
    std::size_t image;  // in DetectionSource::images
    std::optional<Rectangle> tile;
    std::vector<Box> boxes;
    std::shared_future<Image> pixels;  // of the whole image; tiles only
    std::string name;
};

/// What the first pass finds out about an image from its header.
struct Survey {
    ImageSize size;
    std::vector<Box> boxes;
    DropCounts dropped_boxes;
    std::string problem;  // not empty: the image can't be used
};

Survey survey(const AnnotatedImage& image, bool skip_bad_images) {
    Survey found;
    try {
        found.size = probe_size(base::MappedFile(image.file).bytes(), image.file.string());
    } catch (const base::Error& error) {
        if (!skip_bad_images) {
            throw;
        }
        found.problem = error.what();
        return found;
    }
    const bool is_square = found.size.width == found.size.height;
    if (!is_square && image.declared && *image.declared == ImageSize{found.size.height, found.size.width}) {
        found.problem = base::str(image.file.string(), " has ", found.size.width, " x ", found.size.height,
                                  " pixels, its annotation says ", image.declared->width, " x ", image.declared->height,
                                  ": the boxes were drawn on the photo before its EXIF turn; turn its pixels "
                                  "(exiftran -a, say) or draw them again");
        if (!skip_bad_images) {
            throw base::Error(found.problem);
        }
        return found;
    }
    for (Box box : image.boxes) {
        if (const char* reason = clip_to_image(box, found.size)) {
            ++found.dropped_boxes[reason];
        } else {
            found.boxes.push_back(box);
        }
    }
    return found;
}

struct Stored {
    ImageSize size;
    std::vector<std::uint8_t> bytes;
    std::string problem;
};

Stored store(const Part& part, const std::filesystem::path& file, bool skip_bad_images) {
    try {
        if (part.tile) {
            const auto& [x, y, width, height] = *part.tile;
            return {{width, height}, encode_png(crop(part.pixels.get(), x, y, width, height)), {}};
        }
        std::vector<std::uint8_t> bytes = base::read_bytes(file);
        const Image decoded = decode_rgb(bytes, file.string());
        return {{decoded.width, decoded.height}, std::move(bytes), {}};
    } catch (const base::Error& error) {
        if (!skip_bad_images) {
            throw;
        }
        return {{}, {}, error.what()};
    }
}

constexpr const char* bad_image = "unreadable";
constexpr const char* empty_tile = "tile_without_box";

/// First pass: sizes, boxes and tiles from the headers.
std::vector<Part> plan(const DetectionSource& source, const DetectionImportOptions& options, DatasetWriter& writer) {
    std::vector<Part> parts;
    std::uint64_t other_size = 0;
    const auto take = [&](std::uint64_t i, Survey&& found) {
        const AnnotatedImage& image = source.images[i];
        if (!found.problem.empty()) {
            base::log_warning("dropped: " + found.problem);
            writer.drop_image(bad_image);
            return;
        }
        if (image.declared && *image.declared != found.size && other_size++ == 0) {
            base::log_warning(base::str(image.file.string(), " has ", found.size.width, " x ", found.size.height,
                                        " pixels, its annotation says ", image.declared->width, " x ",
                                        image.declared->height, ": the image counts"));
        }
        for (const auto& [reason, count] : found.dropped_boxes) {
            writer.drop_box(reason, count);
        }
        const std::string name = image.file.filename().string();
        if (!options.tiles) {
            parts.push_back({i, std::nullopt, std::move(found.boxes), {}, name});
            return;
        }
        const std::shared_future<Image> pixels = decode_when_asked(image.file);
        for (const Rectangle& tile : tiles_of(found.size, *options.tiles)) {
            CutBoxes cut = cut_boxes(found.boxes, tile, options.tiles->min_visible);
            writer.drop_box(drop_reason::cut, cut.dropped);
            if (cut.kept.empty() && options.tiles->drop_empty) {
                writer.drop_image(empty_tile);
                continue;
            }
            parts.push_back({i, tile, std::move(cut.kept), pixels, base::str(name, "#", tile.x, ",", tile.y)});
        }
    };
    ordered_parallel(
        source.images.size(), options.threads,
        [&](std::uint64_t i) { return survey(source.images[i], options.skip_bad_images); }, take);
    if (other_size > 1) {
        base::log_warning(base::str(other_size, " images have another size than their annotation says"));
    }
    return parts;
}

}  // namespace

void import_detection(const DetectionSource& source, const DetectionImportOptions& options) {
    if (options.tiles) {
        tiles_of({1, 1}, *options.tiles);  // refuses contradictory options before any work
    }
    const DatasetDescription description{.task = Task::detection,
                                         .encoding = Encoding::encoded,
                                         .classes = source.classes,
                                         .source = source.description};
    write_dataset(options.out, description, [&](DatasetWriter& writer) {
        for (const auto& [reason, count] : source.dropped_images) {
            writer.drop_image(reason, count);
        }
        for (const auto& [reason, count] : source.dropped_boxes) {
            writer.drop_box(reason, count);
        }
        std::vector<Part> parts = plan(source, options, writer);
        base::Progress progress("import", options.tiles ? "tiles" : "images", parts.size());
        std::int64_t annotations = 0;
        std::optional<std::size_t> last_bad;
        const auto produce = [&](std::uint64_t i) {
            return store(parts[i], source.images[parts[i].image].file, options.skip_bad_images);
        };
        const auto consume = [&](std::uint64_t i, Stored&& stored) {
            Part& part = parts[i];
            if (!stored.problem.empty()) {
                if (last_bad != part.image) {
                    base::log_warning("dropped: " + stored.problem);
                    writer.drop_image(bad_image);
                    last_bad = part.image;
                }
                return;
            }
            if (part.tile) {
                for (Box& box : part.boxes) {
                    box.annotation_id = ++annotations;
                }
            }
            writer.add({.id = 0,
                        .image_id = part.tile ? static_cast<std::int64_t>(writer.size()) + 1
                                              : source.images[part.image].image_id,
                        .width = stored.size.width,
                        .height = stored.size.height,
                        .label = -1,
                        .bytes = stored.bytes,
                        .boxes = part.boxes},
                       part.name);
            part = {};  // releases the image with its last tile
            progress.update(i + 1);
        };
        ordered_parallel(parts.size(), options.threads, produce, consume);
        progress.finish();
    });
}

std::int32_t class_index(const std::vector<std::string>& classes, const std::string& name, const std::string& where) {
    const auto found = std::find(classes.begin(), classes.end(), name);
    if (found == classes.end()) {
        const std::string nearest = base::nearest_word(name, classes);
        throw base::Error(base::str(where, ": class '", name, "' is not among the given classes (",
                                    base::join(classes, ", "), ")",
                                    nearest.empty() ? "" : base::str("; did you mean '", nearest, "'?"),
                                    ": add it to --classes, or leave its boxes out with --skip-unknown-classes"));
    }
    return static_cast<std::int32_t>(found - classes.begin());
}

void check_class_names(const std::vector<std::string>& classes) {
    std::set<std::string> seen;
    for (const std::string& name : classes) {
        if (name.empty() || base::trim(name) != name) {
            throw base::UsageError(base::str("--classes has the empty or padded name '", name, "'"));
        }
        if (!seen.insert(name).second) {
            throw base::UsageError(base::str("--classes names '", name, "' twice"));
        }
    }
}

}  // namespace lockstep::sharding
