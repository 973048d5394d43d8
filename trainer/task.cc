#include "trainer/task.h"

#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "base/error.h"
#include "trainer/models/layers.h"
#include "trainer/tasks.h"
#include "trainer/weights_file.h"

namespace lockstep::trainer {

using base::str;

std::unique_ptr<Task> make_task(const Recipe& recipe, const sharding::Dataset& train) {
    const auto wanted = is_detector(recipe) ? sharding::Task::detection : sharding::Task::classification;
    if (train.task() != wanted) {
        throw base::Error(str(train.directory().string(), " holds ",
                              train.task() == sharding::Task::detection ? "boxes" : "labels", ", but ", recipe.model,
                              " learns from ", wanted == sharding::Task::detection ? "boxes" : "labels"));
    }
    const auto classes = static_cast<std::int64_t>(train.classes().size());
    return is_detector(recipe) ? make_detection_task(recipe, classes, room_for_boxes(recipe, train))
                               : make_classification_task(recipe, classes);
}

std::int64_t room_for_boxes(const Recipe& recipe, const sharding::Dataset& train) {
    const auto of_one_image = static_cast<std::int64_t>(train.max_boxes_per_image());
    if (recipe.max_boxes == 0) {
        const bool augments = recipe.augmentation.enabled;
        const std::int64_t of_mosaic = augments && recipe.augmentation.mosaic > 0 ? 4 : 1;
        const std::int64_t of_mixup = augments && recipe.augmentation.mixup > 0 ? 2 : 1;
        return std::max<std::int64_t>(1, of_one_image * of_mosaic * of_mixup);
    }
    if (recipe.max_boxes < of_one_image) {
        throw base::UsageError(str("max_boxes = ", recipe.max_boxes, ", but an image of ", train.directory().string(),
                                   " has ", of_one_image, " boxes; give more, or 0 for as many as needed"));
    }
    return recipe.max_boxes;
}

at::ScalarType weight_type(const Recipe& recipe) {
    return recipe.precision == "fp64" ? at::kDouble : at::kFloat;
}

void prepare_network(torch::nn::Module& network, const Recipe& recipe) {
    if (!recipe.initial_weights.empty()) {
        load_initial_network(network, recipe.initial_weights, recipe.model);
    }
    network.to(weight_type(recipe));
    set_batch_norm_mode(network, recipe.batch_norm == "frozen" ? BatchNormMode::frozen : BatchNormMode::local);
    network.train();
}

comm::LossSums no_losses(std::size_t heads, std::int64_t parts) {
    comm::LossSums sums;
    for (std::size_t head = 0; head < heads; ++head) {
        sums.sums.push_back(at::zeros({}));
        sums.denominators.push_back(at::zeros({}));
        sums.parts.push_back(at::zeros({parts}));
    }
    return sums;
}

sharding::PositionRange evaluation_share(const sharding::Dataset& data, const comm::Communicator& communicator) {
    return sharding::part_of({0, data.size()}, static_cast<std::uint64_t>(communicator.size()),
                             static_cast<std::uint64_t>(comm::index_of(communicator.rank())));
}

double fitness(const Evaluation& evaluation) {
    const auto& metrics = evaluation.metrics;
    const auto accuracy = metrics.find("accuracy");
    return accuracy != metrics.end() ? accuracy->second : 0.1 * metrics.at("AP50") + 0.9 * metrics.at("AP");
}

}  // namespace lockstep::trainer
