#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "comm/job_communicators.h"
#include "trainer/recipe.h"

namespace lockstep::trainer {

/// What a recipe says of how ranks talk. An algorithm that is still to be chosen is the direct one.
comm::JobShape job_shape(const Recipe& recipe);

struct ChosenCommunication {
    Recipe recipe;            ///< with communication.algorithm and communication.bucket_mib as they will be used
    std::string explanation;  ///< what was measured or taken over, for the log; empty where nothing was to be chosen
};

/// Where the recipe leaves algorithm or bucket size to measurement ("auto" and 0): those of the checkpoint that the run
/// goes on from, so that it does what it did, else measured. Where nothing goes over MPI nothing is measured either:
/// the algorithm has no say, and buckets are large. Collective over `job`, which was made with job_shape().
ChosenCommunication choose_communication(const Recipe& recipe, const comm::JobCommunicators& job,
                                         const std::optional<std::filesystem::path>& checkpoint);

}  // namespace lockstep::trainer
