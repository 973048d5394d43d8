#include "base/error.h"

#include <unistd.h>

#include <cstdlib>

#include "base/resources.h"

namespace lockstep::base {
namespace {

struct RankVariables {
    const char* rank;
    const char* size;  // nullptr where the launcher has none
};

// The innermost launcher first: mpirun inside a Slurm allocation inherits Slurm's variables. A batch script has
// SLURM_PROCID too, but is no rank; only srun sets SLURM_STEP_NUM_TASKS.
constexpr RankVariables launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    {"PMIX_RANK", nullptr},
};

/// "rank 1 of 4", or "" without a launcher.
std::string rank_text() {
    for (const RankVariables& launcher : launchers) {
        const char* rank = std::getenv(launcher.rank);
        const char* size = launcher.size ? std::getenv(launcher.size) : nullptr;
        if (rank && launcher.size && size) {
            return str("rank ", rank, " of ", size);
        }
        if (rank && !launcher.size) {
            return str("rank ", rank);
        }
    }
    return {};
}

}  // namespace

bool under_launcher() {
    return !rank_text().empty();
}

std::string process_name() {
    const std::string rank = rank_text();
    return str(rank.empty() ? str("pid ", getpid()) : rank, " on ", host_name());
}

namespace detail {

void check_failed(std::string_view condition, std::string_view operands, std::string_view file, int line) {
    throw InternalError(str("internal error (", process_name(), "): ", file, ":", line, ": not true: ", condition,
                            operands.empty() ? "" : ": ", operands,
                            "\nThis is a mistake in Lockstep, not in your input: please report it with this message."));
}

}  // namespace detail
}  // namespace lockstep::base
