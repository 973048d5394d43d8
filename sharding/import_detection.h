#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/resources.h"
#include "sharding/dataset.h"
#include "sharding/image.h"
#include "sharding/tiling.h"

namespace lockstep::sharding {

/// One image file with its annotations, as an importer of some annotation format found it.
struct AnnotatedImage {
    std::filesystem::path file;
    std::int64_t image_id = 0;          ///< the source's; where tiles are cut, tiles are numbered instead
    std::optional<ImageSize> declared;  ///< what the annotation says of the image's size
    std::vector<Box> boxes;             ///< absolute pixels, half open; may be inverted, empty or outside
};

/// What an importer of an annotation format hands over.
struct DetectionSource {
    std::string description;  ///< for Dataset::source()
    std::vector<std::string> classes;
    std::vector<AnnotatedImage> images;
    DropCounts dropped_images, dropped_boxes;
};

/// What all importers of annotated images offer.
struct DetectionImportOptions {
    std::filesystem::path out;
    std::optional<TileOptions> tiles;  ///< none: whole images, their original bytes
    bool skip_bad_images = false;      ///< drop and count images that are missing or don't decode, instead of failing
    unsigned threads = base::usable_cores();
};

/// Writes the data set: every image is decoded once (so that a damaged one is found now and not in training); boxes are
/// clipped to it, and those of which nothing can be kept are dropped and counted while the image stays. Tiles are
/// stored as PNG. The result does not depend on the number of threads. Throws base::Error naming the file of a bad
/// image.
void import_detection(const DetectionSource& source, const DetectionImportOptions& options);

/// Index of a class name; throws base::Error that names `where` and the nearest known class.
std::int32_t class_index(const std::vector<std::string>& classes, const std::string& name, const std::string& where);

/// Class names from a command line: trimmed, none empty, none twice; else base::UsageError.
void check_class_names(const std::vector<std::string>& classes);

}  // namespace lockstep::sharding
