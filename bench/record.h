#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bench/launcher.h"
#include "bench/statistics.h"

namespace lockstep::bench {

inline constexpr std::int64_t record_version = 1;

/// What one step after the other took, in the run's own order.
struct StepArrays {
    std::vector<double> seconds, data_wait, exposed, communication_core, skew, loss, images;
};

enum class LaunchStatus { ok, failed, timed_out };
std::string_view name_of(LaunchStatus status);

/// One launch, with all that is needed to judge its figures later and elsewhere. On disk one JSON object; docs/bench.md
/// has the fields.
struct Record {
    std::string id;           ///< also the file's name, without .json
    std::string sweep;        ///< hash of the plan
    std::string measurement;  ///< "speed" or "accuracy"
    std::int64_t block = 0;   ///< from 1
    std::string arm;
    std::int64_t attempt = 1;  ///< at this place in the order
    std::int64_t order = 0;    ///< how many launches the sweep had made before

    std::vector<std::string> command;
    std::string launcher;
    std::int64_t ranks = 1;
    std::string started, ended;  ///< UTC

    std::string recipe;       ///< resolved, TOML
    std::string recipe_hash;  ///< of that text
    std::int64_t seed = 0;
    std::map<std::string, std::string> data_hashes;  ///< directory -> hash of its index
    /// As provenance.h makes it: a JSON object as text.
    std::string provenance = "{}";

    LaunchStatus status = LaunchStatus::failed;
    std::string reason;  ///< of a failure: the end of what it printed
    LaunchOutcome outcome;
    std::vector<std::string> interference;  ///< marks; empty: undisturbed
    std::vector<std::string> warnings;      ///< what the training itself warned of

    StepArrays steps;
    WarmUp warm_up;
    std::string loss_digest;  ///< hash of all losses: the same for the same arithmetic in the same order
    /// By name: seconds_per_image, images_per_second, memory_mib, startup_seconds, data_wait_fraction,
    /// exposed_communication_fraction, communication_core_fraction, rank_skew_fraction, final_loss, training_seconds,
    /// evaluation_seconds, and the run's own scores (AP50, AP, accuracy, ...). Only what the run could tell.
    std::map<std::string, double> metrics;
};

/// Steps, digest and metrics from the run's directory (docs/run.md); of a run that ended early what there is.
void read_run(Record& record, const std::filesystem::path& run);

std::string to_json(const Record& record);
/// What is wrong with it, one line a problem: missing fields, wrong types, values that can't be; empty for a valid
/// record.
std::vector<std::string> record_problems(std::string_view json);
/// Throws base::Error naming `origin` and every problem.
Record parse_record(std::string_view json, const std::string& origin);
/// All of DIR/records, in the order in which they were made.
std::vector<Record> read_records(const std::filesystem::path& directory);

}  // namespace lockstep::bench
