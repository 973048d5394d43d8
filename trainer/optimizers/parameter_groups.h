#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/flat_layout.h"
#include "comm/update_rule.h"
#include "trainer/schedule.h"

namespace lockstep::trainer {

/// What decides a parameter's rate and decay (reference recipe: three groups).
enum class ParameterGroup : std::uint8_t { weight, norm, bias };

/// The numbers of one step for each entry of the layout, whose `groups` these are: biases have a rate of their own
/// during the warm-up, only ParameterGroup::weight decays and (in rules that adapt by tensor) adapts, and each head's
/// gradient sums have their divisor. `rate_factors`, unless empty: of each entry's rate.
std::vector<comm::UpdateScalars> update_scalars(const comm::FlatLayout& layout, std::span<const ParameterGroup> groups,
                                                const StepRates& rates, double weight_decay,
                                                std::span<const double> divisor_of_head, double average_decay,
                                                std::span<const double> rate_factors = {});

}  // namespace lockstep::trainer
