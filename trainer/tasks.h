#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "trainer/task.h"

namespace lockstep::trainer {

std::unique_ptr<Task> make_detection_task(const Recipe& recipe, std::int64_t classes, std::int64_t max_boxes);
std::unique_ptr<Task> make_classification_task(const Recipe& recipe, std::int64_t classes);

/// The type in which a recipe's network holds its weights and takes its images.
at::ScalarType weight_type(const Recipe& recipe);

/// Initial weights, type, memory format and batch-norm mode, as the recipe says.
void prepare_network(torch::nn::Module& network, const Recipe& recipe);

/// Sums of an empty micro-batch: nothing to send backward, and nothing counted. `parts` of each head.
comm::LossSums no_losses(std::size_t heads, std::int64_t parts);

/// The ids that this rank evaluates.
sharding::PositionRange evaluation_share(const sharding::Dataset& data, const comm::Communicator& communicator);

}  // namespace lockstep::trainer
