#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/resources.h"
#include "sharding/dataset.h"

namespace lockstep::sharding {

/// What is in a data set, for a person: several lines.
std::string describe_text(const Dataset& set);
/// The same as one JSON object: {"images","boxes","classes","shards","bytes","dropped_images","dropped_boxes",...}.
std::string describe_json(const Dataset& set);

/// Boxes by COCO's bounds on the annotation's own area, in pixels of the stored image.
struct BoxSizes {
    std::uint64_t small = 0;   ///< under 32 x 32
    std::uint64_t medium = 0;  ///< up to 96 x 96
    std::uint64_t large = 0;
};
BoxSizes box_sizes(const Dataset& set);

/// A PNG of up to `count` samples, spread evenly over the set, with their boxes and classes drawn.
/// Throws base::Error where an image doesn't decode.
std::vector<std::uint8_t> draw_sheet(const Dataset& set, std::uint64_t count = 24);

/// Reads every stored byte of the data set in `directory` without trusting it: what lies between the tables, the
/// tables, the samples' checksums, the content hash, and whether every encoded image decodes to its declared size.
/// Returns the number of samples. Throws base::Error at the first that fails, naming file, table or sample, and reason.
std::uint64_t verify_directory(const std::filesystem::path& directory, unsigned threads = base::usable_cores());

/// The part of it that an opened data set allows.
void verify_all(const Dataset& set, unsigned threads = base::usable_cores());

}  // namespace lockstep::sharding
