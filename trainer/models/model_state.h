#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::trainer {

struct NamedTensor {
    std::string name;
    at::Tensor tensor;
};

/// Every parameter and buffer, under its full name, module by module; the tensors are the module's own.
std::vector<NamedTensor> state_of(const torch::nn::Module& module);

/// Elements of all parameters, trained or not; buffers don't count.
std::int64_t parameter_count(const torch::nn::Module& module);

/// Overwrites the target's values; both must have the same names and shapes.
void copy_state(const torch::nn::Module& source, torch::nn::Module& target);

}  // namespace lockstep::trainer
