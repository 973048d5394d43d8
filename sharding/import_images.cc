#include "sharding/import_images.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cmath>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "sharding/dataset_writer.h"
#include "sharding/ordered_parallel.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;

/// Decoded by the first thread that asks; one that is damaged gives the same error to every thread.
std::shared_future<Image> decode_when_asked(const fs::path& file) {
    return std::async(std::launch::deferred, [file] { return decode_rgb(base::read_bytes(file), file.string()); });
}

/// A sample to be: a whole image, or a tile of one.
struct Part {
    std::size_t image;  // in ImportSource::images
    std::optional<Rectangle> tile;
    ImageSize size;  // as it would be stored without resizing
    std::vector<Box> boxes;
    std::shared_future<Image> pixels;  // of the whole image; tiles only
    std::string name;
    std::uint64_t file_bytes;
};

struct Finding {
    const Reason* reason;
    std::string where;
};

/// What the first pass finds out about an image from its header.
struct Survey {
    ImageSize size;
    std::vector<Box> boxes;
    std::uint64_t file_bytes = 0;
    std::vector<Finding> findings;
    bool is_usable = true;

    void refuse(const Reason& reason, const std::string& where) {
        findings.push_back({&reason, where});
        is_usable = false;
    }
};

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

bool names_another_kind(const fs::path& file, std::string_view extension) {
    const std::string named = lower(file.extension().string());
    const bool known = is_image_name(file);
    const bool same =
        named == extension || (named == ".jpeg" && extension == ".jpg") || (named == ".tiff" && extension == ".tif");
    return known && !same;
}

Survey survey(const SourceImage& image) {
    Survey found;
    const std::string name = image.file.string();
    std::error_code ignored;
    if (!fs::is_regular_file(image.file, ignored)) {
        found.refuse(reason::missing, name);
        return found;
    }
    try {
        const base::MappedFile mapped(image.file);
        found.file_bytes = mapped.bytes().size();
        found.size = probe_size(mapped.bytes(), name);
        const ImageTraits traits = probe_traits(mapped.bytes(), name);
        if (traits.has_16_bits) {
            found.findings.push_back({&reason::sixteen_bits, name});
        }
        if (traits.has_alpha) {
            found.findings.push_back({&reason::alpha, name});
        }
        if (names_another_kind(image.file, traits.extension)) {
            found.findings.push_back({&reason::wrong_extension, base::str(name, " is a ", traits.extension)});
        }
    } catch (const base::Error& error) {
        found.refuse(reason::unreadable, error.what());
        return found;
    }
    constexpr std::uint32_t small_side = 10;
    if (std::min(found.size.width, found.size.height) < small_side) {
        found.findings.push_back({&reason::tiny, name});
    }
    if (image.declared && *image.declared != found.size) {
        const std::string sizes =
            base::str(name, " has ", found.size.width, " x ", found.size.height, " pixels, its annotation says ",
                      image.declared->width, " x ", image.declared->height);
        if (*image.declared == ImageSize{found.size.height, found.size.width}) {
            found.refuse(reason::turned, sizes +
                                             ": turn its pixels as its EXIF tag says (exiftran -a, say) or draw "
                                             "the boxes again");
            return found;
        }
        found.findings.push_back({&reason::size_differs, sizes});
    }
    for (Box box : image.boxes) {
        if (image.in_fractions) {
            const auto width = static_cast<float>(found.size.width), height = static_cast<float>(found.size.height);
            box.x1 *= width;
            box.x2 *= width;
            box.y1 *= height;
            box.y2 *= height;
            box.area = (box.x2 - box.x1) * (box.y2 - box.y1);
        }
        const Box before = box;
        if (const Reason* reason = clip_to_image(box, found.size)) {
            found.findings.push_back({reason, base::str(name, ": box (", before.x1, ", ", before.y1, ", ", before.x2,
                                                        ", ", before.y2, ")")});
            continue;
        }
        if (box.x1 != before.x1 || box.y1 != before.y1 || box.x2 != before.x2 || box.y2 != before.y2) {
            found.findings.push_back({&reason::clipped, name});
        }
        found.boxes.push_back(box);
    }
    return found;
}

std::string name_of(const SourceImage& image) {
    return image.name.empty() ? image.file.filename().string() : image.name;
}

/// First pass: sizes, boxes and tiles from the headers.
std::vector<Part> plan(const ImportSource& source, const ImportOptions& options, Findings& findings) {
    if (options.tiles) {
        tiles_of({1, 1}, *options.tiles);  // refuses contradictory options before any work
    }
    if (options.side && (*options.side == 0 || *options.side > 16384)) {
        throw base::UsageError(base::str("--side ", *options.side, ": give 1 to 16384 pixels"));
    }
    std::vector<Part> parts;
    const auto take = [&](std::uint64_t i, Survey&& found) {
        for (const Finding& finding : found.findings) {
            findings.add(*finding.reason, finding.where);
        }
        if (!found.is_usable) {
            return;
        }
        const std::string name = name_of(source.images[i]);
        if (!options.tiles) {
            parts.push_back({i, std::nullopt, found.size, std::move(found.boxes), {}, name, found.file_bytes});
            return;
        }
        const std::shared_future<Image> pixels = decode_when_asked(source.images[i].file);
        for (const Rectangle& tile : tiles_of(found.size, *options.tiles)) {
            CutBoxes cut = cut_boxes(found.boxes, tile, options.tiles->min_visible);
            const std::string tile_name = base::str(name, "#", tile.x, ",", tile.y);
            if (cut.dropped > 0) {
                findings.add(reason::cut, tile_name, cut.dropped);
            }
            if (cut.kept.empty() && options.tiles->drop_empty) {
                findings.add(reason::tile_without_box, tile_name);
                continue;
            }
            parts.push_back(
                {i, tile, {tile.width, tile.height}, std::move(cut.kept), pixels, tile_name, found.file_bytes});
        }
    };
    ordered_parallel(
        source.images.size(), options.threads, [&](std::uint64_t i) { return survey(source.images[i]); }, take);
    return parts;
}

struct Stored {
    ImageSize size;
    std::vector<std::uint8_t> bytes;
    std::string problem;
};

Stored store(const Part& part, const fs::path& file, const ImportOptions& options) {
    try {
        const bool keeps_bytes = !part.tile && !options.side && options.encoding == Encoding::encoded;
        std::vector<std::uint8_t> original;
        Image image;
        if (part.tile) {
            const auto& [x, y, width, height] = *part.tile;
            image = crop(part.pixels.get(), x, y, width, height);
        } else {
            original = base::read_bytes(file);
            image = decode_rgb(original, file.string());
        }
        if (ImageSize{image.width, image.height} != part.size) {
            throw base::Error(base::str(file.string(), ": has changed since the import began"));
        }
        if (keeps_bytes) {
            return {part.size, std::move(original), {}};
        }
        if (options.side) {
            image = resize(image, fitted_size(part.size, *options.side));
        }
        const ImageSize size{image.width, image.height};
        if (options.encoding == Encoding::raw) {
            return {size, std::move(image.pixels), {}};
        }
        constexpr int quality = 95;
        const bool is_jpeg = !part.tile && probe_traits(original, file.string()).extension == ".jpg";
        return {size, is_jpeg ? encode_jpeg(image, quality) : encode_png(image), {}};
    } catch (const base::Error& error) {
        return {{}, {}, error.what()};
    }
}

/// To an image of another size; nothing is left of a box that ends up in less than a pixel's rounding at the edge.
std::vector<Box> resized(const std::vector<Box>& boxes, ImageSize from, ImageSize to) {
    if (from == to) {
        return boxes;
    }
    const float scale =
        static_cast<float>(std::max(to.width, to.height)) / static_cast<float>(std::max(from.width, from.height));
    std::vector<Box> scaled;
    for (Box box : boxes) {
        box.x1 *= scale;
        box.y1 *= scale;
        box.x2 *= scale;
        box.y2 *= scale;
        box.area *= scale * scale;
        if (!clip_to_image(box, to)) {
            scaled.push_back(box);
        }
    }
    return scaled;
}

/// What an import that goes on must have in common with the one that was killed.
std::uint64_t fingerprint_of(const ImportSource& source, const ImportOptions& options, const std::vector<Part>& parts) {
    base::Hash64 hash;
    hash.add(source.description).add(std::uint64_t{parts.size()}).add(options.max_shard_bytes);
    hash.add(static_cast<std::uint64_t>(options.encoding)).add(std::uint64_t{options.side.value_or(0)});
    hash.add(std::uint64_t{options.strict});
    for (const std::string& name : source.classes) {
        hash.add(name);
    }
    for (const Part& part : parts) {
        const fs::path& file = source.images[part.image].file;
        std::error_code ignored;
        const auto changed = fs::last_write_time(file, ignored).time_since_epoch().count();
        hash.add(part.name).add(file.string()).add(part.file_bytes).add(static_cast<std::uint64_t>(changed));
        for (const Box& box : part.boxes) {
            for (const float value : {box.x1, box.y1, box.x2, box.y2, box.area}) {
                hash.add(std::uint64_t{std::bit_cast<std::uint32_t>(value)});
            }
            hash.add(static_cast<std::uint64_t>(box.class_index)).add(std::uint64_t{box.flags});
        }
    }
    return hash.value();
}

DatasetDescription description_of(const ImportSource& source, const ImportOptions& options) {
    return {.task = source.task,
            .encoding = options.encoding,
            .classes = source.classes,
            .class_ids = source.class_ids,
            .source = source.description + (options.side ? base::str(", long side ", *options.side) : ""),
            .max_shard_bytes = options.max_shard_bytes};
}

}  // namespace

void import_images(const ImportSource& source, const ImportOptions& options, Findings& findings) {
    std::vector<Part> parts = plan(source, options, findings);
    write_dataset_resumably(options.out, description_of(source, options), [&](DatasetWriter& writer) {
        for (const auto& [reason, count] : findings.dropped_images()) {
            writer.drop_image(reason, count);
        }
        for (const auto& [reason, count] : findings.dropped_boxes()) {
            writer.drop_box(reason, count);
        }
        for (const auto& [reason, count] : findings.notes()) {
            writer.note(reason, count);
        }
        const std::uint64_t done = writer.resume(fingerprint_of(source, options, parts));
        if (options.encoding == Encoding::raw) {
            std::uint64_t bytes = 0;
            for (const Part& part : std::span(parts).subspan(done)) {
                const ImageSize size = options.side ? fitted_size(part.size, *options.side) : part.size;
                bytes += std::uint64_t{3} * size.width * size.height;
            }
            base::require_free_space(options.out, bytes, "the data set");
        }
        if (done > 0) {
            base::log_info(base::str("goes on after the ", done, " of ", parts.size(), " ",
                                     options.tiles ? "tiles" : "images", " that an import before this one finished"));
        }
        base::Progress progress("import", options.tiles ? "tiles" : "images", parts.size(), done);
        std::int64_t annotations = 0;
        // An image that can't be decoded is counted once, with its first tile, and maybe by an import before this one.
        std::size_t seen = done > 0 ? parts[done - 1].image : source.images.size();
        for (std::uint64_t i = 0; i < done; ++i) {
            annotations += static_cast<std::int64_t>(parts[i].boxes.size());
            parts[i] = {};
        }
        const auto produce = [&](std::uint64_t i) {
            return store(parts[done + i], source.images[parts[done + i].image].file, options);
        };
        const auto consume = [&](std::uint64_t i, Stored&& stored) {
            Part& part = parts[done + i];
            const SourceImage& image = source.images[part.image];
            // Numbered by the plan, so that a resumed import numbers alike.
            for (Box& box : part.boxes) {
                ++annotations;
                if (part.tile) {
                    box.annotation_id = annotations;
                }
            }
            if (!stored.problem.empty()) {
                if (seen != part.image) {
                    findings.add(reason::unreadable, stored.problem);
                    writer.drop_image(reason::unreadable.name);
                }
            } else {
                const std::vector<Box> boxes = resized(part.boxes, part.size, stored.size);
                if (const std::size_t lost = part.boxes.size() - boxes.size(); lost > 0) {
                    findings.add(reason::no_area, part.name, lost);
                    writer.drop_box(reason::no_area.name, lost);
                }
                const bool is_repeated =
                    writer.add({.id = 0,
                                .image_id = part.tile ? static_cast<std::int64_t>(writer.size()) + 1 : image.image_id,
                                .width = stored.size.width,
                                .height = stored.size.height,
                                .label = image.label,
                                .bytes = stored.bytes,
                                .boxes = boxes},
                               part.name, part.size);
                if (is_repeated && !part.tile) {
                    findings.add(reason::duplicate_content, part.name);
                    writer.note(reason::duplicate_content.name);
                }
            }
            seen = part.image;
            part = {};  // releases the image with its last tile
            writer.finished_parts(done + i + 1);
            progress.update(done + i + 1);
        };
        ordered_parallel(parts.size() - done, options.threads, produce, consume);
        progress.finish();
    });
}

ImportForecast forecast_import(const ImportSource& source, const ImportOptions& options, Findings& findings,
                               std::uint64_t measured) {
    const std::vector<Part> parts = plan(source, options, findings);
    ImportForecast forecast{
        .images = parts.size(), .measured = std::min<std::uint64_t>(measured, parts.size()), .outputs = {}};
    if (forecast.measured == 0) {
        throw base::Error("no image is left to store: there is nothing to predict");
    }
    constexpr std::uint32_t usual_side = 640;
    const std::uint32_t side = options.side.value_or(usual_side);
    forecast.outputs = {{Encoding::encoded, std::nullopt},
                        {Encoding::raw, std::nullopt},
                        {Encoding::encoded, side},
                        {Encoding::raw, side}};
    // Of the measured ones: bytes as they would be stored, seconds to make them, seconds to decode them again.
    std::array<double, 4> bytes{}, seconds{}, decoding{};
    for (std::uint64_t i = 0; i < forecast.measured; ++i) {
        const Part& part = parts[i * parts.size() / forecast.measured];
        for (std::size_t o = 0; o < forecast.outputs.size(); ++o) {
            ImportOptions output = options;
            output.encoding = forecast.outputs[o].encoding;
            output.side = forecast.outputs[o].side;
            const double begin = base::monotonic_seconds();
            const Stored stored = store(part, source.images[part.image].file, output);
            const double end = base::monotonic_seconds();
            if (!stored.problem.empty()) {
                findings.add(reason::unreadable, stored.problem);
                break;
            }
            bytes[o] += static_cast<double>(stored.bytes.size());
            seconds[o] += end - begin;
            if (output.encoding == Encoding::encoded) {
                decode_rgb(stored.bytes, part.name);
                decoding[o] += base::monotonic_seconds() - end;
            }
        }
    }
    const double factor = static_cast<double>(forecast.images) / static_cast<double>(forecast.measured);
    forecast.decode_seconds = decoding[0] / static_cast<double>(forecast.measured);
    for (std::size_t o = 0; o < forecast.outputs.size(); ++o) {
        ImportForecast::Output& output = forecast.outputs[o];
        output.bytes = bytes[o] * factor;
        output.seconds = seconds[o] * factor / options.threads;
        if (output.encoding == Encoding::raw) {
            const double more_bytes = bytes[o] - bytes[o - 1];
            const double saved_seconds = decoding[o - 1] / options.threads;
            output.read_bandwidth = more_bytes > 0 && saved_seconds > 0 ? more_bytes / saved_seconds : 0;
        }
    }
    return forecast;
}

namespace {

std::string output_name(const ImportForecast::Output& output) {
    return base::str(format::encoding_name(output.encoding), output.side ? base::str(", side ", *output.side) : "");
}

}  // namespace

std::string forecast_text(const ImportForecast& forecast) {
    std::string text = base::str("images          ", forecast.images, ", of which ", forecast.measured,
                                 " were read, decoded and encoded to predict this\ndecoding        ",
                                 base::fixed(1e3 * forecast.decode_seconds, 2), " ms an image on one core\n");
    for (const ImportForecast::Output& output : forecast.outputs) {
        std::string name = output_name(output);
        name.resize(std::max<std::size_t>(name.size(), 16), ' ');
        text += base::str(name, base::human_bytes(output.bytes), ", ", base::human_duration(output.seconds),
                          " to import\n");
        if (output.encoding == Encoding::raw && output.read_bandwidth > 0) {
            text += base::str("                pays where storage reads faster than ",
                              base::human_bytes(output.read_bandwidth),
                              "/s (or all of it stays in memory); on slower storage keep encoded\n");
        }
    }
    return text;
}

std::string forecast_json(const ImportForecast& forecast, const Findings& findings) {
    nlohmann::json outputs = nlohmann::json::array();
    for (const ImportForecast::Output& output : forecast.outputs) {
        nlohmann::json row = {{"encoding", format::encoding_name(output.encoding)},
                              {"side", nullptr},
                              {"bytes", output.bytes},
                              {"seconds", output.seconds}};
        if (output.side) {
            row["side"] = *output.side;
        }
        if (output.encoding == Encoding::raw) {
            row["raw_pays_above_bytes_per_second"] = output.read_bandwidth;
        }
        outputs.push_back(row);
    }
    return nlohmann::json{{"images", forecast.images},
                          {"measured", forecast.measured},
                          {"decode_seconds", forecast.decode_seconds},
                          {"outputs", outputs},
                          {"dropped_images", findings.dropped_images()},
                          {"dropped_boxes", findings.dropped_boxes()},
                          {"notes", findings.notes()}}
        .dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::int32_t class_index(const std::vector<std::string>& classes, const std::string& name, const std::string& where) {
    const auto found = std::find(classes.begin(), classes.end(), name);
    if (found == classes.end()) {
        const std::string nearest = base::nearest_word(name, classes);
        throw base::Error(base::str(where, ": class '", name, "' is not among the given classes (",
                                    base::join(classes, ", "), ")",
                                    nearest.empty() ? "" : base::str("; did you mean '", nearest, "'?"),
                                    ": add it to --classes, or leave it out with --skip-unknown-classes"));
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

bool is_image_name(const fs::path& file) {
    const std::string extension = lower(file.extension().string());
    constexpr std::array extensions{".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp"};
    return std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
}

bool stays_inside(const fs::path& relative) {
    return !relative.empty() && relative.is_relative() && relative.has_filename() &&
           std::find(relative.begin(), relative.end(), "..") == relative.end();
}

void refuse_source(const fs::path& source, const std::string& wanted) {
    if (!fs::exists(source)) {
        throw base::Error(base::str(source.string(), ": there is no such file or folder"));
    }
    std::uint64_t xml = 0, json = 0, idx = 0, yaml = 0, images = 0, folders_of_images = 0;
    const auto look_at = [&](const fs::path& file) {
        const std::string extension = lower(file.extension().string());
        xml += extension == ".xml";
        json += extension == ".json";
        yaml += extension == ".yaml" || extension == ".yml";
        idx += file.filename().string().find("-ubyte") != std::string::npos;
        images += is_image_name(file);
    };
    std::error_code ignored;
    if (fs::is_directory(source)) {
        for (const fs::directory_entry& entry : fs::directory_iterator(source, ignored)) {
            if (!entry.is_directory(ignored)) {
                look_at(entry.path());
                continue;
            }
            bool has_image = false;
            for (const fs::directory_entry& inner : fs::directory_iterator(entry.path(), ignored)) {
                has_image |= is_image_name(inner.path());
                xml += inner.path().extension() == ".xml";
                json += inner.path().extension() == ".json";
            }
            folders_of_images += has_image;
        }
    } else {
        look_at(source);
    }
    const std::string fits = yaml > 0                ? "yolo"
                             : xml > 0               ? "voc"
                             : json > 0              ? "coco"
                             : idx > 0               ? "idx"
                             : folders_of_images > 0 ? "imagefolder"
                                                     : "";
    std::vector<std::string> found;
    const auto say = [&](std::uint64_t count, const char* what) {
        if (count > 0) {
            found.push_back(base::str(count, " ", what));
        }
    };
    say(yaml, ".yaml");
    say(xml, ".xml");
    say(json, ".json");
    say(idx, "IDX files");
    say(images, "images");
    say(folders_of_images, "folders of images");
    throw base::UsageError(base::str(source.string(), ": ", wanted, "; found ",
                                     found.empty() ? "nothing that import knows" : base::join(found, ", "),
                                     fits.empty() ? std::string() : base::str(": try 'lockstep import ", fits, "'")));
}

}  // namespace lockstep::sharding
