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
    std::string command;              ///< that trains with them
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
    /// With the mark in brackets.
    std::string marked_name(std::size_t arm) const;
};

/// Indices in SweepInfo::arms.
inline constexpr std::size_t baseline_arm = 0;
inline constexpr std::size_t control_arm = 1;

/// The finding, by what is better in this metric.
bool is_gain(const MetricResult& metric, const Comparison& comparison);
bool is_loss(const MetricResult& metric, const Comparison& comparison);

/// "61.8%" of a ratio of 0.618.
std::string percent(double ratio);
/// "61.8% (60.1% to 62.0%)".
std::string interval_text(const Comparison& comparison);

/// A factor alone, added in order, and taken out of all: as ratios of one metric.
struct FactorSteps {
    std::string name;
    std::optional<Comparison> alone;   ///< to the baseline
    std::optional<double> cumulative;  ///< with all before it, to the baseline
    std::optional<double> step;        ///< to the cumulative arm before
    std::optional<double> taken_out;   ///< all / all without it: what it does in the company of all others
};
std::vector<FactorSteps> factor_steps(const SweepAnalysis& sweep, const MetricResult& metric);

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
