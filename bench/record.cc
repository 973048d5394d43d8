#include "bench/record.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/resources.h"

extern char** environ;

namespace lockstep::bench {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::str;
using nlohmann::json;

constexpr std::array<std::string_view, 12> recorded_variables = {"OMP_",      "KMP_",       "OMPI_MCA_", "UCX_",
                                                                 "NCCL_",     "CUDA_",      "HDF5_",     "MALLOC_",
                                                                 "TCMALLOC_", "SLURM_JOB_", "SLURM_N",   "MKL_"};

/// What a command prints, without the line end; "" where it can't be run.
std::string output_of(const std::string& command) {
    const auto close = [](std::FILE* pipe) { pclose(pipe); };
    const std::unique_ptr<std::FILE, decltype(close)> pipe(popen((command + " 2>/dev/null").c_str(), "r"), close);
    std::string text;
    std::array<char, 4096> buffer{};
    while (pipe) {
        const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe.get());
        if (got == 0) {
            break;
        }
        text.append(buffer.data(), got);
    }
    return std::string(base::trim(text));
}

std::string quoted(const std::string& word) {
    std::string text = "'";
    for (const char c : word) {
        text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    return text + "'";
}

std::string first_line(const fs::path& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

/// Type of the file system that holds `path`: of the longest mount point above it.
std::string mount_type(const fs::path& path) {
    std::error_code failure;
    const std::string place = fs::weakly_canonical(path, failure).string();
    std::ifstream mounts("/proc/self/mounts");
    std::string best_point, best_type;
    for (std::string line; std::getline(mounts, line);) {
        std::istringstream words(line);
        std::string device, point, type;
        words >> device >> point >> type;
        const bool is_above = point == "/" || place == point || place.starts_with(point + "/");
        if (is_above && point.size() >= best_point.size()) {
            best_point = point;
            best_type = type;
        }
    }
    return best_type;
}

/// Versioned file names of the libraries that decide about speed.
json libraries_of(const std::string& program) {
    json names = json::array();
    std::istringstream lines(output_of("ldd " + quoted(program)));
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string name, arrow, path;
        words >> name >> arrow >> path;
        constexpr std::array<std::string_view, 10> known = {"libtorch", "libc10",         "libgomp", "libmpi.",
                                                            "libhdf5",  "libopencv_core", "libjpeg", "libtcmalloc",
                                                            "libc.so",  "libstdc++"};
        if (std::ranges::any_of(known, [&](auto prefix) { return name.starts_with(prefix); })) {
            std::error_code failure;
            const fs::path real = fs::canonical(path, failure);
            names.push_back(failure ? name : real.filename().string());
        }
    }
    return names;
}

json allowed_environment() {
    json variables = json::object();
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string_view text = *entry;
        const auto equals = text.find('=');
        if (equals != std::string_view::npos &&
            std::ranges::any_of(recorded_variables, [&](auto prefix) { return text.starts_with(prefix); })) {
            variables[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
        }
    }
    return variables;
}

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
                                                    {"/provenance/cores", Kind::whole},
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
    for (const char* array : {"data_wait", "exposed", "loss", "images"}) {
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
        const auto steady = [&](const std::vector<double>& values) { return sum(std::span(values).subspan(cut)); };
        put("seconds_per_image", median(per_image));
        put("images_per_second", 1 / median(per_image));
        put("data_wait_fraction", steady(steps.data_wait) / steady(steps.seconds));
        put("exposed_communication_fraction", steady(steps.exposed) / steady(steps.seconds));
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
    record.steps = {numbers(steps["seconds"]), numbers(steps["data_wait"]), numbers(steps["exposed"]),
                    numbers(steps["loss"]), numbers(steps["images"])};
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

std::string data_hash(const fs::path& directory) {
    const fs::path index = directory / "index.h5";
    if (!fs::exists(index)) {
        return {};
    }
    return base::Hash64().add(std::span<const std::uint8_t>(base::MappedFile(index).bytes())).hex();
}

std::string provenance_json(const std::string& program, const std::vector<fs::path>& places) {
    const std::string changes = output_of("git diff HEAD");
    utsname system{};
    uname(&system);
    json mounts = json::object();
    for (const fs::path& place : places) {
        mounts[place.string()] = mount_type(place);
    }
    std::string program_hash;
    if (fs::is_regular_file(program)) {
        program_hash = base::Hash64().add(base::MappedFile(program).bytes()).hex();
    }
    const json object = {{"commit", output_of("git rev-parse HEAD")},
                         {"changes_hash", changes.empty() ? "" : base::Hash64().add(changes).hex()},
                         {"program_hash", program_hash},
                         {"compiler", "g++ " __VERSION__},
                         {"flags", LOCKSTEP_BUILD_FLAGS},
                         {"libraries", libraries_of(program)},
                         {"host", base::host_name()},
                         {"cpu", base::cpu_model()},
                         {"cores", base::usable_cores()},
                         {"memory_mib", base::available_memory_bytes() >> 20},
                         {"kernel", str(system.sysname, " ", system.release)},
                         {"governor", first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")},
                         {"mounts", mounts},
                         {"environment", allowed_environment()}};
    return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace lockstep::bench
