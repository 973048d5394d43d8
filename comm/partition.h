#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/flat_layout.h"

namespace lockstep::comm {

/// What of the training's memory is cut into shards, one for each rank (Rajbhandari et al. 2020, ZeRO, section 3).
enum class ZeroStage : std::uint8_t {
    none = 0,        ///< nothing: every rank holds and updates everything
    state = 1,       ///< optimizer state and moving average
    gradients = 2,   ///< and gradients
    parameters = 3,  ///< and parameters, which are whole only while they are used; see GatheredParameters
};

/// A stretch of one tensor that a rank owns. Elements are counted in memory order.
struct OwnedRange {
    std::size_t entry;  ///< of the layout
    std::size_t begin;  ///< in the entry
    std::size_t count;
    std::size_t begin_in_shard;  ///< in the owner's memory of the entry's segment
};

/// Who owns which elements: a pure function of the layout, the number of ranks and the stage. Every bucket is cut
/// evenly at cache lines, whatever the tensors in it, so that no number of ranks is better or worse than another and a
/// bucket's reduce-scatter gives each rank its own part.
class Partition {
  public:
    Partition(const FlatLayout& layout, std::int32_t ranks, ZeroStage stage);

    ZeroStage stage() const { return stage_; }
    /// False: every rank owns everything.
    bool is_cut() const { return stage_ != ZeroStage::none; }

    /// By rank, in elements of the bucket; only where it is cut.
    std::span<const Slice> slices_of_bucket(std::size_t bucket) const;
    /// In the layout's memory order. A tensor that lies in several ranks' slices is in the ranges of each.
    std::vector<OwnedRange> ranges_of(Rank rank) const;
    /// Elements of a rank's shard of a segment, gaps between tensors included.
    std::size_t shard_count(std::size_t segment, Rank rank) const;

  private:
    const FlatLayout* layout_;
    ZeroStage stage_;
    std::vector<std::vector<Slice>> slices_;  ///< by bucket, then rank; empty where nothing is cut
};

/// What a rank of a partitioned training holds, in bytes, gaps between tensors included.
struct TrainingBytes {
    std::uint64_t parameters = 0, gradients = 0, state = 0, average = 0;
    std::uint64_t all() const { return parameters + gradients + state + average; }
    bool operator==(const TrainingBytes&) const = default;
};

/// The formula, for an even share: state, average, and gradients from ZeroStage::gradients on and parameters from
/// ZeroStage::parameters on by share; the rest on all ranks.
TrainingBytes predicted_bytes(const FlatLayout& layout, std::int32_t ranks, ZeroStage stage, std::size_t state_arrays,
                              bool keeps_average);

}  // namespace lockstep::comm
