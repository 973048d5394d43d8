#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/gradient_reducer.h"
#include "trainer/optimizers/parameter_groups.h"
#include "trainer/task.h"

namespace torch::nn {
class Module;
}

namespace lockstep::trainer {

/// What the optimizer moves, in the network's order: three arrays of one length. The tensors are the network's own.
struct TrainableParameters {
    explicit TrainableParameters(torch::nn::Module& network);

    std::vector<std::string> names;
    std::vector<at::Tensor> tensors;
    std::vector<ParameterGroup> groups;  ///< biases; matrices and kernels; scales of norms

    std::uint64_t count() const;
    /// For the reducer: each with the head whose loss it hears.
    std::vector<comm::ReducedParameter> by_head(const Task& task) const;
};

}  // namespace lockstep::trainer
