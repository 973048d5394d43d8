#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/resources.h"
#include "sharding/dataset.h"
#include "sharding/image.h"
#include "sharding/import_findings.h"
#include "sharding/tiling.h"

namespace lockstep::sharding {

/// One image file with what a source says of it.
struct SourceImage {
    std::filesystem::path file;
    std::string name;                   ///< kept in the data set; empty: the file's
    std::int64_t image_id = 0;          ///< the source's; where tiles are cut, tiles are numbered instead
    std::optional<ImageSize> declared;  ///< what the annotation says of the image's size
    std::vector<Box> boxes;             ///< half open; may be inverted, empty or outside
    bool in_fractions = false;          ///< boxes are in fractions of width and height instead of pixels
    std::int32_t label = -1;            ///< classification only
};

/// What the reader of a format hands over: all the rest is the same for every format.
struct ImportSource {
    Task task = Task::detection;
    std::string description;  ///< for Dataset::source()
    std::vector<std::string> classes;
    std::vector<std::int64_t> class_ids = {};  ///< the source's number of each class; empty where it has none
    std::vector<SourceImage> images;
};

/// What all importers of image files offer.
struct ImportOptions {
    std::filesystem::path out;
    std::optional<TileOptions> tiles;  ///< none: whole images
    Encoding encoding = Encoding::encoded;
    std::optional<std::uint32_t> side;  ///< resized so that the long side has this many pixels
    bool strict = false;                ///< an error is what otherwise is dropped, or repaired, and counted
    unsigned threads = base::usable_cores();
    std::uint64_t max_shard_bytes = std::uint64_t{512} << 20;
};

/// Writes the data set: every image is decoded once, so that a damaged one is found now and not in training; boxes are
/// clipped to it. What can't be kept is dropped and counted by reason, after what the reader put into `findings`.
/// `encoded` keeps the original bytes where the image is neither cut nor resized; else a JPEG stays a JPEG (quality 95)
/// and the others, and tiles, become PNG. The result does not depend on the number of threads, nor on being killed
/// and started again, which goes on where it stopped. Throws base::Error where nothing is left to store.
void import_images(const ImportSource& source, const ImportOptions& options, Findings& findings);

/// What an import would take, measured on a few of its images.
struct ImportForecast {
    struct Output {
        Encoding encoding;
        std::optional<std::uint32_t> side;
        double bytes = 0;
        double seconds = 0;         ///< to import with options.threads
        double read_bandwidth = 0;  ///< raw: bytes/s of storage under which reading it is slower than reading and
                                    ///< decoding the encoded bytes of the same size; 0 where raw never pays
    };
    std::uint64_t images = 0;    ///< samples that would be stored
    std::uint64_t measured = 0;  ///< images that were read, decoded and encoded for this
    double decode_seconds = 0;   ///< of one image on one core
    std::vector<Output> outputs;
};
/// Reads every header and decodes up to `measured` images, spread evenly; writes nothing. `side` of the options is the
/// resized output's; 640 where there is none.
ImportForecast forecast_import(const ImportSource& source, const ImportOptions& options, Findings& findings,
                               std::uint64_t measured = 64);
std::string forecast_text(const ImportForecast& forecast);
std::string forecast_json(const ImportForecast& forecast, const Findings& findings);

/// Index of a class name; throws base::Error that names `where` and the nearest known class.
std::int32_t class_index(const std::vector<std::string>& classes, const std::string& name, const std::string& where);

/// Class names from a command line: trimmed, none empty, none twice; else base::UsageError.
void check_class_names(const std::vector<std::string>& classes);

/// By its extension, in either case.
bool is_image_name(const std::filesystem::path& file);

/// Throws base::UsageError that says what the folder holds instead and which subcommand of `lockstep import` fits.
[[noreturn]] void refuse_source(const std::filesystem::path& source, const std::string& wanted);

/// Whether a relative name stays inside the folder that it is joined to.
bool stays_inside(const std::filesystem::path& relative);

}  // namespace lockstep::sharding
