#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/recipe.h"

namespace lockstep::trainer {

/// Where a run stands: everything before (epoch, step_in_epoch) is done.
struct Progress {
    std::uint64_t epoch = 0;
    std::uint64_t step_in_epoch = 0;
    std::uint64_t optimizer_steps = 0;
    double epoch_loss = 0;            ///< sum over the steps done in the epoch under way
    std::uint64_t skipped_steps = 0;  ///< among optimizer_steps: without effect, since not finite
    double best_fitness = -1;         ///< of all evaluations; -1: none yet
    std::uint64_t best_step = 0;
    std::uint64_t evaluations_since_best = 0;
    double plateau_factor = 1;  ///< of the rate, by schedule "plateau"
    bool operator==(const Progress&) const = default;
};

/// What a checkpoint holds. Tensors are named "parameters/NAME", "buffers/NAME", "average/NAME",
/// "average-buffers/NAME" and "STATE/NAME" (a state array of the update rule), in the logical (row-major) order of
/// their shape, whatever the memory format in use.
struct CheckpointContent {
    std::string model;
    std::vector<std::string> classes;
    Progress progress;
    std::uint64_t training_hash = 0;                  ///< of the recipe
    std::uint64_t data_hash = 0;                      ///< content hash of the training data set
    std::uint64_t ledger_count = 0, ledger_hash = 0;  ///< of the epoch under way, over all ranks
    std::string recipe;                               ///< resolved, as TOML
    std::map<std::string, at::Tensor> tensors;
    std::uint32_t checksum = 0;  ///< read only: of the manifest, which holds those of all files
};

/// A stretch of a tensor whose elements several ranks own.
struct TensorPiece {
    std::string name;
    std::vector<std::int64_t> shape, strides;  ///< of the whole tensor, which is dense
    std::uint64_t begin = 0;                   ///< in the whole tensor's memory order
    at::Tensor values;                         ///< one-dimensional
};

/// Removes, with a warning, the checkpoints of steps after `optimizer_steps`: damaged ones, passed over by a resumed
/// run that will take those steps again.
void remove_checkpoints_after(const std::filesystem::path& run, std::uint64_t optimizer_steps);

/// With every tensor whole, whoever wrote it. Throws base::Error naming the file: missing, damaged (size or CRC-32C),
/// another format version, a tensor with parts missing.
CheckpointContent load_checkpoint(const std::filesystem::path& checkpoint);

/// The resolved recipe that it was made with. Throws base::Error like load_checkpoint; tensors aren't read.
Recipe recipe_of_checkpoint(const std::filesystem::path& checkpoint);

/// The newest checkpoint of the run that is whole; damaged ones are passed over with a warning. None: nullopt.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& run);

}  // namespace lockstep::trainer
