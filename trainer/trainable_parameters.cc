#include "trainer/trainable_parameters.h"

#include <torch/nn/module.h>

#include <algorithm>

#include "base/error.h"

namespace lockstep::trainer {

namespace {

std::size_t unit_of(const std::string& name, const std::vector<std::vector<std::string>>& units) {
    const auto unit = std::ranges::find_if(units, [&](const std::vector<std::string>& prefixes) {
        return std::ranges::any_of(prefixes, [&](const std::string& prefix) { return name.starts_with(prefix); });
    });
    if (unit == units.end()) {
        throw base::Error(base::str("parameter ", name, " belongs to no unit of the network, so it can't be gathered"));
    }
    return static_cast<std::size_t>(unit - units.begin());
}

}  // namespace

TrainableParameters::TrainableParameters(torch::nn::Module& network) {
    for (const auto& item : network.named_parameters()) {
        if (!item.value().requires_grad()) {
            continue;
        }
        const bool is_bias = item.key().ends_with("bias");
        names.push_back(item.key());
        tensors.push_back(item.value());
        groups.push_back(is_bias                  ? ParameterGroup::bias
                         : item.value().dim() > 1 ? ParameterGroup::weight
                                                  : ParameterGroup::norm);
    }
}

std::uint64_t TrainableParameters::count() const {
    std::uint64_t scalars = 0;
    for (const auto& tensor : tensors) {
        scalars += static_cast<std::uint64_t>(tensor.numel());
    }
    return scalars;
}

std::vector<comm::ReducedParameter> TrainableParameters::reduced(
    const Task& task, const std::vector<std::vector<std::string>>& units) const {
    std::vector<comm::ReducedParameter> reduced;
    for (std::size_t i = 0; i < names.size(); ++i) {
        reduced.push_back({names[i], tensors[i], task.head_of(names[i]), units.empty() ? 0 : unit_of(names[i], units)});
    }
    return reduced;
}

}  // namespace lockstep::trainer
