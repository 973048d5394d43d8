#include "trainer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace lockstep::trainer {
namespace {

double interpolate(double from, double to, double part) {
    return from + (to - from) * part;
}

/// 1 at part = 0, 0 at part = 1, flat at both ends.
double half_cosine(double part) {
    return (1 + std::cos(std::numbers::pi * part)) / 2;
}

double scaled_rate(const Recipe& recipe, double images_per_step) {
    const double ratio = images_per_step / static_cast<double>(recipe.optimizer.reference_batch);
    if (recipe.optimizer.learning_rate_rule == "linear") {
        return recipe.optimizer.learning_rate * ratio;
    }
    if (recipe.optimizer.learning_rate_rule == "sqrt") {
        return recipe.optimizer.learning_rate * std::sqrt(ratio);
    }
    return recipe.optimizer.learning_rate;
}

}  // namespace

Schedule::Schedule(const Recipe& recipe, std::uint64_t steps_per_epoch, std::optional<double> images_per_step)
    : options_(recipe.schedule),
      momentum_(recipe.optimizer.momentum),
      // Adam's bias correction takes beta1 to be constant.
      warmup_momentum_(recipe.optimizer.name == "sgd" || recipe.optimizer.name == "lars"
                           ? recipe.schedule.warmup_momentum
                           : recipe.optimizer.momentum),
      peak_rate_(scaled_rate(recipe, images_per_step.value_or(static_cast<double>(recipe.batch)))),
      steps_per_epoch_(static_cast<double>(steps_per_epoch)),
      total_steps_(steps_per_epoch * static_cast<std::uint64_t>(recipe.epochs)),
      warmup_steps_(static_cast<std::uint64_t>(std::llround(recipe.schedule.warmup_epochs * steps_per_epoch_))) {
    LOCKSTEP_CHECK(steps_per_epoch > 0);
}

double Schedule::factor(double progress, double epochs) const {
    if (options_.name == "linear") {
        return interpolate(1, options_.final_fraction, progress);
    }
    if (options_.name == "cosine") {
        return interpolate(options_.final_fraction, 1, half_cosine(progress));
    }
    if (options_.name == "step") {
        return std::pow(options_.step_factor, std::floor(epochs / options_.step_epochs));
    }
    if (options_.name == "one_cycle") {
        // Smith and Topin 2017, with cosine flanks: from 1/25 of the peak up to it, then down to the final fraction.
        const double rise = options_.peak_fraction;
        return progress < rise ? interpolate(1, 1.0 / 25, half_cosine(progress / rise))
                               : interpolate(options_.final_fraction, 1, half_cosine((progress - rise) / (1 - rise)));
    }
    return 1;
}

StepRates Schedule::at(std::uint64_t step) const {
    const double last = std::max<double>(1, static_cast<double>(total_steps_) - 1);
    const double progress = std::min(1.0, static_cast<double>(step) / last);
    const double rate = peak_rate_ * factor(progress, static_cast<double>(step) / steps_per_epoch_);
    if (step >= warmup_steps_) {
        return {rate, rate, momentum_};
    }
    // Counted from one, so that the first step is not spent at a rate of zero.
    const double part = static_cast<double>(step + 1) / static_cast<double>(warmup_steps_ + 1);
    return {rate * part, interpolate(options_.warmup_bias_rate, rate, part),
            interpolate(warmup_momentum_, momentum_, part)};
}

}  // namespace lockstep::trainer
