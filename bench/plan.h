#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::bench {

/// What a launch is given over the plan's recipe: one level of a factor, or all levels of an arm.
struct Settings {
    std::map<std::string, std::string> recipe;       ///< key -> TOML value, as for --set
    std::map<std::string, std::string> environment;  ///< variable -> value
    std::optional<std::int32_t> ranks;

    void overlay(const Settings& over);
    bool operator==(const Settings&) const = default;
};

struct Level {
    std::string name;
    Settings settings;
};

/// Something that is switched. The first level is the baseline's, the last one is "on" where several factors meet.
struct Factor {
    std::string name;
    std::string about;
    std::vector<Level> levels;
};

/// Which combinations of levels become arms.
enum class Design {
    one_at_a_time,  ///< each level of each factor alone
    leave_one_out,  ///< all factors on, and all but one
    waterfall,      ///< factors switched on one after the other, in the plan's order
    grid,           ///< every combination
    named           ///< those of [combinations]
};

enum class MeasurementKind {
    speed,    ///< a few steps, without evaluation: time, memory, waits
    accuracy  ///< whole trainings; each block has a seed of its own
};
std::string_view name_of(MeasurementKind kind);

struct Measurement {
    MeasurementKind kind = MeasurementKind::speed;
    std::int64_t blocks = 0;
    std::int64_t steps = 0;                  ///< speed: optimizer steps of a launch
    double launch_seconds = 0;               ///< a guess for --dry-run and the budget, until launches are there to tell
    double timeout_seconds = 0;              ///< a launch that takes longer is ended, and its arm fails
    std::map<std::string, std::string> set;  ///< recipe keys of all its launches
    std::vector<std::string> arms;           ///< names; empty: all
};

/// A trick that can't be measured yet. Listed in the report with its reason.
struct Missing {
    std::string name;
    std::string reason;
};

/// One column of a sweep: a complete set of levels.
struct Arm {
    std::string name;
    std::vector<std::size_t> levels;  ///< index per factor, in the plan's order
    Settings settings;                ///< over the recipe, the plan's own [set] included
    std::string impossible;           ///< why the recipe refuses this combination; empty: it can run
    bool is_control = false;          ///< the baseline once more: what differs from it is noise
};

/// A sweep as its author wrote it. Typed and complete; docs/bench.md lists the keys.
struct Plan {
    std::string title;
    std::string about;
    std::filesystem::path recipe;  ///< relative to the working directory, as the paths in it are
    std::uint64_t seed = 1;        ///< of the order of launches and of resampling
    double budget_minutes = 0;     ///< no block is begun that would not end in it; 0: none
    std::int64_t attempts = 2;     ///< launches of one place in the order, where others disturb
    std::vector<Design> designs;
    std::vector<Measurement> measurements;
    std::vector<Factor> factors;
    std::vector<std::pair<std::string, std::vector<std::size_t>>> combinations;  ///< name, level per factor
    std::vector<Missing> missing;
    Settings all_arms;  ///< [set] and ranks
};

/// Throws base::UsageError naming file, line, key and the nearest known key: for unknown keys and factors, for a short
/// name whose recipe key doesn't exist yet, for a trick listed as missing that can be measured, for a level that the
/// recipe refuses alone, and for a number of blocks at which nothing could be found.
Plan parse_plan(const std::string& toml, const std::string& origin);

/// The baseline, the control ("again"), then the designs' arms in their order, each set of levels once.
std::vector<Arm> arms_of(const Plan& plan);
/// Those that `measurement` launches: the baseline and the control always among them.
std::vector<Arm> arms_of(const Plan& plan, const Measurement& measurement);

/// The recipe of one launch, resolved, as TOML. `block` becomes the seed of an accuracy launch. Throws
/// base::UsageError where the recipe refuses.
std::string resolved_recipe(const Plan& plan, const Measurement& measurement, const Arm& arm, std::int64_t block);
/// key=value for --set of that launch.
std::vector<std::string> launch_settings(const Measurement& measurement, const Arm& arm, std::int64_t block);
std::int32_t ranks_of(const Arm& arm);
/// Simulated nodes: the arm's topology is overridden, so its ranks are not where it says.
bool simulates_nodes(const Arm& arm);

/// A short name and the recipe key that it stands for ("" for what isn't one: ranks).
struct ShortName {
    std::string name, key;
};
const std::vector<ShortName>& short_names();

/// One launch of a sweep, at its place in the order.
struct PlannedLaunch {
    std::size_t measurement;  ///< index in the plan
    std::int64_t block;       ///< from 1
    std::size_t arm;          ///< index in arms_of(plan, measurement)
};
/// All launches of all measurements in order: in each block every possible arm once, in random order; the second block
/// of a pair mirrors the first (ABBA), so that a steady drift meets all arms alike. A pure function of the plan.
std::vector<PlannedLaunch> launch_order(const Plan& plan);

/// The least blocks at which `comparisons` arms can be told from the baseline at all: the smallest p-value of a signed
/// rank test of n blocks is 2 / 2^n, and Holm asks for 0.05 / comparisons.
std::int64_t least_blocks(std::size_t comparisons);

inline constexpr std::int64_t default_blocks = 16;

}  // namespace lockstep::bench
