#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "comm/segment_exchange.h"
#include "comm/shard_scope.h"
#include "comm/topology.h"
#include "sharding/dataset.h"
#include "trainer/checkpoint.h"
#include "trainer/recipe.h"

namespace lockstep::trainer {

/// One communicator for each purpose, so that operations of two purposes never meet.
struct Communicators {
    comm::Communicator& gradients;
    comm::Communicator& batch_norm;
    comm::Communicator& control;
    comm::Communicator* parameters = nullptr;  ///< gathers them; needed where gathers_parameters(recipe)
    /// Where each node holds a set of shards (optimizer.zero_scope): the ranks of this node, and those with this one's
    /// place on every node; `parameters` are this node's ranks then, too.
    comm::Communicator* shards = nullptr;
    comm::Communicator* replicas = nullptr;
    /// To share memory with the other ranks of this node; null: there are none, or they are to be kept apart.
    comm::SegmentExchange* node_memory = nullptr;

    comm::ShardScope shard_scope() const {
        return shards ? comm::ShardScope(gradients, *shards, *replicas) : comm::ShardScope(gradients);
    }
    /// Whether this rank's shard is also another's, who speaks for it.
    bool is_replica() const { return replicas && comm::index_of(replicas->rank()) > 0; }
};

/// Where a run lies, on storage that all ranks see, and what it continues from.
struct RunStart {
    std::filesystem::path directory;
    std::optional<std::filesystem::path> checkpoint = std::nullopt;  ///< none: from the beginning
    bool may_start_over = false;  ///< also where the directory holds a run that left no checkpoint
    /// So many steps are drawn in trace.json, after a few that warm up; the same on all ranks. 0: none.
    std::uint64_t profiled_steps = 0;
};

enum class Outcome : std::uint8_t { finished, stopped_at_checkpoint };

/// Synchronous data-parallel training of one recipe: the same code for one rank and for many. Collective: every rank
/// makes one with the same recipe and calls run().
class Trainer {
  public:
    /// Throws base::Error or base::UsageError before anything is written: recipe, data sets and checkpoint are checked
    /// first, and that all ranks read the same ones. Nothing of communication is left to be chosen
    /// (choose_communication).
    Trainer(Recipe recipe, const RunStart& start, Communicators communicators, comm::Topology topology);
    ~Trainer();

    /// Trains to the end of the recipe, or to the end of the step in which SIGTERM or SIGUSR1 reached any rank.
    Outcome run();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace lockstep::trainer
