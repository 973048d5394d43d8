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

RunDirectory::RunDirectory(fs::path path) : path_(std::move(path)), metrics_(path_ / "metrics.jsonl", std::ios::app) {
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
    std::string kept;
    for (const json& line : read_metrics(path)) {
        const bool is_repeated = line.value("step", std::uint64_t{0}) > resumed_at;
        if (!is_repeated && !(goes_on && line.contains("steps_left_out"))) {
            kept += line.dump() + "\n";
        }
    }
    base::write_whole(path / "metrics.jsonl", kept);
    return RunDirectory(path);
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

void RunDirectory::log_metrics(const json& line) {
    metrics_ << line.dump() << '\n' << std::flush;
    if (!metrics_) {
        throw Error(
            str((path_ / "metrics.jsonl").string(), ": can't write: ", std::strerror(errno), "; is the disk full?"));
    }
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
