#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/segment_exchange.h"
#include "comm/topology.h"
#include "sharding/loader.h"

namespace lockstep::trainer {

/// The decoded samples that a rank's loader keeps in memory: of all ranks of its node together, or of this rank.
struct NodeCache {
    sharding::DecodedCache::Shape shape;             ///< without slots: none are kept
    std::shared_ptr<sharding::DecodedCache> shared;  ///< null: the loader has one of its own
    std::uint64_t own_bytes = 0;                     ///< what that may take
    std::size_t ranks = 1;                           ///< that share it
    std::string describe() const;
};

/// `options.decoded_cache_bytes` are those of a machine, and ranks that share none with each other share the figure.
/// `memory`: of this rank's node, null where there is no other rank to share with. Collective over the node's ranks;
/// all throw base::Error where the memory can't be had.
NodeCache make_node_cache(const sharding::Dataset& dataset, const sharding::LoaderOptions& options,
                          comm::SegmentExchange* memory, std::size_t ranks_of_machine);

}  // namespace lockstep::trainer
