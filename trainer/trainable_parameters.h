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
    /// For the reducer: each with the head whose loss it hears and, where `units` are given (by what their parameters'
    /// names begin with), the unit that it belongs to. Throws base::Error for a parameter of no unit.
    std::vector<comm::ReducedParameter> reduced(const Task& task,
                                                const std::vector<std::vector<std::string>>& units) const;
};

}  // namespace lockstep::trainer
