#pragma once

#include <cstdint>
#include <optional>

#include "trainer/recipe.h"

namespace lockstep::trainer {

/// What the optimizer is given at one step.
struct StepRates {
    double learning_rate = 0;       ///< of weights
    double bias_learning_rate = 0;  ///< differs during the warm-up only
    double momentum = 0;            ///< momentum of sgd, beta1 of adamw
};

/// The pure function from a step to its rates. Epochs are counted in fractions, so that the curve doesn't depend on how
/// many steps an epoch has. What follows from results, the reductions of "plateau", is the training loop's.
class Schedule {
  public:
    /// `images_per_step`: what the learning-rate rule takes for the effective batch; none: the recipe's batch.
    Schedule(const Recipe& recipe, std::uint64_t steps_per_epoch, std::optional<double> images_per_step = std::nullopt);

    StepRates at(std::uint64_t step) const;
    /// The peak rate after the learning-rate rule.
    double peak_rate() const { return peak_rate_; }
    std::uint64_t total_steps() const { return total_steps_; }
    std::uint64_t warmup_steps() const { return warmup_steps_; }

  private:
    double factor(double progress, double epochs) const;

    Recipe::Schedule options_;
    double momentum_;
    double warmup_momentum_;
    double peak_rate_;
    double steps_per_epoch_;
    std::uint64_t total_steps_;
    std::uint64_t warmup_steps_;
};

}  // namespace lockstep::trainer
