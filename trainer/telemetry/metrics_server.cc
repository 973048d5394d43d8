#include "trainer/telemetry/metrics_server.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"

#ifdef LOCKSTEP_PROMETHEUS
#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#endif

namespace lockstep::trainer {

using base::str;

#ifdef LOCKSTEP_PROMETHEUS

namespace {

using nlohmann::json;
using Gauges = prometheus::Family<prometheus::Gauge>;

constexpr std::size_t threads = 1;

std::unique_ptr<prometheus::Exposer> listen_at(const std::string& address) {
    try {
        return std::make_unique<prometheus::Exposer>(address, threads);
    } catch (const std::exception& error) {  // CivetException, whose text is "null context when constructing ..."
        throw base::UsageError(str("telemetry.prometheus = \"", address,
                                   "\": nothing can listen there: wanted \"host:port\" of this machine, with a port "
                                   "that is free (",
                                   error.what(), ")"));
    }
}

}  // namespace

struct MetricsServer::State {
    std::string host;
    std::unique_ptr<prometheus::Exposer> exposer;
    std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();

    Gauges& gauges(const char* name, const char* help) {
        return prometheus::BuildGauge().Name(name).Help(help).Register(*registry);
    }
    prometheus::Counter& counter(const char* name, const char* help) {
        return prometheus::BuildCounter().Name(name).Help(help).Register(*registry).Add({});
    }

    Gauges& info = gauges("lockstep_run_info", "1; the labels say which run it is");
    prometheus::Counter& steps = counter("lockstep_steps_total", "Optimizer steps taken by this process");
    prometheus::Counter& skipped = counter("lockstep_skipped_steps_total", "Steps without effect, since not finite");
    prometheus::Counter& images = counter("lockstep_images_total", "Images trained on by all ranks");
    prometheus::Gauge& step = gauges("lockstep_step", "Optimizer steps of the whole run").Add({});
    prometheus::Gauge& epoch = gauges("lockstep_epoch", "Epochs that are done").Add({});
    prometheus::Gauge& loss = gauges("lockstep_loss", "Of the last step").Add({});
    prometheus::Gauge& rate = gauges("lockstep_learning_rate", "Of the last step").Add({});
    prometheus::Gauge& norm = gauges("lockstep_gradient_norm", "Of the last step, before clipping").Add({});
    prometheus::Gauge& speed = gauges("lockstep_images_per_second", "Of all ranks, in the last step").Add({});
    prometheus::Gauge& memory = gauges("lockstep_memory_bytes", "Proportional set size of rank 0").Add({});
    Gauges& seconds = gauges("lockstep_step_seconds", "Of rank 0's last step, by part; total is all of it");
    Gauges& of_ranks = gauges("lockstep_rank_step_seconds",
                              "Of an average step of the last epoch, by part: mean, least and greatest of the ranks");
    Gauges& results = gauges("lockstep_evaluation", "Results of the last evaluation, by metric");

    void of_step(const json& line);
    void of_epoch(const json& line);
};

void MetricsServer::State::of_step(const json& line) {
    const double total = line.value("step_seconds", 0.0);
    steps.Increment();
    skipped.Increment(line.value("skipped_step", false) ? 1 : 0);
    images.Increment(line.value("images", 0.0));
    step.Set(line.value("step", 0.0));
    const auto set = [&line](prometheus::Gauge& gauge, const char* key) {
        if (const auto value = line.find(key); value != line.end() && value->is_number()) {  // null: not finite
            gauge.Set(value->get<double>());
        }
    };
    set(loss, "loss");
    set(rate, "learning_rate");
    set(norm, "gradient_norm");
    speed.Set(total > 0 ? line.value("images", 0.0) / total : 0);
    for (const auto& [part, key] : {std::pair{"total", "step_seconds"},
                                    {"data_wait", "data_wait_seconds"},
                                    {"forward", "forward_seconds"},
                                    {"backward", "backward_seconds"},
                                    {"exposed_communication", "exposed_communication_seconds"},
                                    {"optimizer", "optimizer_seconds"}}) {
        set(seconds.Add({{"part", part}}), key);
    }
}

void MetricsServer::State::of_epoch(const json& line) {
    epoch.Set(line.value("epoch", 0.0));
    if (const auto parts = line.find("step_parts"); parts != line.end()) {
        for (const auto& [part, spread] : parts->items()) {
            for (const char* of : {"mean", "least", "greatest"}) {
                of_ranks.Add({{"part", part}, {"of", of}}).Set(spread.at(of).get<double>());
            }
        }
    }
    for (const char* metric : {"AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "accuracy"}) {
        if (const auto value = line.find(metric); value != line.end()) {
            results.Add({{"metric", metric}}).Set(value->get<double>());
        }
    }
}

MetricsServer::MetricsServer(const std::string& address, const std::map<std::string, std::string>& labels)
    : state_(std::make_unique<State>()) {
    state_->host = address.substr(0, address.rfind(':'));
    state_->exposer = listen_at(address);
    state_->info.Add(labels).Set(1);
    state_->exposer->RegisterCollectable(state_->registry);
}

void MetricsServer::update(const json& line) {
    if (line.value("kind", "") == "step") {
        state_->of_step(line);
    } else {
        state_->of_epoch(line);
    }
}

void MetricsServer::set_memory(std::uint64_t bytes) {
    state_->memory.Set(static_cast<double>(bytes));
}

std::string MetricsServer::url() const {
    return str("http://", state_->host, ":", state_->exposer->GetListeningPorts().front(), "/metrics");
}

bool MetricsServer::is_built_in() {
    return true;
}

#else

struct MetricsServer::State {};

MetricsServer::MetricsServer(const std::string& address, const std::map<std::string, std::string>&) {
    throw base::UsageError(str("telemetry.prometheus = \"", address,
                               "\": this build has no metrics server: install prometheus-cpp-dev and build again, or ",
                               "leave the key out"));
}

void MetricsServer::update(const nlohmann::json&) {}

void MetricsServer::set_memory(std::uint64_t) {}

std::string MetricsServer::url() const {
    return "";
}

bool MetricsServer::is_built_in() {
    return false;
}

#endif

MetricsServer::~MetricsServer() = default;

}  // namespace lockstep::trainer
