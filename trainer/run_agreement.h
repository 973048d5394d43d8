#pragma once

#include <vector>

#include "comm/agreement.h"
#include "comm/flat_layout.h"
#include "trainer/recipe.h"
#include "trainer/trainable_parameters.h"

/// What the ranks of a training must have alike, for comm::require_agreement. Where they don't, every rank trains
/// something else, and no sum would show it.
namespace lockstep::trainer {

/// All ranks have the same settings, and the same versions of Lockstep and LibTorch; else see require_agreement. To be
/// called before anything that a setting has a say in, such as how ranks talk. Collective.
void require_same_recipe(comm::Communicator& ranks, const Recipe& recipe);
/// Each parameter's name, shape and type, then each bucket of the gradients.
std::vector<comm::AgreementItem> agreement_on_layout(const TrainableParameters& parameters,
                                                     const comm::FlatLayout& layout);
/// Each parameter's values, bit for bit.
std::vector<comm::AgreementItem> agreement_on_values(const TrainableParameters& parameters);

}  // namespace lockstep::trainer
