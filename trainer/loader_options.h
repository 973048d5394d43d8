#pragma once

#include "sharding/dataset.h"
#include "sharding/loader.h"
#include "trainer/recipe.h"

namespace lockstep::trainer {

sharding::ReadPath read_path_of(const Recipe& recipe);

sharding::ScalingOptions scaling_options(const Recipe& recipe);

/// How a training with this recipe loads its data. `cores`: of this rank, for data.threads = 0.
sharding::LoaderOptions loader_options(const Recipe& recipe, unsigned cores);

}  // namespace lockstep::trainer
