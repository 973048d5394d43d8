#include "trainer/models/model_state.h"

#include <torch/nn/module.h>

#include "base/error.h"

namespace lockstep::trainer {

namespace {

void append_state(const torch::nn::Module& module, const std::string& prefix, std::vector<NamedTensor>& state) {
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
        state.push_back({prefix + parameter.key(), parameter.value()});
    }
    for (const auto& buffer : module.named_buffers(/*recurse=*/false)) {
        state.push_back({prefix + buffer.key(), buffer.value()});
    }
    for (const auto& child : module.named_children()) {
        append_state(*child.value(), prefix + child.key() + ".", state);
    }
}

}  // namespace

std::vector<NamedTensor> state_of(const torch::nn::Module& module) {
    std::vector<NamedTensor> state;
    append_state(module, "", state);
    return state;
}

std::int64_t parameter_count(const torch::nn::Module& module) {
    std::int64_t count = 0;
    for (const at::Tensor& parameter : module.parameters()) {
        count += parameter.numel();
    }
    return count;
}

void copy_state(const torch::nn::Module& source, torch::nn::Module& target) {
    const at::NoGradGuard no_grad;
    const std::vector<NamedTensor> from = state_of(source);
    const std::vector<NamedTensor> to = state_of(target);
    LOCKSTEP_CHECK_EQ(from.size(), to.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
        LOCKSTEP_CHECK_EQ(from[i].name, to[i].name);
        to[i].tensor.copy_(from[i].tensor);
    }
}

}  // namespace lockstep::trainer
