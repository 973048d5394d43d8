#include "bench/analysis.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace lockstep::bench {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::fixed;
using base::str;
using nlohmann::json;

/// In the order of the report.
const std::vector<Metric>& known_metrics() {
    static const std::vector<Metric> metrics = {
        {"seconds_per_image", "speed", "training time", "ms an image", true, 1000},
        {"memory_mib", "speed", "memory", "MiB, all ranks", true, 1},
        {"startup_seconds", "speed", "start to first step", "s", true, 1},
        {"training_seconds", "accuracy", "time of the whole training", "s", true, 1},
        {"evaluation_seconds", "accuracy", "time of one evaluation", "s", true, 1},
        {"AP50", "accuracy", "AP50", "", false, 1},
        {"AP", "accuracy", "AP", "", false, 1},
        {"accuracy", "accuracy", "accuracy", "", false, 1}};
    return metrics;
}

/// The value of each block: of its first undisturbed launch, else of the last that succeeded.
std::map<std::int64_t, double> values_of(const std::vector<Record>& records, const Metric& metric,
                                         const std::string& arm) {
    std::map<std::int64_t, const Record*> chosen;
    for (const Record& record : records) {
        if (record.measurement != metric.measurement || record.arm != arm || record.status != LaunchStatus::ok) {
            continue;
        }
        const Record*& current = chosen[record.block];
        if (current == nullptr || !current->interference.empty()) {
            current = &record;
        }
    }
    std::map<std::int64_t, double> values;
    for (const auto& [block, record] : chosen) {
        const auto found = record->metrics.find(metric.name);
        if (found != record->metrics.end()) {
            values[block] = found->second;
        }
    }
    return values;
}

PairedRatios ratios_of(const std::map<std::int64_t, double>& arm, const std::map<std::int64_t, double>& baseline) {
    PairedRatios pairs;
    for (const auto& [block, value] : arm) {
        const auto reference = baseline.find(block);
        if (reference != baseline.end() && value > 0 && reference->second > 0) {
            pairs.ratios.push_back(value / reference->second);
        }
    }
    return pairs;
}

std::vector<double> list_of(const std::map<std::int64_t, double>& values) {
    std::vector<double> list;
    for (const auto& [block, value] : values) {
        if (value > 0) {
            list.push_back(value);
        }
    }
    return list;
}

std::optional<std::size_t> arm_with(const SweepInfo& info, const std::vector<std::size_t>& levels) {
    for (std::size_t i = 0; i < info.arms.size(); ++i) {
        if (info.arms[i].levels == levels && !info.arms[i].is_control) {
            return i;
        }
    }
    return std::nullopt;
}

}  // namespace

SweepInfo read_sweep(const fs::path& directory) {
    const fs::path path = directory / "sweep.json";
    if (!fs::exists(path)) {
        throw base::UsageError(
            str(directory.string(), " holds no sweep; lockstep bench run PLAN.toml --out DIR makes one"));
    }
    const json object = json::parse(base::read_text(path), nullptr, false);
    if (object.is_discarded() || object.value("schema", "") != "lockstep.bench.sweep" ||
        object.value("version", 0) != 1) {
        throw Error(str(path.string(), ": not a sweep that this version can read"));
    }
    SweepInfo info;
    try {
        info = {.title = object.at("title"),
                .about = object.at("about"),
                .recipe = object.at("recipe"),
                .plan_hash = object.at("plan_hash"),
                .seed = object.at("seed"),
                .factors = {},
                .arms = {},
                .measurements = {},
                .missing = {}};
        for (const json& factor : object.at("factors")) {
            SweepFactor& added = info.factors.emplace_back();
            added.name = factor.at("name");
            added.about = factor.at("about");
            for (const json& level : factor.at("levels")) {
                added.levels.push_back(level.at("name"));
            }
        }
        for (const json& arm : object.at("arms")) {
            info.arms.push_back({.name = arm.at("name"),
                                 .levels = arm.at("levels").get<std::vector<std::size_t>>(),
                                 .settings = arm.at("settings"),
                                 .command = arm.at("command"),
                                 .ranks = arm.at("ranks"),
                                 .simulates_nodes = arm.at("simulates_nodes"),
                                 .is_control = arm.at("is_control"),
                                 .impossible = arm.at("impossible")});
        }
        for (const json& measurement : object.at("measurements")) {
            info.measurements.push_back({.kind = measurement.at("kind"),
                                         .blocks = measurement.at("blocks"),
                                         .arms = measurement.at("arms").get<std::vector<std::string>>()});
        }
        for (const json& entry : object.at("missing")) {
            info.missing.emplace_back(entry.at("name"), entry.at("reason"));
        }
    } catch (const json::exception& error) {
        throw Error(str(path.string(), ": ", error.what()));
    }
    if (info.arms.size() < 2 || !info.arms[1].is_control) {
        throw Error(str(path.string(), ": its arms don't begin with a baseline and its control"));
    }
    return info;
}

std::optional<Comparison> MetricResult::of_arm(std::size_t arm) const {
    if (arm == control_arm) {
        return comparison.control;
    }
    const auto found = std::ranges::find(arms, arm);
    if (found == arms.end()) {
        return std::nullopt;
    }
    return comparison.arms[static_cast<std::size_t>(found - arms.begin())];
}

const MetricResult* SweepAnalysis::find(const std::string& metric, const std::string& measurement) const {
    const auto found = std::ranges::find_if(metrics, [&](const MetricResult& result) {
        return result.metric.name == metric && (measurement.empty() || result.metric.measurement == measurement);
    });
    return found == metrics.end() ? nullptr : &*found;
}

std::string SweepAnalysis::mark(const SweepArm& arm) const {
    std::vector<std::string> marks;
    if (arm.ranks > cores) {
        marks.push_back(str(arm.ranks, " ranks share ", cores, cores == 1 ? " core" : " cores"));
    }
    if (arm.simulates_nodes) {
        marks.emplace_back("simulated nodes");
    }
    return base::join(marks, ", ");
}

std::string SweepAnalysis::marked_name(std::size_t arm) const {
    const std::string text = mark(info.arms[arm]);
    return info.arms[arm].name + (text.empty() ? "" : " [" + text + "]");
}

bool is_gain(const MetricResult& metric, const Comparison& comparison) {
    return comparison.finding == (metric.metric.lower_is_better ? Finding::lower : Finding::higher);
}
bool is_loss(const MetricResult& metric, const Comparison& comparison) {
    return comparison.finding == (metric.metric.lower_is_better ? Finding::higher : Finding::lower);
}

std::string percent(double ratio) {
    return fixed(100 * ratio, 1) + "%";
}

std::string interval_text(const Comparison& comparison) {
    return str(percent(comparison.ratio), " (", percent(comparison.interval.low), " to ",
               percent(comparison.interval.high), ")");
}

std::vector<FactorSteps> factor_steps(const SweepAnalysis& sweep, const MetricResult& metric) {
    const auto& factors = sweep.info.factors;
    std::vector<std::size_t> none(factors.size(), 0), all, cumulative = none;
    for (const SweepFactor& factor : factors) {
        all.push_back(factor.levels.size() - 1);
    }
    const auto ratio_at = [&](const std::vector<std::size_t>& levels) -> std::optional<double> {
        const auto arm = arm_with(sweep.info, levels);
        if (arm && *arm == baseline_arm) {
            return 1;
        }
        const auto ours = arm ? metric.of_arm(*arm) : std::nullopt;
        return ours && ours->blocks > 0 ? std::optional(ours->ratio) : std::nullopt;
    };
    std::vector<FactorSteps> steps;
    std::optional<double> before = 1;
    for (std::size_t i = 0; i < factors.size(); ++i) {
        FactorSteps entry{.name = factors[i].name, .alone = {}, .cumulative = {}, .step = {}, .taken_out = {}};
        std::vector<std::size_t> alone = none, without = all;
        alone[i] = all[i];
        without[i] = 0;
        if (const auto arm = arm_with(sweep.info, alone)) {
            entry.alone = metric.of_arm(*arm);
        }
        cumulative[i] = all[i];
        entry.cumulative = ratio_at(cumulative);
        if (entry.cumulative && before) {
            entry.step = *entry.cumulative / *before;
        }
        before = entry.cumulative;
        const auto whole = ratio_at(all), rest = ratio_at(without);
        if (whole && rest) {
            entry.taken_out = *whole / *rest;
        }
        steps.push_back(entry);
    }
    return steps;
}

SweepAnalysis analyse(const fs::path& directory) {
    SweepInfo info = read_sweep(directory);
    return analyse(std::move(info), read_records(directory));
}

SweepAnalysis analyse(SweepInfo info, std::vector<Record> records) {
    SweepAnalysis analysis{.info = std::move(info), .records = std::move(records), .metrics = {}, .failures = {}};
    std::erase_if(analysis.records, [&](const Record& record) { return record.sweep != analysis.info.plan_hash; });
    if (!analysis.records.empty()) {
        analysis.cores = json::parse(analysis.records.front().provenance).value("cores", std::int64_t{1});
    }
    for (const SweepArm& arm : analysis.info.arms) {
        std::string reason = arm.impossible;
        bool has_result = false;
        for (const Record& record : analysis.records) {
            if (record.arm == arm.name) {
                has_result = has_result || record.status == LaunchStatus::ok;
                reason = record.status == LaunchStatus::ok ? reason : record.reason;
            }
        }
        analysis.failures.push_back(has_result ? "" : reason.empty() ? "not launched yet" : reason);
    }
    std::uint64_t stream = 0;
    for (const Metric& metric : known_metrics()) {
        MetricResult result{.metric = metric, .comparison = {}, .arms = {}, .values = {}};
        for (const SweepArm& arm : analysis.info.arms) {
            result.values.push_back(values_of(analysis.records, metric, arm.name));
        }
        if (result.values[0].empty()) {
            continue;
        }
        std::vector<PairedRatios> arms;
        for (std::size_t i = 2; i < result.values.size(); ++i) {
            PairedRatios pairs = ratios_of(result.values[i], result.values[0]);
            if (!pairs.ratios.empty()) {
                result.arms.push_back(i);
                arms.push_back(std::move(pairs));
            }
        }
        const PairedRatios control = ratios_of(result.values[1], result.values[0]);
        const std::uint64_t seed = analysis.info.seed + 1000 * ++stream;
        result.comparison = compare_sweep(control, arms, seed);
        result.smallest_findable = smallest_findable(control, arms, result.comparison.band, seed);
        analysis.metrics.push_back(std::move(result));
    }
    return analysis;
}

std::vector<Change> compare_sweeps(const SweepAnalysis& a, const SweepAnalysis& b) {
    std::vector<Change> changes;
    std::vector<double> p_values, bands;
    std::vector<bool> lower_is_better;
    for (const MetricResult& before : a.metrics) {
        const MetricResult* after = b.find(before.metric.name, before.metric.measurement);
        if (after == nullptr) {
            continue;
        }
        for (std::size_t i = 0; i < a.info.arms.size(); ++i) {
            const SweepArm& arm = a.info.arms[i];
            const auto other = std::ranges::find(b.info.arms, arm.name, &SweepArm::name);
            if (arm.is_control || other == b.info.arms.end()) {
                continue;
            }
            const auto index = static_cast<std::size_t>(other - b.info.arms.begin());
            const std::vector<double> old_values = list_of(before.values[i]),
                                      new_values = list_of(after->values[index]);
            if (old_values.size() < 2 || new_values.size() < 2) {
                continue;
            }
            Change change{.metric = before.metric.title, .arm = arm.name};
            change.ratio = median(new_values) / median(old_values);
            change.interval = bootstrap_interval_of_ratio(new_values, old_values, a.info.seed);
            change.p = rank_sum_p(new_values, old_values);
            p_values.push_back(change.p);
            bands.push_back(std::max(before.comparison.band, after->comparison.band));
            lower_is_better.push_back(before.metric.lower_is_better);
            changes.push_back(change);
        }
    }
    const std::vector<double> adjusted = holm(p_values);
    for (std::size_t i = 0; i < changes.size(); ++i) {
        Change& change = changes[i];
        change.adjusted_p = adjusted[i];
        const bool differs =
            change.adjusted_p < significance && std::abs(std::log(change.ratio)) > std::log1p(bands[i]);
        change.is_worse = differs && (change.ratio > 1) == lower_is_better[i];
        change.is_better = differs && !change.is_worse;
    }
    return changes;
}

}  // namespace lockstep::bench
