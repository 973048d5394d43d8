#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::bench {

/// One training to be started.
struct LaunchRequest {
    std::vector<std::string> words;  ///< the program and its arguments, as one rank sees them
    std::int32_t ranks = 1;
    std::map<std::string, std::string> environment;
    std::filesystem::path run;     ///< where it will write metrics.jsonl
    std::filesystem::path output;  ///< what it prints
    double timeout_seconds = 0;
};

/// How it went, as seen from outside.
struct LaunchOutcome {
    int exit_code = -1;  ///< -1 where a signal ended it
    int signal = 0;
    bool timed_out = false;
    double wall_seconds = 0;
    double first_step_seconds = 0;      ///< from the start until the first step was logged; 0: none was
    double peak_memory_mib = 0;         ///< proportional set sizes of all ranks together, at their peak
    double foreign_cpu = 0;             ///< share of this machine's cores that other processes used meanwhile
    double stolen_cpu = 0;              ///< share that the hypervisor gave to others
    double throttled_seconds = 0;       ///< in which the control group's quota held it back
    std::uint64_t disk_bytes_read = 0;  ///< what was not in the page cache
};

/// Starts ranks and waits for their end. Nothing of a launch outlives launch(), nor this process.
class Launcher {
  public:
    virtual ~Launcher() = default;
    virtual std::string name() const = 0;
    /// Throws base::Error where the program can't be started at all.
    virtual LaunchOutcome launch(const LaunchRequest& request) = 0;
};

/// One rank, without a launcher.
class LocalLauncher : public Launcher {
  public:
    std::string name() const override { return "local"; }
    LaunchOutcome launch(const LaunchRequest& request) override;
};

/// Any number of ranks of this machine under mpirun.
class MpirunLauncher : public Launcher {
  public:
    std::string name() const override { return "mpirun"; }
    LaunchOutcome launch(const LaunchRequest& request) override;
};

/// local for one rank, mpirun for more: a plain run is what the baseline is.
std::unique_ptr<Launcher> launcher_for(std::int32_t ranks);

namespace detail {
/// Jiffies of all CPUs since the start of the machine, from the content of /proc/stat.
struct CpuTimes {
    double busy = 0, stolen = 0, total = 0;
};
CpuTimes cpu_times(const std::string& stat);
}  // namespace detail

}  // namespace lockstep::bench
