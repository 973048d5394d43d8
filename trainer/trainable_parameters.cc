#include "trainer/trainable_parameters.h"

#include <torch/nn/module.h>

namespace lockstep::trainer {

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

std::vector<comm::ReducedParameter> TrainableParameters::by_head(const Task& task) const {
    std::vector<comm::ReducedParameter> reduced;
    for (std::size_t i = 0; i < names.size(); ++i) {
        reduced.push_back({names[i], tensors[i], task.head_of(names[i])});
    }
    return reduced;
}

}  // namespace lockstep::trainer
