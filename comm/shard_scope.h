#pragma once

#include "comm/communicator.h"

namespace lockstep::comm {

/// Between which ranks a partitioned training is cut. Either all of them hold one set of shards between them, or those
/// of each node hold a set (the hierarchical variant: parameters and shards never cross the network, and a gradient
/// crosses it as a rank's shard, at the price of memory).
struct ShardScope {
    /// One set of shards, between all ranks.
    // NOLINTNEXTLINE(google-explicit-constructor): a communicator of all ranks is the usual scope
    ShardScope(Communicator& all_ranks) : all(all_ranks), shards(all_ranks) {}
    /// `inside`: the ranks of this node; `across`: the ranks with this one's place, on every node. All nodes have the
    /// same number of ranks.
    ShardScope(Communicator& all_ranks, Communicator& inside, Communicator& across)
        : all(all_ranks), shards(inside), replicas(&across) {}

    Communicator& all;                 ///< every rank of the training
    Communicator& shards;              ///< the ranks that hold one set of shards between them
    Communicator* replicas = nullptr;  ///< the ranks that hold this rank's shard, too; null: no other does
};

}  // namespace lockstep::comm
