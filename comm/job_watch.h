#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "comm/rank_log.h"

namespace lockstep::comm {

/// Ends a job that can't go on, and says why. Each rank writes what it does into memory that the ranks of a machine
/// share, and a thread of each looks there, without any call of MPI: when a rank fails, waits longer than the deadline
/// or is gone, one of them writes the stop report to the log and to the run's directory, and all ranks end.
class JobWatch {
  public:
    /// Collective over all ranks where MPI runs; else it keeps a log for this process alone. Where the ranks of a
    /// machine can't share memory, says so, and each reports for itself.
    JobWatch();
    ~JobWatch();
    JobWatch(const JobWatch&) = delete;
    JobWatch& operator=(const JobWatch&) = delete;

    const std::shared_ptr<RankLog>& log() const;

    /// Returns what `work` returns. An exception ends the job, before anything is destroyed that might wait for other
    /// ranks: the exit code is 2 for a base::UsageError and 1 otherwise. Without MPI, exceptions pass through.
    int run(const std::function<int()>& work);

    /// From now on, flight records are kept in DIRECTORY/flight, where that is possible, and a stop report in
    /// DIRECTORY/stop_report.json (stop_report-HOST.json, if it tells of one machine of several). Nothing without MPI.
    /// Not collective. Call it while no operation is under way.
    void keep_in(const std::filesystem::path& directory);

    /// This rank is through: from now on it is in nobody's way.
    void finish();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

/// Runs a program's ranks: starts MPI if this process was launched by it, calls `body` and returns what it returns (the
/// same on every rank). An exception on any rank ends the job on all; see JobWatch::run. Without MPI, exceptions pass
/// through.
int run_ranks(const std::function<int(JobWatch&)>& body);
int run_ranks(const std::function<int()>& body);

}  // namespace lockstep::comm
