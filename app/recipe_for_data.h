#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sharding/dataset.h"
#include "trainer/recipe.h"

namespace lockstep::app {

/// The recipe of a training on this data set: from a file, or where `file` is empty with Lockstep's own defaults for
/// the task. `settings`: key=value, as in train.
trainer::Recipe recipe_for_data(const std::filesystem::path& file, const std::vector<std::string>& settings,
                                const std::filesystem::path& dataset, sharding::Task task);

}  // namespace lockstep::app
