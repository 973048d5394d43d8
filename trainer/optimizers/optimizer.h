#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/flat_tensors.h"
#include "comm/update_rule.h"
#include "trainer/schedule.h"

namespace lockstep::trainer {

/// What decides a parameter's rate and decay (reference recipe: three groups).
enum class ParameterGroup : std::uint8_t { weight, norm, bias };

struct OptimizerOptions {
    double weight_decay = 0;   ///< of ParameterGroup::weight alone
    double clip_norm = 0;      ///< largest global norm of the divided gradient; 0: no clipping
    bool keep_average = true;  ///< keep a moving average of the parameters
};

/// Updates flat parameters from flat gradient sums. Every rank holds and updates everything; since all ranks see the
/// same reduced gradients, their parameters stay the same bit for bit.
class Optimizer {
  public:
    /// Moves `parameters` (in the layout's order, of `groups`' length) into flat memory of its own. `gradients` must
    /// outlive it.
    Optimizer(const comm::FlatLayout& layout, const comm::FlatTensors& gradients,
              std::span<const at::Tensor> parameters, std::vector<ParameterGroup> groups,
              std::unique_ptr<comm::UpdateRule> rule, OptimizerOptions options);

    /// One pass: divide each head's gradient sum by its divisor, clip by the global norm, update, average.
    /// Returns the global norm after division and before clipping.
    double step(const StepRates& rates, std::span<const double> divisor_of_head, double average_decay);

    std::uint64_t steps() const { return steps_; }
    void set_steps(std::uint64_t steps) { steps_ = steps; }

    comm::FlatTensors& parameters() { return parameters_; }
    comm::FlatTensors& average() { return average_; }  ///< the parameters themselves change place with it in evaluation
    std::vector<comm::FlatTensors>& state() { return state_; }
    std::vector<std::string> state_names() const { return rule_->state_names(); }

    std::uint64_t bytes() const;  ///< parameters, gradients, state and average of this rank

  private:
    template <typename T>
    void update_entry(std::size_t entry, const comm::UpdateScalars& scalars);
    double squared_norm(std::span<const double> divisor_of_head) const;

    const comm::FlatLayout& layout_;
    const comm::FlatTensors& gradients_;
    std::vector<ParameterGroup> groups_;
    std::unique_ptr<comm::UpdateRule> rule_;
    OptimizerOptions options_;
    comm::FlatTensors parameters_;
    comm::FlatTensors average_;
    std::vector<comm::FlatTensors> state_;
    std::uint64_t steps_ = 0;
};

}  // namespace lockstep::trainer
