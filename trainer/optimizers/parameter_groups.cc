#include "trainer/optimizers/parameter_groups.h"

#include "base/error.h"

namespace lockstep::trainer {

std::vector<comm::UpdateScalars> update_scalars(const comm::FlatLayout& layout, std::span<const ParameterGroup> groups,
                                                const StepRates& rates, double weight_decay,
                                                std::span<const double> divisor_of_head, double average_decay,
                                                std::span<const double> rate_factors) {
    LOCKSTEP_CHECK_EQ(groups.size(), layout.entries().size());
    std::vector<comm::UpdateScalars> scalars;
    for (std::size_t i = 0; i < groups.size(); ++i) {
        const bool is_weight = groups[i] == ParameterGroup::weight;
        const double factor = rate_factors.empty() ? 1 : rate_factors[i];
        const auto head = static_cast<std::size_t>(layout.segments()[layout.entries()[i].segment].head);
        scalars.push_back({.learning_rate = factor * (groups[i] == ParameterGroup::bias ? rates.bias_learning_rate
                                                                                        : rates.learning_rate),
                           .weight_decay = is_weight ? weight_decay : 0,
                           .momentum = rates.momentum,
                           .gradient_factor = 1 / divisor_of_head[head],
                           .average_decay = average_decay,
                           .adapts = is_weight});
    }
    return scalars;
}

}  // namespace lockstep::trainer
