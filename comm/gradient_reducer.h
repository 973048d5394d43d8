#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/flat_layout.h"
#include "comm/flat_tensors.h"
#include "comm/partition.h"
#include "comm/shard_scope.h"

namespace lockstep::comm {

class GatheredParameters;

/// One trainable tensor, and the head whose loss it hears. No parameter hears two heads, so one divisor per head is
/// exact.
struct ReducedParameter {
    std::string name;
    at::Tensor tensor;
    std::int32_t head = 0;
    std::size_t unit = 0;  ///< of the network; see GatheredParameters
};

/// Undivided sums of one micro-step: for each head a scalar to send backward and its denominator (a count or a
/// target-score sum, on this rank, for this micro-step), plus detached parts for the log. Shapes are the same on every
/// rank and in every micro-step, also for an empty micro-batch.
struct LossSums {
    std::vector<at::Tensor> sums;  ///< one scalar per head; without a graph (an empty micro-batch) it sends nothing
    std::vector<at::Tensor> denominators;  ///< one detached scalar per head
    std::vector<at::Tensor> parts;  ///< per head a detached vector of loss parts, as sums, same order as part_names
};

/// How long an effective batch waited for other ranks, after its own backward passes.
struct ExposedTime {
    /// Of the rank that was done with its backward passes last: what the way of the gradients cost, and nothing else.
    double communication_seconds = 0;
    /// Of a core, by this rank's thread that reduces, while the backward pass went on. Where a rank computes on all the
    /// cores that it has, its computing waits for them.
    double core_seconds = 0;
    /// That the first rank to be done waited for the last one.
    double skew_seconds = 0;
};

/// Totals over ranks and micro-steps, in FP64.
struct Denominators {
    std::vector<double> per_head;
    std::vector<std::vector<double>> parts;  ///< per head
};

/// Sends sums backward and reduces gradients over the ranks in flat buckets (never mixing heads) while the backward
/// pass goes on: a thread of its own reduces each bucket as soon as its gradients are complete, always in the layout's
/// order of buckets, whatever the order in which they become ready.
///
/// Below ZeroStage::gradients, gradients are views into whole flat memory, and buckets leave in the last micro-step of
/// the effective batch alone. From that stage on each rank keeps the sums of the elements that it owns: in every
/// micro-step gradients are tensors of their own until their bucket's turn comes, and are freed then.
///
/// Collective: every rank makes the same calls, also with an empty micro-batch. Not thread-safe; the parameters'
/// gradients belong to it from construction on, and the scope's communicators from a backward() to the end of finish().
class GradientReducer {
  public:
    /// Parameters (FP32 or FP64 leaves, on the CPU) in model order; buckets go in reverse, as the backward pass does.
    /// Sets each parameter's grad to a zeroed view with the parameter's own strides (to nothing where gradients are
    /// sharded): change the memory format before, not after. Throws base::Error when two parameters share a name or
    /// memory, or one is not trainable.
    GradientReducer(const ShardScope& scope, std::vector<ReducedParameter> parameters, double bucket_mib,
                    ZeroStage stage = ZeroStage::none);
    ~GradientReducer();

    /// Adds d(sum of all heads' sums)/d(parameter) to the gradients, in one backward pass, and keeps denominators and
    /// parts.
    void backward(const LossSums& sums, bool is_last_micro_step);
    /// Waits for every bucket; afterwards owned gradients are sums over all ranks and micro-steps. Resets the
    /// denominators.
    Denominators finish();
    /// From now on `parameters`, which must live as long as backward() is called, hears of each bucket whose gradients
    /// are complete, and of the end of each pass.
    void report_to(GatheredParameters& parameters);
    /// Zeroes the gradients for the next effective batch.
    void zero();

    /// Where every parameter lies in flat memory. A FlatTensors made of it (for parameters, state, averages) shares its
    /// index ranges with gradients(), in the order of the constructor's parameters.
    const FlatLayout& layout() const;
    const Partition& partition() const;
    /// One-dimensional, shares memory; the range is this rank's. Elsewhere in whole flat memory values are undefined
    /// after finish() where the partition is cut.
    at::Tensor owned_gradient(const OwnedRange& range) const;
    /// Whole flat memory; below ZeroStage::gradients.
    const FlatTensors& gradients() const;
    /// That gradients take on this rank between steps.
    std::uint64_t gradient_bytes() const;

    /// Of the last effective batch; known after finish(). The skew is the same on all ranks, and so is the rest but for
    /// the reduction of the denominators and the core's time, of which each rank has its own.
    ExposedTime exposed() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace lockstep::comm
