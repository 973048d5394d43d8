#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/flat_layout.h"
#include "comm/flat_tensors.h"
#include "comm/gathered_parameters.h"
#include "comm/partition.h"
#include "comm/shard.h"
#include "comm/shard_scope.h"
#include "comm/update_rule.h"

namespace lockstep::comm {

struct PartitionedOptimizerOptions {
    double clip_norm = 0;      ///< largest global norm of the divided gradient; 0: no clipping
    bool keep_average = true;  ///< keep a moving average of the parameters
};

/// A piece of one tensor in a rank's memory, in memory order.
struct OwnedPiece {
    std::string name;  ///< "parameters/NAME", "average/NAME" or "STATE/NAME"
    std::size_t entry;
    std::size_t begin;  ///< in the entry
    at::Tensor values;  ///< one-dimensional, shares memory
};

/// Updates flat parameters from flat gradient sums: each rank its own ranges, after which all get all. The arithmetic
/// is the rule's and is element-wise, so that the parameters are, bit for bit, those of an update that nothing is cut
/// for; but with clipping and with rules that adapt by tensor, where the norms' sums are taken in another order, and at
/// ZeroStage::gradients with several micro-steps, which are reduced before they are added.
class PartitionedOptimizer {
  public:
    /// Memory of the sum over ranks of an owned range's gradients, one-dimensional; asked for once, read in step()
    /// alone.
    using GradientOf = std::function<at::Tensor(const OwnedRange&)>;

    /// Moves `parameters` (in the layout's order) into flat memory of the scope's communicator; with `gathered` (from
    /// ZeroStage::parameters on, and only then) they stay there, and `parameters` isn't looked at. Collective. Layout,
    /// partition, communicator and `gathered` must outlive it.
    PartitionedOptimizer(const ShardScope& scope, const FlatLayout& layout, const Partition& partition,
                         std::span<const at::Tensor> parameters, const GradientOf& gradient_of,
                         std::unique_ptr<UpdateRule> rule, PartitionedOptimizerOptions options,
                         GatheredParameters* gathered = nullptr);

    /// One pass: scale each entry's gradient by its scalars' gradient_factor, clip by the global norm, update, average;
    /// then every rank gets the new parameters. `scalars`: one for each entry of the layout. Returns the global norm
    /// before clipping, the same on all ranks; where it isn't finite, nothing was changed and the step doesn't count.
    /// Collective.
    double step(std::span<const UpdateScalars> scalars);
    /// The first tensor of those that this rank owns a part of whose gradient holds an infinity or NaN; "" where none
    /// does.
    std::string first_not_finite_gradient() const;
    /// That the last step spent in collectives, where the partition is cut.
    double exchange_seconds() const { return exchange_seconds_; }

    /// The average becomes the parameters on all ranks, and the other way round the next time. Collective. With
    /// gathered parameters: before they are held, and after they were dropped.
    void swap_with_average();
    /// The average, if one is kept, becomes equal to the parameters.
    void restart_average();
    /// All ranks get rank 0's parameters; gathered ones are rank 0's from the start. Collective.
    void broadcast_parameters();

    /// This rank's: parameters, average (if kept) and each array of the rule's state.
    std::vector<OwnedPiece> owned_pieces() const;
    std::vector<std::string> state_names() const { return rule_->state_names(); }

    std::uint64_t steps() const { return steps_; }
    void set_steps(std::uint64_t steps) { steps_ = steps; }
    /// But for the gradients, which are the reducer's, and for what is gathered just now.
    TrainingBytes bytes() const;

  private:
    /// Views into flat memory, all of the range's count.
    struct Owned {
        OwnedRange range;
        at::Tensor parameters;
        at::Tensor gradient;
        at::Tensor average;             ///< undefined, if none is kept
        std::vector<at::Tensor> state;  ///< by the rule's state_names()
    };

    double squared_norm_of_owned(std::span<const UpdateScalars> scalars) const;
    /// All ranks get each other's owned parameters.
    void gather_parameters();
    void sum_over_shards(std::span<double> values, const char* name);
    /// Of a rule that adapts by tensor. Collective where the partition is cut.
    void set_trust_ratios(std::span<UpdateScalars> scalars);
    template <typename T>
    UpdateSpans<T> spans_of(const Owned& owned) const;
    template <typename Work>
    auto with_spans(const Owned& owned, Work work) const;

    ShardScope scope_;
    const FlatLayout& layout_;
    const Partition& partition_;
    std::unique_ptr<UpdateRule> rule_;
    PartitionedOptimizerOptions options_;
    GatheredParameters* gathered_;
    std::optional<FlatTensors> parameters_;  ///< whole; none with gathered ones
    std::optional<Shard> average_;
    std::vector<Shard> state_;
    std::vector<Owned> owned_;
    std::uint64_t steps_ = 0;
    double exchange_seconds_ = 0;
};

}  // namespace lockstep::comm
