#pragma once

#include <vector>

#include "comm/agreement.h"
#include "comm/flat_layout.h"
#include "trainer/recipe.h"
#include "trainer/trainable_parameters.h"

/// What the ranks of a training must have alike, for comm::require_agreement. Where they don't, every rank trains
/// something else, and no sum would show it.
namespace lockstep::trainer {

/// The versions of Lockstep and LibTorch, then each setting.
std::vector<comm::AgreementItem> agreement_on_recipe(const Recipe& recipe);
/// Each parameter's name, shape and type, then each bucket of the gradients.
std::vector<comm::AgreementItem> agreement_on_layout(const TrainableParameters& parameters,
                                                     const comm::FlatLayout& layout);
/// Each parameter's values, bit for bit.
std::vector<comm::AgreementItem> agreement_on_values(const TrainableParameters& parameters);

}  // namespace lockstep::trainer
