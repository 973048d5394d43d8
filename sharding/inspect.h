#pragma once

#include <string>

#include "base/resources.h"
#include "sharding/dataset.h"

namespace lockstep::sharding {

/// What is in a data set, for a person: several lines.
std::string describe_text(const Dataset& set);
/// The same as one JSON object: {"images","boxes","classes","shards","bytes","dropped_images","dropped_boxes",...}.
std::string describe_json(const Dataset& set);

/// Reads every stored byte: checksums, the content hash, and whether every encoded image decodes to its declared size.
/// Throws base::Error naming shard and sample at the first that fails.
void verify_all(const Dataset& set, unsigned threads = base::usable_cores());

}  // namespace lockstep::sharding
