#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "trainer/recipe.h"
#include "trainer/telemetry/event_file.h"

namespace lockstep::trainer {

/// A run's directory as one rank writes it (rank 0): the interface between the trainer and everything else.
/// docs/run.md.
class RunDirectory {
  public:
    /// Creates it, or (`resumed_at` optimizer steps done) continues it: metrics of later steps, which will be taken
    /// again, are cut off, and where the run `goes_on` so are what was said of an epoch that max_steps had cut short
    /// and summary.json, until it ends again. Throws base::UsageError when a new run would overwrite an old one; the
    /// message says whether that one can be continued.
    static RunDirectory create(const std::filesystem::path& path);
    static RunDirectory resume(const std::filesystem::path& path, std::uint64_t resumed_at, bool goes_on = true);

    const std::filesystem::path& path() const { return path_; }

    void write_recipe(const Recipe& recipe) const;
    /// Versions, hardware, the hosts of all ranks, and an allow-list of environment variables (never the whole
    /// environment).
    void write_environment(const std::vector<std::string>& hosts) const;
    void write_summary(const nlohmann::json& summary) const;

    /// Appends one line to metrics.jsonl, with the time, and the same to TensorBoard's file, and hands them to the
    /// system.
    void log_metrics(nlohmann::json line);

  private:
    explicit RunDirectory(std::filesystem::path path);
    void add_to_events(const nlohmann::json& line);

    std::filesystem::path path_;
    std::ofstream metrics_;
    EventFile events_;
};

/// Whether a training was begun in this directory.
bool holds_run(const std::filesystem::path& path);

/// Every line of a run's metrics.jsonl; a last line that was cut short by a kill is left out.
std::vector<nlohmann::json> read_metrics(const std::filesystem::path& run);

}  // namespace lockstep::trainer
