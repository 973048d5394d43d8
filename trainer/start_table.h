#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/partition.h"
#include "trainer/checkpoint.h"
#include "trainer/recipe.h"

namespace lockstep::trainer {

/// What a run has found out before its first step.
struct StartFacts {
    std::uint64_t ranks, nodes;
    unsigned cores_per_rank;
    std::uint64_t training_images, training_boxes;
    double shuffle_quality;  ///< of the coming epoch's order
    std::uint64_t classes;
    std::int64_t room_for_boxes;                     ///< of one image
    std::optional<std::uint64_t> validation_images;  ///< none: no validation data
    std::uint64_t validation_boxes = 0;
    std::string shapes = {};                       ///< of batches; empty: all have one
    std::string decoded_images = {};               ///< that are kept in memory
    std::optional<double> images_of_average_step;  ///< where pixels bound the batch
    std::uint64_t steps_per_epoch, total_steps, warmup_steps;
    double peak_rate;
    std::uint64_t parameters;
    std::int64_t zero_stage;
    comm::TrainingBytes bytes, predicted_bytes;  ///< of this rank; by the formula
    Progress progress;                           ///< not at the beginning: the run is resumed
};

/// Every resolved setting, then what follows from them, the rule of the learning rate among it. Ends with a newline.
std::string start_table(const Recipe& recipe, const StartFacts& facts);

}  // namespace lockstep::trainer
