#include "trainer/chosen_communication.h"

#include <chrono>
#include <vector>

#include "base/text.h"
#include "comm/communication_probe.h"
#include "comm/wire_communicator.h"
#include "trainer/checkpoint.h"

namespace lockstep::trainer {

using base::str;

namespace {

constexpr double mib = 1 << 20;
/// Memory is so fast that fewer hand-overs between threads are worth more than an early start.
constexpr double bucket_mib_in_memory = 25;

/// A sum over ranks that is rounded at each rank on its way is refused with a 16-bit wire (check_recipe).
std::vector<comm::MpiAllReduce> candidates(const Recipe::Communication& communication) {
    if (communication.algorithm != "auto") {
        return {comm::mpi_all_reduce_of(communication.algorithm)};
    }
    if (communication.wire != "fp32") {
        return {comm::MpiAllReduce::direct};
    }
    return {comm::MpiAllReduce::direct, comm::MpiAllReduce::ring, comm::MpiAllReduce::halving_doubling};
}

}  // namespace

comm::JobShape job_shape(const Recipe& recipe) {
    const Recipe::Communication& communication = recipe.communication;
    return {.topology = communication.topology,
            .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(communication.timeout_seconds * 1000)),
            .algorithm = communication.algorithm == "auto" ? comm::MpiAllReduce::direct
                                                           : comm::mpi_all_reduce_of(communication.algorithm)};
}

ChosenCommunication choose_communication(const Recipe& recipe, const comm::JobCommunicators& job,
                                         const std::optional<std::filesystem::path>& checkpoint) {
    ChosenCommunication chosen{recipe, ""};
    Recipe::Communication& communication = chosen.recipe.communication;
    const bool measures_bucket = communication.bucket_mib == 0;
    if (communication.algorithm != "auto" && !measures_bucket) {
        return chosen;
    }
    const auto describe = [&] {
        return str(communication.algorithm, " all-reduce, buckets of ", communication.bucket_mib, " MiB");
    };
    if (checkpoint) {
        const Recipe::Communication earlier = recipe_of_checkpoint(*checkpoint).communication;
        if (communication.algorithm == "auto") {
            communication.algorithm = earlier.algorithm;
        }
        if (measures_bucket) {
            communication.bucket_mib = earlier.bucket_mib;
        }
        chosen.explanation = str(describe(), ", as in ", checkpoint->string());
        return chosen;
    }
    if (!job.uses_mpi()) {
        communication.algorithm = communication.algorithm == "auto" ? "direct" : communication.algorithm;
        communication.bucket_mib = measures_bucket ? bucket_mib_in_memory : communication.bucket_mib;
        return chosen;
    }
    const auto given_bytes = static_cast<std::size_t>(communication.bucket_mib * mib);
    const std::vector<comm::ProbedAllReduce> probed =
        comm::probe_communication(job_shape(recipe), comm::wire_type_of(communication.wire), candidates(communication),
                                  measures_bucket ? std::nullopt : std::optional(given_bytes));
    const comm::CommunicationChoice choice = comm::choose_communication(probed);
    communication.algorithm = comm::name_of(choice.algorithm);
    if (measures_bucket) {
        communication.bucket_mib = static_cast<double>(choice.bucket_bytes) / mib;
    }
    std::vector<std::string> figures;
    for (const comm::ProbedAllReduce& one : probed) {
        figures.push_back(one.describe());
    }
    chosen.explanation = str(describe(), ", measured (", base::join(figures, "; "), ")");
    return chosen;
}

}  // namespace lockstep::trainer
