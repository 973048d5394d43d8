#include "bench/record.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"

namespace lockstep::bench {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::str;
using nlohmann::json;

json outcome_json(const LaunchOutcome& outcome) {
    return {{"exit_code", outcome.exit_code},
            {"signal", outcome.signal},
            {"wall_seconds", outcome.wall_seconds},
            {"first_step_seconds", outcome.first_step_seconds},
            {"peak_memory_mib", outcome.peak_memory_mib},
            {"foreign_cpu", outcome.foreign_cpu},
            {"stolen_cpu", outcome.stolen_cpu},
            {"throttled_seconds", outcome.throttled_seconds},
            {"disk_bytes_read", outcome.disk_bytes_read}};
}

enum class Kind { text, whole, number, texts, numbers, object, text_map, number_map };

bool is_kind(const json& value, Kind kind) {
    const auto all = [&](auto test) { return std::all_of(value.begin(), value.end(), test); };
    const auto is_text = [](const json& item) { return item.is_string(); };
    // A loss may have diverged: JSON has no infinity, so null stands for it.
    const auto is_number = [](const json& item) { return item.is_number() || item.is_null(); };
    switch (kind) {
        case Kind::text:
            return value.is_string();
        case Kind::whole:
            return value.is_number_integer();
        case Kind::number:
            return value.is_number();
        case Kind::texts:
            return value.is_array() && all(is_text);
        case Kind::numbers:
            return value.is_array() && all(is_number);
        case Kind::object:
            return value.is_object();
        case Kind::text_map:
            return value.is_object() && all(is_text);
        case Kind::number_map:
            return value.is_object() && all([](const json& item) { return item.is_number(); });
    }
    return false;
}

const char* name_of_kind(Kind kind) {
    constexpr std::array names = {"a string",
                                  "a whole number",
                                  "a number",
                                  "a list of strings",
                                  "a list of numbers",
                                  "an object",
                                  "an object of strings",
                                  "an object of numbers"};
    return names[static_cast<std::size_t>(kind)];
}

struct SchemaField {
    const char* pointer;
    Kind kind;
};

/// Version 1. Fields may be added; none of these goes.
const std::vector<SchemaField>& schema() {
    static const std::vector<SchemaField> fields = {{"/schema", Kind::text},
                                                    {"/version", Kind::whole},
                                                    {"/id", Kind::text},
                                                    {"/sweep", Kind::text},
                                                    {"/measurement", Kind::text},
                                                    {"/block", Kind::whole},
                                                    {"/arm", Kind::text},
                                                    {"/attempt", Kind::whole},
                                                    {"/order", Kind::whole},
                                                    {"/command", Kind::texts},
                                                    {"/launcher", Kind::text},
                                                    {"/ranks", Kind::whole},
                                                    {"/started", Kind::text},
                                                    {"/ended", Kind::text},
                                                    {"/recipe", Kind::text},
                                                    {"/recipe_hash", Kind::text},
                                                    {"/seed", Kind::whole},
                                                    {"/data_hashes", Kind::text_map},
                                                    {"/provenance", Kind::object},
                                                    {"/provenance/commit", Kind::text},
                                                    {"/provenance/changes_hash", Kind::text},
                                                    {"/provenance/program_hash", Kind::text},
                                                    {"/provenance/compiler", Kind::text},
                                                    {"/provenance/flags", Kind::text},
                                                    {"/provenance/libraries", Kind::texts},
                                                    {"/provenance/cpu", Kind::text},
                                                    {"/provenance/cpu_features", Kind::texts},
                                                    {"/provenance/cores", Kind::whole},
                                                    {"/provenance/numa_nodes", Kind::whole},
                                                    {"/provenance/gpus", Kind::texts},
                                                    {"/provenance/network", Kind::text_map},
                                                    {"/provenance/preloaded", Kind::texts},
                                                    {"/provenance/kernel", Kind::text},
                                                    {"/provenance/mounts", Kind::text_map},
                                                    {"/provenance/environment", Kind::text_map},
                                                    {"/status", Kind::text},
                                                    {"/reason", Kind::text},
                                                    {"/outcome", Kind::object},
                                                    {"/outcome/exit_code", Kind::whole},
                                                    {"/outcome/signal", Kind::whole},
                                                    {"/outcome/wall_seconds", Kind::number},
                                                    {"/outcome/first_step_seconds", Kind::number},
                                                    {"/outcome/peak_memory_mib", Kind::number},
                                                    {"/outcome/foreign_cpu", Kind::number},
                                                    {"/outcome/stolen_cpu", Kind::number},
                                                    {"/outcome/throttled_seconds", Kind::number},
                                                    {"/outcome/disk_bytes_read", Kind::whole},
                                                    {"/interference", Kind::texts},
                                                    {"/warnings", Kind::texts},
                                                    {"/steps/seconds", Kind::numbers},
                                                    {"/steps/data_wait", Kind::numbers},
                                                    {"/steps/exposed", Kind::numbers},
                                                    {"/steps/communication_core", Kind::numbers},
                                                    {"/steps/skew", Kind::numbers},
                                                    {"/steps/loss", Kind::numbers},
                                                    {"/steps/images", Kind::numbers},
                                                    {"/warm_up/steps", Kind::whole},
                                                    {"/loss_digest", Kind::text},
                                                    {"/metrics", Kind::number_map}};
    return fields;
}

std::vector<std::string> problems_of(const json& object) {
    if (!object.is_object()) {
        return {"not a JSON object"};
    }
    std::vector<std::string> problems;
    for (const auto& [pointer, kind] : schema()) {
        const json::json_pointer place(pointer);
        if (!object.contains(place)) {
            problems.push_back(str(pointer, " is missing"));
        } else if (!is_kind(object.at(place), kind)) {
            problems.push_back(str(pointer, " must be ", name_of_kind(kind)));
        }
    }
    if (!problems.empty()) {
        return problems;
    }
    if (object["schema"] != "lockstep.bench.record") {
        problems.emplace_back("/schema must be lockstep.bench.record");
    }
    if (object["version"] != record_version) {
        problems.push_back(str("/version is ", object["version"].dump(), "; this program knows ", record_version));
    }
    const std::string status = object["status"], measurement = object["measurement"];
    if (status != "ok" && status != "failed" && status != "timed_out") {
        problems.push_back("/status must be ok, failed or timed_out, not " + status);
    }
    if (measurement != "speed" && measurement != "accuracy") {
        problems.push_back("/measurement must be speed or accuracy, not " + measurement);
    }
    for (const char* positive : {"block", "attempt", "ranks"}) {
        if (object[positive] < 1) {
            problems.push_back(str("/", positive, " must be at least 1"));
        }
    }
    const std::size_t steps = object["steps"]["seconds"].size();
    for (const char* array : {"data_wait", "exposed", "communication_core", "skew", "loss", "images"}) {
        if (object["steps"][array].size() != steps) {
            problems.push_back(
                str("/steps/", array, " has ", object["steps"][array].size(), " entries, /steps/seconds ", steps));
        }
    }
    if (object["warm_up"]["steps"] > steps) {
        problems.emplace_back("/warm_up/steps is more than there are steps");
    }
    if (status == "ok" && !object["metrics"].contains("seconds_per_image")) {
        problems.emplace_back("/metrics/seconds_per_image is missing from a launch that succeeded");
    }
    return problems;
}

std::vector<double> numbers(const json& list) {
    std::vector<double> values;
    for (const json& item : list) {
        values.push_back(item.is_null() ? std::nan("") : item.get<double>());
    }
    return values;
}

double sum(std::span<const double> values) {
    double total = 0;
    for (const double value : values) {
        total += value;
    }
    return total;
}

}  // namespace

std::string_view name_of(LaunchStatus status) {
    switch (status) {
        case LaunchStatus::ok:
            return "ok";
        case LaunchStatus::timed_out:
            return "timed_out";
        case LaunchStatus::failed:
            break;
    }
    return "failed";
}

void read_run(Record& record, const fs::path& run) {
    StepArrays steps;
    base::Hash64 losses;
    std::vector<double> evaluations;
    std::ifstream file(run / "metrics.jsonl");
    for (std::string text; std::getline(file, text);) {
        const json line = json::parse(text, nullptr, false);
        if (line.is_discarded()) {
            continue;  // cut short by a kill
        }
        const auto number = [&](const char* key) {
            return line.contains(key) && line[key].is_number() ? line[key].get<double>() : 0.0;
        };
        if (line.value("kind", "") == "step") {
            steps.seconds.push_back(number("step_seconds"));
            steps.data_wait.push_back(number("data_wait_seconds"));
            steps.exposed.push_back(number("exposed_communication_seconds"));
            steps.communication_core.push_back(number("communication_core_seconds"));
            steps.skew.push_back(number("rank_skew_seconds"));
            steps.images.push_back(number("images"));
            steps.loss.push_back(line.contains("loss") && line["loss"].is_number() ? number("loss") : std::nan(""));
            losses.add(line.contains("loss") ? line["loss"].dump() : "");
        } else if (line.contains("evaluation_seconds")) {
            evaluations.push_back(number("evaluation_seconds"));
        }
    }
    record.steps = steps;
    record.loss_digest = losses.hex();
    auto& metrics = record.metrics;
    const auto put = [&](const std::string& name, double value) {
        if (std::isfinite(value)) {
            metrics[name] = value;
        }
    };
    record.warm_up = find_warm_up(steps.seconds);
    const std::size_t cut = record.warm_up.steps;
    std::vector<double> per_image;
    for (std::size_t i = cut; i < steps.seconds.size(); ++i) {
        if (steps.images[i] > 0 && steps.seconds[i] > 0) {
            per_image.push_back(steps.seconds[i] / steps.images[i]);
        }
    }
    if (!per_image.empty()) {
        const auto share_of_time = [&](const std::vector<double>& values) {
            return sum(std::span(values).subspan(cut)) / sum(std::span(steps.seconds).subspan(cut));
        };
        put("seconds_per_image", median(per_image));
        put("images_per_second", 1 / median(per_image));
        put("data_wait_fraction", share_of_time(steps.data_wait));
        put("exposed_communication_fraction", share_of_time(steps.exposed));
        put("communication_core_fraction", share_of_time(steps.communication_core));
        put("rank_skew_fraction", share_of_time(steps.skew));
        put("training_seconds", sum(steps.seconds));
        put("final_loss", steps.loss.back());
    }
    if (!evaluations.empty()) {
        put("evaluation_seconds", median(evaluations));
    }
    if (record.outcome.peak_memory_mib > 0) {
        put("memory_mib", record.outcome.peak_memory_mib);
    }
    if (record.outcome.first_step_seconds > 0) {
        put("startup_seconds", record.outcome.first_step_seconds);
    }
    if (fs::exists(run / "summary.json")) {
        const json summary = json::parse(base::read_text(run / "summary.json"), nullptr, false);
        if (summary.is_object() && summary.contains("metrics") && summary["metrics"].is_object()) {
            for (const auto& [name, value] : summary["metrics"].items()) {
                if (value.is_number() && value >= 0) {  // -1: no such box
                    put(name, value);
                }
            }
        }
    }
}

std::string to_json(const Record& record) {
    const json object = {{"schema", "lockstep.bench.record"},
                         {"version", record_version},
                         {"id", record.id},
                         {"sweep", record.sweep},
                         {"measurement", record.measurement},
                         {"block", record.block},
                         {"arm", record.arm},
                         {"attempt", record.attempt},
                         {"order", record.order},
                         {"command", record.command},
                         {"launcher", record.launcher},
                         {"ranks", record.ranks},
                         {"started", record.started},
                         {"ended", record.ended},
                         {"recipe", record.recipe},
                         {"recipe_hash", record.recipe_hash},
                         {"seed", record.seed},
                         {"data_hashes", record.data_hashes},
                         {"provenance", json::parse(record.provenance)},
                         {"status", name_of(record.status)},
                         {"reason", record.reason},
                         {"outcome", outcome_json(record.outcome)},
                         {"interference", record.interference},
                         {"warnings", record.warnings},
                         {"steps",
                          {{"seconds", record.steps.seconds},
                           {"data_wait", record.steps.data_wait},
                           {"exposed", record.steps.exposed},
                           {"communication_core", record.steps.communication_core},
                           {"skew", record.steps.skew},
                           {"loss", record.steps.loss},
                           {"images", record.steps.images}}},
                         {"warm_up", {{"steps", record.warm_up.steps}, {"still_drifts", record.warm_up.still_drifts}}},
                         {"loss_digest", record.loss_digest},
                         {"metrics", record.metrics}};
    return object.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::vector<std::string> record_problems(std::string_view text) {
    const json object = json::parse(text, nullptr, false);
    return object.is_discarded() ? std::vector<std::string>{"not valid JSON"} : problems_of(object);
}

Record parse_record(std::string_view text, const std::string& origin) {
    const std::vector<std::string> problems = record_problems(text);
    if (!problems.empty()) {
        throw Error(str(origin, ": not a valid record: ", base::join(problems, "; ")));
    }
    const json object = json::parse(text);
    Record record;
    for (const auto& [key, field] : {std::pair{"id", &record.id},
                                     {"sweep", &record.sweep},
                                     {"measurement", &record.measurement},
                                     {"arm", &record.arm},
                                     {"launcher", &record.launcher},
                                     {"started", &record.started},
                                     {"ended", &record.ended},
                                     {"recipe", &record.recipe},
                                     {"recipe_hash", &record.recipe_hash},
                                     {"reason", &record.reason},
                                     {"loss_digest", &record.loss_digest}}) {
        *field = object[key].get<std::string>();
    }
    for (const auto& [key, field] : {std::pair{"block", &record.block},
                                     {"attempt", &record.attempt},
                                     {"order", &record.order},
                                     {"ranks", &record.ranks},
                                     {"seed", &record.seed}}) {
        *field = object[key].get<std::int64_t>();
    }
    record.command = object["command"].get<std::vector<std::string>>();
    record.interference = object["interference"].get<std::vector<std::string>>();
    record.warnings = object["warnings"].get<std::vector<std::string>>();
    record.data_hashes = object["data_hashes"].get<std::map<std::string, std::string>>();
    record.metrics = object["metrics"].get<std::map<std::string, double>>();
    record.provenance = object["provenance"].dump();
    const std::string status = object["status"];
    record.status = status == "ok"       ? LaunchStatus::ok
                    : status == "failed" ? LaunchStatus::failed
                                         : LaunchStatus::timed_out;
    const json& outcome = object["outcome"];
    record.outcome = {.exit_code = outcome["exit_code"],
                      .signal = outcome["signal"],
                      .timed_out = record.status == LaunchStatus::timed_out,
                      .wall_seconds = outcome["wall_seconds"],
                      .first_step_seconds = outcome["first_step_seconds"],
                      .peak_memory_mib = outcome["peak_memory_mib"],
                      .foreign_cpu = outcome["foreign_cpu"],
                      .stolen_cpu = outcome["stolen_cpu"],
                      .throttled_seconds = outcome["throttled_seconds"],
                      .disk_bytes_read = outcome["disk_bytes_read"]};
    const json& steps = object["steps"];
    record.steps = {.seconds = numbers(steps["seconds"]),
                    .data_wait = numbers(steps["data_wait"]),
                    .exposed = numbers(steps["exposed"]),
                    .communication_core = numbers(steps["communication_core"]),
                    .skew = numbers(steps["skew"]),
                    .loss = numbers(steps["loss"]),
                    .images = numbers(steps["images"])};
    record.warm_up = {object["warm_up"]["steps"], object["warm_up"].value("still_drifts", false)};
    return record;
}

std::vector<Record> read_records(const fs::path& directory) {
    std::vector<Record> records;
    if (!fs::is_directory(directory / "records")) {
        return records;
    }
    for (const auto& entry : fs::directory_iterator(directory / "records")) {
        if (entry.path().extension() == ".json") {
            records.push_back(parse_record(base::read_text(entry.path()), entry.path().string()));
        }
    }
    std::ranges::sort(records, {}, &Record::order);
    return records;
}

}  // namespace lockstep::bench
