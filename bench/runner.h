#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bench/launcher.h"
#include "bench/plan.h"
#include "bench/record.h"

namespace lockstep::bench {

/// Above these a launch counts as disturbed: it is marked, and made again while attempts are left.
struct InterferenceLimits {
    double foreign_cpu = 0.05;
    double stolen_cpu = 0.02;
    double throttled_share = 0.01;                ///< of the launch's time
    std::uint64_t disk_bytes_read = 32ULL << 20;  ///< of data that the page cache should have had
};
std::vector<std::string> interference_of(const LaunchOutcome& outcome, const InterferenceLimits& limits);

struct RunnerOptions {
    std::filesystem::path out;  ///< the sweep's directory; continued where it holds this plan's launches already
    std::string program;        ///< what is launched: `program train RECIPE --set ... --out RUN`
    std::function<std::unique_ptr<Launcher>(std::int32_t ranks)> launcher = launcher_for;
    InterferenceLimits limits = {};
};

/// Makes all launches of the plan that `options.out` lacks, one at a time, in launch_order. A launch is recorded when
/// it has ended, whole or not at all, so a kill at any moment costs the launch in flight. A launch that fails becomes a
/// record with its reason; an arm that failed twice in a measurement is not launched again. Stops before the block that
/// would pass the budget. Throws base::UsageError where the directory holds another plan's sweep, base::Error where a
/// second runner is at work in it.
///
///     OUT/plan.toml   OUT/sweep.json   OUT/records/ID.json   OUT/runs/ID/   (a run's directory without its tensors)
void run_sweep(const Plan& plan, const std::string& plan_text, const RunnerOptions& options);

/// Hash of a plan's text: what its records call their sweep.
std::string plan_hash(const std::string& plan_text);

/// Seconds that the launches take that `records` lack: by the median of earlier launches of the arm, else of the
/// measurement, else by the plan's guess; none where that is missing too.
std::optional<double> predicted_seconds(const Plan& plan, const std::vector<Record>& records);

/// What --dry-run prints: the arms with their settings, the launches and the predicted time.
std::string describe_sweep(const Plan& plan, const std::vector<Record>& records);

/// OUT/sweep.json: arms, factors, measurements and missing tricks, so that a report needs neither plan nor recipe.
std::string sweep_json(const Plan& plan, const std::string& plan_text);

}  // namespace lockstep::bench
