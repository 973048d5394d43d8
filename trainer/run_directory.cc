#include "trainer/run_directory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/resources.h"
#include "trainer/checkpoint.h"

extern char** environ;

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::str;
using nlohmann::json;

constexpr std::array<std::string_view, 6> recorded_variables = {"OMP_",       "OMPI_MCA_", "OMPI_COMM_WORLD_",
                                                                "SLURM_JOB_", "SLURM_N",   "HDF5_"};

json allowed_environment() {
    json variables = json::object();
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string_view text = *entry;
        const auto equals = text.find('=');
        const auto name = text.substr(0, equals);
        if (equals != std::string_view::npos &&
            std::ranges::any_of(recorded_variables, [&](auto prefix) { return name.starts_with(prefix); })) {
            variables[std::string(name)] = std::string(text.substr(equals + 1));
        }
    }
    return variables;
}

}  // namespace

RunDirectory::RunDirectory(fs::path path)
    : path_(std::move(path)), metrics_(path_ / "metrics.jsonl", std::ios::app), events_(path_ / "tensorboard") {
    if (!metrics_) {
        throw Error(str((path_ / "metrics.jsonl").string(), ": can't write: ", std::strerror(errno)));
    }
}

bool holds_run(const fs::path& path) {
    return fs::exists(path / "metrics.jsonl");
}

RunDirectory RunDirectory::create(const fs::path& path) {
    if (holds_run(path)) {
        const bool can_continue = newest_checkpoint(path).has_value();
        throw base::UsageError(str(path.string(), " holds a run already",
                                   can_continue
                                       ? str("; continue it with --resume ", path.string(), ", or")
                                       : ", which left no checkpoint; remove it, start over with --resume auto, or",
                                   " give another --out"));
    }
    std::error_code failure;
    fs::create_directories(path, failure);
    if (failure) {
        throw Error(str(path.string(), ": can't create the run directory: ", failure.message()));
    }
    return RunDirectory(path);
}

RunDirectory RunDirectory::resume(const fs::path& path, std::uint64_t resumed_at, bool goes_on) {
    std::vector<json> kept;
    std::string text;
    for (const json& line : read_metrics(path)) {
        const bool is_repeated = line.value("step", std::uint64_t{0}) > resumed_at;
        if (!is_repeated && !(goes_on && line.contains("steps_left_out"))) {
            text += line.dump() + "\n";
            kept.push_back(line);
        }
    }
    base::write_whole(path / "metrics.jsonl", text);
    if (goes_on) {
        fs::remove(path / "summary.json");  // of an end that it has no longer reached
    }
    RunDirectory run(path);
    std::ranges::for_each(kept, [&run](const json& line) { run.add_to_events(line); });
    return run;
}

void RunDirectory::write_recipe(const Recipe& recipe) const {
    base::write_whole(path_ / "recipe.resolved.toml", to_toml(recipe));
}

void RunDirectory::write_environment(const std::vector<std::string>& hosts) const {
    const json environment = {{"lockstep", LOCKSTEP_VERSION},       {"compiler", __VERSION__},
                              {"libtorch", LOCKSTEP_TORCH_VERSION}, {"cpu", base::cpu_model()},
                              {"cores", base::usable_cores()},      {"hosts", hosts},
                              {"started", base::utc_timestamp()},   {"environment", allowed_environment()}};
    base::write_whole(path_ / "environment.json", environment.dump(1) + "\n");
}

void RunDirectory::write_summary(const json& summary) const {
    base::write_whole(path_ / "summary.json", summary.dump(1) + "\n");
}

void RunDirectory::log_metrics(json line) {
    line["time"] = base::unix_seconds();
    metrics_ << line.dump() << '\n' << std::flush;
    if (!metrics_) {
        throw Error(
            str((path_ / "metrics.jsonl").string(), ": can't write: ", std::strerror(errno), "; is the disk full?"));
    }
    add_to_events(line);
}

/// "step/loss", "epoch/AP50", "step/denominators/0".
void RunDirectory::add_to_events(const json& line) {
    std::vector<Scalar> scalars;
    const auto add = [&scalars](const std::string& name, const json& value) {
        if (value.is_number()) {
            scalars.emplace_back(name, value.get<double>());
        } else if (value.is_boolean()) {
            scalars.emplace_back(name, value.get<bool>() ? 1 : 0);
        }
    };
    const std::string kind = line.value("kind", "");
    for (const auto& [key, value] : line.items()) {
        if (key == "epoch" || key == "step" || key == "time") {
            continue;
        }
        add(str(kind, "/", key), value);
        for (std::size_t i = 0; value.is_array() && i < value.size(); ++i) {
            add(str(kind, "/", key, "/", i), value[i]);
        }
    }
    events_.add(line.value("step", std::uint64_t{0}), line.value("time", 0.0), scalars);
}

std::vector<json> read_metrics(const fs::path& run) {
    std::vector<json> lines;
    std::istringstream text(base::read_text(run / "metrics.jsonl"));
    for (std::string line; std::getline(text, line);) {
        json parsed = json::parse(line, nullptr, false);
        if (!parsed.is_discarded()) {
            lines.push_back(std::move(parsed));
        }
    }
    return lines;
}

}  // namespace lockstep::trainer
