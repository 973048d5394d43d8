#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lockstep::bench {

/// One command, run to its end or to its deadline, with everything that it started.
struct ProcessRequest {
    std::vector<std::string> words;                  ///< the program (searched in PATH) and its arguments
    std::map<std::string, std::string> environment;  ///< over this process's own
    std::filesystem::path output;                    ///< what it prints, both streams
    double timeout_seconds = 0;
    /// Called about every 50 ms while it runs, with the ids of its living descendants (itself first).
    std::function<void(const std::vector<pid_t>&)> watch = {};
};

struct ProcessOutcome {
    int exit_code = -1;  ///< -1 where a signal ended it
    int signal = 0;
    bool timed_out = false;
    double wall_seconds = 0;
    double cpu_seconds = 0;             ///< user and system, of all that it started
    std::uint64_t disk_bytes_read = 0;  ///< what was not in the page cache
};

/// Runs the command under a guardian, a process that ends all of it, whatever process groups it made: when its deadline
/// passes, when it ends and leaves something behind, and when this process dies, however it dies. Nothing outlives the
/// call. Linux only. Not to be called while other threads hold locks (it forks). Throws base::Error where the command
/// can't be started.
ProcessOutcome run_supervised(const ProcessRequest& request);

/// The living descendants of `root`, itself first, from /proc; zombies are left out.
std::vector<pid_t> process_tree(pid_t root);

}  // namespace lockstep::bench
