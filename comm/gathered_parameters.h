#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/communicator.h"
#include "comm/flat_layout.h"
#include "comm/partition.h"

namespace lockstep::comm {

/// Parameters of which each rank keeps its shard alone, and the whole of a unit (a block of the network) only while it
/// is used: ZeRO stage 3 (Rajbhandari et al. 2020, section 5.3).
///
/// A network is a sequence of units, numbered in model order by FlatTensor::unit, each run once in a pass. The program
/// calls before_forward() and after_forward() around each; the backward pass asks by itself, through a hook on the
/// unit's outputs. While a unit computes, the next one is gathered by a thread of this object. A unit's memory is given
/// back after its forward pass, and again when its gradients are complete: the same tensors get the same values in
/// storage of their own, so that what autograd has saved of them stays right.
///
/// All ranks gather all units in one order, forward and then backward, in each pass, whatever a rank has to compute:
/// end_pass() makes up for what it did not ask for, so that a micro-batch may be empty. The communicator belongs to it.
/// Called by the thread that computes, and by autograd's for that one.
class GatheredParameters {
  public:
    /// Takes rank 0's values of `parameters` (in the layout's order) and gives their memory back. Layout and partition
    /// (of ZeroStage::parameters) must outlive it. Collective.
    GatheredParameters(Communicator& communicator, const FlatLayout& layout, const Partition& partition,
                       std::span<const at::Tensor> parameters);
    ~GatheredParameters();

    /// This rank's values of a range that it owns: one-dimensional, shares memory.
    at::Tensor owned(const OwnedRange& range) const;

    /// Returns when the unit's parameters are there. Units come in order.
    void before_forward(std::size_t unit);
    /// The unit's outputs, as far as gradients go backward through them.
    void after_forward(std::size_t unit, std::span<const at::Tensor> outputs);
    /// All gradients of the bucket have arrived.
    void bucket_is_complete(std::size_t bucket);
    /// The micro-batch is through, forward and backward, as far as there was anything to do. Collective.
    void end_pass();

    /// Between passes: all parameters are there, with the values that their owners have now, until they are dropped
    /// again; for evaluation and for saving. Collective.
    void hold_all();
    void drop_all();

    /// Of this rank's shard, and the most that parameters took beside it so far.
    std::uint64_t shard_bytes() const;
    std::uint64_t most_gathered_bytes() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace lockstep::comm
