#include "comm/mpi.h"

#include <mpi.h>

#include <cstdlib>
#include <exception>
#include <vector>

#include "base/error.h"
#include "base/exit_code.h"
#include "base/log.h"
#include "base/resources.h"
#include "comm/mpi_check.h"

namespace lockstep::comm {

std::string mpi_error_text(int code) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) {
        return base::str("MPI error ", code);
    }
    return {text, static_cast<std::size_t>(length)};
}

void check_mpi(int code, std::string_view call) {
    if (code != MPI_SUCCESS) {
        throw base::Error(base::str(base::process_name(), ": ", call, " failed: ", mpi_error_text(code)));
    }
}

bool mpi_is_running() {
    int initialized = 0;
    int finalized = 0;
    return MPI_Initialized(&initialized) == MPI_SUCCESS && initialized != 0 &&
           MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0;
}

void require_thread_multiple() {
    int level = MPI_THREAD_SINGLE;
    check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
    if (level < MPI_THREAD_MULTIPLE) {
        throw base::Error(base::str(base::process_name(), ": this MPI gives thread level ", level,
                                    " where MPI_THREAD_MULTIPLE (", MPI_THREAD_MULTIPLE,
                                    ") is needed, since gradients, batch norm and control talk from several ",
                                    "threads. Use an MPI that was built with it (Debian's Open MPI is)"));
    }
}

bool is_launched_by_mpi() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"}) {
        if (std::getenv(name) != nullptr) {
            return true;
        }
    }
    for (const char* name : {"SLURM_STEP_NUM_TASKS", "PMI_SIZE"}) {
        const char* tasks = std::getenv(name);
        if (tasks != nullptr && std::atoi(tasks) > 1) {
            throw base::Error(
                base::str("the launcher started ", tasks, " tasks (", name,
                          ") in a way that this MPI does not understand, so each would run alone. Use srun "
                          "--mpi=pmix, or the mpirun of the Open MPI that Lockstep was built with"));
        }
    }
    return false;
}

MpiGuard::MpiGuard() : exceptions_at_start_(std::uncaught_exceptions()) {
    LOCKSTEP_CHECK(!mpi_is_running(), "MPI was started before");
    int provided = MPI_THREAD_SINGLE;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    require_thread_multiple();
}

MpiGuard::~MpiGuard() {
    if (std::uncaught_exceptions() > exceptions_at_start_) {
        MPI_Abort(MPI_COMM_WORLD, base::exit_code::failure);
    }
    const int code = MPI_Finalize();
    if (code != MPI_SUCCESS) {
        base::log_error(base::str("MPI_Finalize failed: ", mpi_error_text(code)));
    }
}

void end_all_ranks(int exit_code) {
    LOCKSTEP_CHECK_NE(exit_code, 0);
    if (mpi_is_running()) {
        MPI_Abort(MPI_COMM_WORLD, exit_code);
    }
    std::_Exit(exit_code);
}

void abort_job(int exit_code, std::string_view message) {
    base::log_error(message);
    end_all_ranks(exit_code);
}

namespace {

/// The world rank of this node's first rank: a label that the node's ranks share.
std::int32_t node_leader(Rank rank) {
    MPI_Comm node = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, index_of(rank), MPI_INFO_NULL, &node),
              "MPI_Comm_split_type");
    MPI_Group node_group = MPI_GROUP_NULL;
    MPI_Group world_group = MPI_GROUP_NULL;
    check_mpi(MPI_Comm_group(node, &node_group), "MPI_Comm_group");
    check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world_group), "MPI_Comm_group");
    const int first = 0;
    int leader = 0;
    check_mpi(MPI_Group_translate_ranks(node_group, 1, &first, world_group, &leader), "MPI_Group_translate_ranks");
    check_mpi(MPI_Group_free(&node_group), "MPI_Group_free");
    check_mpi(MPI_Group_free(&world_group), "MPI_Group_free");
    check_mpi(MPI_Comm_free(&node), "MPI_Comm_free");
    return leader;
}

}  // namespace

Topology detect_topology(Communicator& world) {
    if (!mpi_is_running()) {
        LOCKSTEP_CHECK_EQ(world.size(), 1);
        return {{0}, {base::host_name()}};
    }
    std::vector<std::int32_t> leaders(static_cast<std::size_t>(world.size()));
    leaders[static_cast<std::size_t>(index_of(world.rank()))] = node_leader(world.rank());
    world.all_gather(Buffer::of(std::span(leaders)), "node leaders");

    return {leaders, world.all_gather_texts(base::host_name(), "host names")};
}

}  // namespace lockstep::comm
