#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lockstep::trainer {

/// A run's latest figures under http://ADDRESS/metrics, for Prometheus to fetch as often as it likes; docs/telemetry.md
/// lists them. One thread at a time; threads of its own answer.
class MetricsServer {
  public:
    /// `address`: "host:port", "[::1]:9464"; port 0: any that is free. `labels` tell the run from others, on
    /// lockstep_run_info. Throws base::UsageError where nothing can listen there, or this build has no server.
    MetricsServer(const std::string& address, const std::map<std::string, std::string>& labels);
    ~MetricsServer();
    MetricsServer(const MetricsServer&) = delete;
    MetricsServer& operator=(const MetricsServer&) = delete;

    /// A line of metrics.jsonl, of a step or of an epoch.
    void update(const nlohmann::json& line);
    /// Proportional set size of this rank, in bytes.
    void set_memory(std::uint64_t bytes);

    /// Where it listens.
    std::string url() const;
    /// Whether this build has a server.
    static bool is_built_in();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace lockstep::trainer
