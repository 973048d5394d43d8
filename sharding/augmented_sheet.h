#pragma once

#include <cstdint>
#include <vector>

#include "sharding/dataset.h"
#include "sharding/loader.h"

namespace lockstep::sharding {

/// A PNG of the first `count` images of the first epoch as a training with these options sees them, in the order of
/// `seed`, with their boxes and classes drawn. Errors as Loader::next().
std::vector<std::uint8_t> draw_augmented_sheet(const Dataset& set, LoaderOptions options, std::uint64_t count = 24);

}  // namespace lockstep::sharding
