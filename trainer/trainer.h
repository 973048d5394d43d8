#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "comm/communicator.h"
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
};

enum class Outcome : std::uint8_t { finished, stopped_at_checkpoint };

/// Synchronous data-parallel training of one recipe: the same code for one rank and for many. Collective: every rank
/// makes one with the same recipe and calls run().
class Trainer {
  public:
    /// `run` is the run's directory, on storage that all ranks see. With `resume_from` (a checkpoint) the run continues
    /// there. Throws base::Error or base::UsageError before anything is written: data sets and checkpoint are checked
    /// first.
    Trainer(Recipe recipe, const std::filesystem::path& run, const std::optional<std::filesystem::path>& resume_from,
            Communicators communicators, comm::Topology topology);
    ~Trainer();

    /// Trains to the end of the recipe, or to the end of the step in which SIGTERM or SIGUSR1 reached any rank.
    Outcome run();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace lockstep::trainer
