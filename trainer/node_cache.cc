#include "trainer/node_cache.h"

#include "base/error.h"
#include "base/text.h"

namespace lockstep::trainer {

using base::str;

std::string NodeCache::describe() const {
    if (shape.slots == 0) {
        return "none";
    }
    return str(shape.holds_all() ? str("all ", shape.samples) : str("up to ", shape.slots, " of ", shape.samples),
               " images in ", base::human_bytes(static_cast<double>(shape.bytes())),
               shared ? str(", once for the ", ranks, " ranks of a node") : ", of each rank");
}

NodeCache make_node_cache(const sharding::Dataset& dataset, const sharding::LoaderOptions& options,
                          comm::SegmentExchange* memory, std::size_t ranks_of_machine) {
    NodeCache cache;
    cache.ranks = memory == nullptr ? 1 : memory->ranks();
    const std::uint64_t budget = options.decoded_cache_bytes * cache.ranks / ranks_of_machine;
    cache.shape = sharding::decoded_cache_shape(dataset, options, budget);
    cache.own_bytes = budget;
    if (cache.shape.slots == 0 || memory == nullptr) {
        return cache;
    }
    constexpr std::size_t page = 4096;  // each rank reserves its part
    const std::size_t pages = (cache.shape.bytes() + page - 1) / page;
    try {
        const comm::SharedSegment segment = memory->share((pages + cache.ranks - 1) / cache.ranks * page);
        cache.shared = std::make_shared<sharding::DecodedCache>(cache.shape, segment.owner());
    } catch (const base::Error& error) {
        throw base::Error(str(error.what(), " This memory would keep decoded images: data.cache_mib says how much"));
    }
    return cache;
}

}  // namespace lockstep::trainer
