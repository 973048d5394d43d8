#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "comm/patience.h"
#include "comm/topology.h"

namespace lockstep::comm {

/// True when a launcher of ranks (mpirun, srun --mpi=pmix) started this process. Looks at the environment only, so that
/// programs without ranks never start MPI; being inside a Slurm allocation does not count.
/// Throws base::Error where a launcher started several tasks in a way that this MPI does not see: each would train
/// alone.
bool is_launched_by_mpi();

/// MPI from construction to destruction, with MPI_THREAD_MULTIPLE and error codes instead of aborts. One a process.
/// Destroyed while an exception unwinds, it ends the whole job instead of waiting for the other ranks for ever.
class MpiGuard {
  public:
    /// Throws base::Error when MPI does not start or gives less than MPI_THREAD_MULTIPLE.
    MpiGuard();
    ~MpiGuard();
    MpiGuard(const MpiGuard&) = delete;
    MpiGuard& operator=(const MpiGuard&) = delete;

  private:
    int exceptions_at_start_;
};

/// Logs `message` and ends all ranks at once; the launcher exits with `exit_code`, which is not zero. Works with and
/// without MPI. No destructor runs.
[[noreturn]] void abort_job(int exit_code, std::string_view message);

/// Ends all ranks at once, without a word; see abort_job.
[[noreturn]] void end_all_ranks(int exit_code);

/// How an all-reduce goes (a reduce-scatter is always direct). Over n ranks each sends 2(n-1)/n times the buffer, but
/// for `central`, and for `halving_doubling` off powers of two. Results are the same on all ranks with each; FP32 sums
/// differ between them by rounding.
enum class MpiAllReduce : std::uint8_t {
    direct,            ///< each slice's owner hears all others and adds in rank order; 16-bit sums are rounded once
    ring,              ///< slices go around; 16-bit sums are rounded at each rank
    halving_doubling,  ///< few steps: halves of halves over half the distance; 16-bit sums are rounded at each step
    central,           ///< through the first rank, as parallel training in one process does it: for comparison
};
inline constexpr std::array mpi_all_reduces{MpiAllReduce::direct, MpiAllReduce::ring, MpiAllReduce::halving_doubling,
                                            MpiAllReduce::central};
std::string_view name_of(MpiAllReduce algorithm);
/// Throws base::UsageError for another name.
MpiAllReduce mpi_all_reduce_of(std::string_view name);

/// All ranks of the job, over MPI point-to-point messages, on a communicator of its own: operations of two purposes
/// never meet. Buffers lie in host memory. `purpose` is a name for messages; `timeout` is the deadline of one
/// operation, and of this call. Collective; MPI must run (MpiGuard) with MPI_THREAD_MULTIPLE, and the object must go
/// before MPI does.
std::unique_ptr<Communicator> make_mpi_communicator(std::string purpose, std::chrono::milliseconds timeout,
                                                    std::shared_ptr<RankLog> log = nullptr,
                                                    MpiAllReduce algorithm = MpiAllReduce::direct,
                                                    Patience patience = Patience::over_network());
/// Of `members` alone, which this rank is one of; ranks in its order. Collective over all ranks of the job, each of
/// which names the members of its own group: groups are disjoint or equal.
std::unique_ptr<Communicator> make_mpi_communicator(std::string purpose, std::chrono::milliseconds timeout,
                                                    std::span<const Rank> members,
                                                    std::shared_ptr<RankLog> log = nullptr,
                                                    MpiAllReduce algorithm = MpiAllReduce::direct,
                                                    Patience patience = Patience::over_network());

/// Who shares memory with whom. Collective over `world`, a communicator of all ranks; this host alone where MPI does
/// not run.
Topology detect_topology(Communicator& world);

}  // namespace lockstep::comm
