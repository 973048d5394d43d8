#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/record.h"
#include "bench/statistics.h"

namespace lockstep::bench {

/// What sweep.json says: the plan as its report needs it.
struct SweepFactor {
    std::string name, about;
    std::vector<std::string> levels;
};
struct SweepArm {
    std::string name;
    std::vector<std::size_t> levels;  ///< per factor
    std::string settings;             ///< for a person
    std::int64_t ranks = 1;
    bool simulates_nodes = false;
    bool is_control = false;
    std::string impossible;
};
struct SweepMeasurement {
    std::string kind;
    std::int64_t blocks = 0;
    std::vector<std::string> arms;
};
struct SweepInfo {
    std::string title, about, recipe, plan_hash;
    std::uint64_t seed = 0;
    std::vector<SweepFactor> factors;
    std::vector<SweepArm> arms;  ///< the baseline first, the control second
    std::vector<SweepMeasurement> measurements;
    std::vector<std::pair<std::string, std::string>> missing;  ///< trick, reason
};
SweepInfo read_sweep(const std::filesystem::path& directory);

/// A figure that arms are compared by, as a ratio to the baseline.
struct Metric {
    std::string name;         ///< as in a record
    std::string measurement;  ///< "speed" or "accuracy"
    std::string title, unit;
    bool lower_is_better = true;
    double scale = 1;  ///< from the record's unit to `unit`
};

struct MetricResult {
    Metric metric;
    SweepComparison comparison;     ///< its `arms` in the order of `arms`
    std::vector<std::size_t> arms;  ///< indices in SweepInfo::arms of what is compared
    double smallest_findable = 0;   ///< as in statistics.h
    /// For each arm of the sweep: block -> value, in the record's unit.
    std::vector<std::map<std::int64_t, double>> values;

    /// The comparison of an arm; none of the baseline, or of an arm that was not measured.
    std::optional<Comparison> of_arm(std::size_t arm) const;
};

struct SweepAnalysis {
    SweepInfo info;
    std::vector<Record> records;
    std::vector<MetricResult> metrics;
    std::vector<std::string> failures;  ///< per arm: why it has no result; "" where it has one
    std::int64_t cores = 1;             ///< of the machine that made the records

    const MetricResult* find(const std::string& metric, const std::string& measurement = "") const;
    /// "2 ranks share 1 core", "simulated nodes"; empty for results that stand for themselves.
    std::string mark(const SweepArm& arm) const;
};

/// Per arm and block the first undisturbed launch counts, else the last that succeeded.
SweepAnalysis analyse(const std::filesystem::path& directory);
SweepAnalysis analyse(SweepInfo info, std::vector<Record> records);

/// What two sweeps say about the same arm and metric. They were not made side by side, so blocks can't be paired.
struct Change {
    std::string metric, arm;
    double ratio = 1;  ///< median of B / median of A
    Interval interval = {};
    double p = 1, adjusted_p = 1;  ///< of a rank sum test; over all arms and metrics
    bool is_worse = false, is_better = false;
};
/// B against A: arms and metrics that both have. A change counts where Holm says so and it is at least 1%, and larger
/// than what either baseline differs from itself.
std::vector<Change> compare_sweeps(const SweepAnalysis& a, const SweepAnalysis& b);

}  // namespace lockstep::bench
