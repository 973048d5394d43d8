#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "trainer/checkpoint.h"

namespace lockstep::trainer {

/// Writes checkpoints of a run while it goes on: each rank copies what it holds, and a thread writes the copy. One
/// checkpoint at a time, so that there is one copy at most.
///
/// `run`/checkpoints/step-000000123 holds a file for each rank that has something to write, with checksums, and the
/// manifest, written last. All of it is written aside, synced and renamed, so that the directory exists whole or not
/// at all. Older checkpoints beyond `keep` are removed afterwards. One of the same step that is there already is kept
/// if it is whole, and replaced if it isn't.
///
/// What goes wrong on one rank (disk full, ...) is a base::Error on all of them, out of whichever collective call
/// comes next, and leaves the earlier checkpoints alone.
class CheckpointWriter {
  public:
    /// All ranks write to one file system. `communicator` must outlive it.
    CheckpointWriter(std::filesystem::path run, std::int64_t keep, comm::Communicator& communicator);
    /// Waits for this rank's thread. A checkpoint that is under way is given up.
    ~CheckpointWriter();
    CheckpointWriter(const CheckpointWriter&) = delete;
    CheckpointWriter& operator=(const CheckpointWriter&) = delete;

    /// Copies, and starts to write; first finishes the one before. `content` counts on rank 0 alone, but for its step,
    /// the same on all; `pieces` are each rank's own and make up whole tensors. Collective.
    void begin(const CheckpointContent& content, const std::vector<TensorPiece>& pieces);
    /// Whether a checkpoint isn't published yet; the same on all ranks.
    bool is_under_way() const;
    /// Whether this rank's thread is still at work.
    bool is_busy() const;
    /// Takes the checkpoint that is under way one phase on: what all ranks have written is published, what is published
    /// is done. Waits for the threads, so nothing is lost by calling it when no rank is busy. Collective.
    void advance();
    /// Until nothing is under way. Collective.
    void finish();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

/// Begins and finishes one; its path. Collective.
std::filesystem::path save_checkpoint(const std::filesystem::path& run, const CheckpointContent& content,
                                      const std::vector<TensorPiece>& pieces, std::int64_t keep,
                                      comm::Communicator& communicator);
/// By one rank.
std::filesystem::path save_checkpoint(const std::filesystem::path& run, const CheckpointContent& content,
                                      std::int64_t keep);

}  // namespace lockstep::trainer
