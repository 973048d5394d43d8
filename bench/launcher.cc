#include "bench/launcher.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/error.h"
#include "base/resources.h"
#include "bench/supervised_process.h"

namespace lockstep::bench {
namespace {

namespace fs = std::filesystem;
using base::str;

constexpr double memory_reading_seconds = 0.5;

std::string text_of(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The number behind `key` at the beginning of a line; 0 where there is none.
double number_after(const std::string& text, const std::string& key) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with(key)) {
            std::istringstream rest(line.substr(key.size()));
            double value = 0;
            rest >> value;
            return value;
        }
    }
    return 0;
}

double pss_mib(pid_t pid) {
    return number_after(text_of(str("/proc/", pid, "/smaps_rollup")), "Pss:") / 1024;
}

double throttled_seconds() {
    return number_after(text_of("/sys/fs/cgroup/cpu.stat"), "throttled_usec") * 1e-6;
}

/// `unmeasured` processes at the top of the tree are the launcher's own.
LaunchOutcome watch_launch(const LaunchRequest& request, std::vector<std::string> words,
                           std::map<std::string, std::string> environment, std::size_t unmeasured) {
    LaunchOutcome outcome;
    const fs::path metrics = request.run / "metrics.jsonl";
    const double begin = base::monotonic_seconds();
    double last_reading = 0;
    const auto watch = [&](const std::vector<pid_t>& processes) {
        const double now = base::monotonic_seconds();
        std::error_code not_there;
        if (outcome.first_step_seconds == 0 && fs::file_size(metrics, not_there) > 0 && !not_there) {
            outcome.first_step_seconds = now - begin;
        }
        if (now - last_reading >= memory_reading_seconds) {
            last_reading = now;
            double sum = 0;
            for (std::size_t i = std::min(unmeasured, processes.size()); i < processes.size(); ++i) {
                sum += pss_mib(processes[i]);
            }
            outcome.peak_memory_mib = std::max(outcome.peak_memory_mib, sum);
        }
    };
    const detail::CpuTimes before = detail::cpu_times(text_of("/proc/stat"));
    const double throttled_before = throttled_seconds();
    const ProcessOutcome process = run_supervised({.words = std::move(words),
                                                   .environment = std::move(environment),
                                                   .output = request.output,
                                                   .timeout_seconds = request.timeout_seconds,
                                                   .watch = watch});
    const detail::CpuTimes after = detail::cpu_times(text_of("/proc/stat"));
    outcome.exit_code = process.exit_code;
    outcome.signal = process.signal;
    outcome.timed_out = process.timed_out;
    outcome.wall_seconds = process.wall_seconds;
    outcome.disk_bytes_read = process.disk_bytes_read;
    outcome.throttled_seconds = throttled_seconds() - throttled_before;
    const double total = after.total - before.total;
    if (total > 0) {
        const double own = process.cpu_seconds * static_cast<double>(sysconf(_SC_CLK_TCK));
        outcome.foreign_cpu = std::max(0.0, (after.busy - before.busy - own) / total);
        outcome.stolen_cpu = (after.stolen - before.stolen) / total;
    }
    return outcome;
}

}  // namespace

LaunchOutcome LocalLauncher::launch(const LaunchRequest& request) {
    LOCKSTEP_CHECK_EQ(request.ranks, 1);
    return watch_launch(request, request.words, request.environment, 0);
}

LaunchOutcome MpirunLauncher::launch(const LaunchRequest& request) {
    std::map<std::string, std::string> environment = request.environment;
    if (geteuid() == 0) {
        environment.try_emplace("OMPI_ALLOW_RUN_AS_ROOT", "1");
        environment.try_emplace("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    }
    if (static_cast<unsigned>(request.ranks) > base::usable_cores()) {
        environment.try_emplace("OMPI_MCA_mpi_yield_when_idle", "1");
    }
    std::vector<std::string> words = {"mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(request.ranks)};
    for (const auto& [name, value] : request.environment) {
        words.insert(words.end(), {"-x", name});
    }
    words.insert(words.end(), request.words.begin(), request.words.end());
    return watch_launch(request, std::move(words), std::move(environment), 1);
}

std::unique_ptr<Launcher> launcher_for(std::int32_t ranks) {
    if (ranks == 1) {
        return std::make_unique<LocalLauncher>();
    }
    return std::make_unique<MpirunLauncher>();
}

namespace detail {

CpuTimes cpu_times(const std::string& stat) {
    std::istringstream line(stat);
    std::string name;
    double user = 0, nice = 0, system = 0, idle = 0, wait = 0, interrupts = 0, soft_interrupts = 0, stolen = 0;
    line >> name >> user >> nice >> system >> idle >> wait >> interrupts >> soft_interrupts >> stolen;
    const double busy = user + nice + system + interrupts + soft_interrupts;
    return {.busy = busy, .stolen = stolen, .total = busy + idle + wait + stolen};
}

}  // namespace detail

}  // namespace lockstep::bench
