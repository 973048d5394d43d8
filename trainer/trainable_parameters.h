#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/gradient_reducer.h"
#include "trainer/optimizers/parameter_groups.h"
#include "trainer/task.h"

namespace torch::nn {
class Module;
}

namespace lockstep::trainer {

/// What the optimizer moves, in the network's order: arrays of one length. The tensors are the network's own.
struct TrainableParameters {
    /// `rate_factors` as in the recipe; what has the factor 0 is made untrainable. Throws base::UsageError for a factor
    /// that isn't a number of at least 0, a name that begins no parameter's, and where nothing is left to train.
    TrainableParameters(torch::nn::Module& network, const std::string& rate_factors);

    std::vector<std::string> names;
    std::vector<at::Tensor> tensors;
    std::vector<ParameterGroup> groups;  ///< biases; matrices and kernels; scales of norms
    std::vector<double> rate_factors;    ///< more than 0
    std::vector<std::pair<std::string, at::Tensor>> frozen;

    std::uint64_t count() const;
    /// For the reducer: each with the head whose loss it hears and, where `units` are given (by what their parameters'
    /// names begin with), the unit that it belongs to. Throws base::Error for a parameter of no unit.
    std::vector<comm::ReducedParameter> reduced(const Task& task,
                                                const std::vector<std::vector<std::string>>& units) const;
};

}  // namespace lockstep::trainer
