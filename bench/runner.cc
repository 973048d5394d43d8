#include "bench/runner.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/resources.h"
#include "bench/provenance.h"
#include "trainer/recipe.h"

namespace lockstep::bench {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::fixed;
using base::str;
using nlohmann::json;

constexpr std::size_t failures_that_end_an_arm = 2;
/// Launches beyond the plan's, in parts of it: where the disturbance never ends, repeating is no help.
constexpr double most_repeats = 0.25;
constexpr std::size_t reason_characters = 600;
constexpr std::size_t most_warnings = 20;

/// One runner at a time. The kernel frees it however this process ends; the guardian of a launch in flight holds it
/// until that launch is gone, so the next sitting waits a moment.
class DirectoryLock {
  public:
    explicit DirectoryLock(const fs::path& path) : file_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
        if (file_ < 0) {
            throw Error(str(path.string(), ": ", std::strerror(errno)));
        }
        constexpr int patience = 100;
        for (int i = 0; flock(file_, LOCK_EX | LOCK_NB) != 0; ++i) {
            if (i == patience) {
                close(file_);
                throw Error(
                    str(path.parent_path().string(), ": another lockstep bench run is at work in this directory"));
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
    }
    ~DirectoryLock() { close(file_); }
    DirectoryLock(const DirectoryLock&) = delete;
    DirectoryLock& operator=(const DirectoryLock&) = delete;

  private:
    int file_;
};

/// What is known of the launches made so far.
class History {
  public:
    History(const Plan& plan, std::vector<Record> records) : plan_(plan), records_(std::move(records)) {}

    const std::vector<Record>& records() const { return records_; }
    void add(Record record) { records_.push_back(std::move(record)); }

    /// Attempts at one place in the order.
    std::int64_t attempts(const std::string& measurement, std::int64_t block, const std::string& arm) const {
        return std::ranges::count_if(records_, [&](const Record& r) {
            return r.measurement == measurement && r.block == block && r.arm == arm;
        });
    }
    bool has_undisturbed(const std::string& measurement, std::int64_t block, const std::string& arm) const {
        return std::ranges::any_of(records_, [&](const Record& r) {
            return r.measurement == measurement && r.block == block && r.arm == arm && r.status == LaunchStatus::ok &&
                   r.interference.empty();
        });
    }
    bool has_result(const std::string& measurement, std::int64_t block, const std::string& arm) const {
        return std::ranges::any_of(records_, [&](const Record& r) {
            return r.measurement == measurement && r.block == block && r.arm == arm && r.status == LaunchStatus::ok;
        });
    }
    bool is_given_up(const std::string& measurement, const std::string& arm) const {
        const auto failures = std::ranges::count_if(records_, [&](const Record& r) {
            return r.measurement == measurement && r.arm == arm && r.status != LaunchStatus::ok;
        });
        return static_cast<std::size_t>(failures) >= failures_that_end_an_arm;
    }
    /// More attempts than one at a place.
    std::size_t repeats() const {
        std::set<std::string> places;
        for (const Record& r : records_) {
            places.insert(str(r.measurement, '/', r.block, '/', r.arm));
        }
        return records_.size() - places.size();
    }
    double spent_seconds() const {
        double seconds = 0;
        for (const Record& r : records_) {
            seconds += r.outcome.wall_seconds;
        }
        return seconds;
    }
    /// Whether nothing more is to be launched at this place.
    bool is_done(const std::string& measurement, std::int64_t block, const std::string& arm,
                 std::size_t planned) const {
        if (is_given_up(measurement, arm) || has_undisturbed(measurement, block, arm)) {
            return true;
        }
        const std::int64_t made = attempts(measurement, block, arm);
        const bool may_repeat =
            made < plan_.attempts && static_cast<double>(repeats()) < most_repeats * static_cast<double>(planned);
        return made > 0 && !may_repeat;
    }
    std::optional<double> launch_seconds(const Measurement& measurement, const std::string& arm) const {
        std::vector<double> of_arm, of_all;
        for (const Record& r : records_) {
            if (r.measurement == name_of(measurement.kind) && r.status == LaunchStatus::ok) {
                of_all.push_back(r.outcome.wall_seconds);
                if (r.arm == arm) {
                    of_arm.push_back(r.outcome.wall_seconds);
                }
            }
        }
        if (!of_arm.empty()) {
            return median(of_arm);
        }
        if (!of_all.empty()) {
            return median(of_all);
        }
        return measurement.launch_seconds > 0 ? std::optional(measurement.launch_seconds) : std::nullopt;
    }

  private:
    const Plan& plan_;
    std::vector<Record> records_;
};

/// The end of what a launch printed, which has the reason of a failure, and its warnings.
void read_output(Record& record, const fs::path& output, const Measurement& measurement) {
    const std::string text = fs::exists(output) ? base::read_text(output) : "";
    std::istringstream lines(text);
    std::string last_error;
    for (std::string line; std::getline(lines, line);) {
        if (line.find("warning") != std::string::npos && record.warnings.size() < most_warnings) {
            record.warnings.push_back(line);
        }
        if (line.find("error") != std::string::npos || line.find("Error") != std::string::npos) {
            last_error = line;
        }
    }
    if (record.status == LaunchStatus::timed_out) {
        record.reason = str("took longer than timeout_seconds = ", measurement.timeout_seconds);
    } else if (record.status == LaunchStatus::failed) {
        const std::string how = record.outcome.signal != 0 ? str("ended by signal ", record.outcome.signal)
                                                           : str("exit code ", record.outcome.exit_code);
        std::string what = last_error.empty() ? std::string(base::trim(text)) : last_error;
        if (what.size() > reason_characters) {
            what = what.substr(what.size() - reason_characters);
        }
        record.reason = how + (what.empty() ? "" : ": " + what);
    }
}

/// Tensors are not what a sweep keeps: 50 MB a launch.
void drop_tensors(const fs::path& run) {
    std::error_code ignored;
    fs::remove_all(run / "checkpoints", ignored);
    fs::remove(run / "weights.safetensors", ignored);
    fs::remove(run / "report.html", ignored);
}

std::string launch_id(std::int64_t order, const Measurement& measurement, std::int64_t block, std::size_t arm,
                      std::int64_t attempt) {
    const auto padded = [](std::int64_t number, int width) {
        std::ostringstream text;
        text << std::setw(width) << std::setfill('0') << number;
        return text.str();
    };
    return str(padded(order, 4), "-", name_of(measurement.kind), "-b", padded(block, 2), "-a",
               padded(static_cast<std::int64_t>(arm), 2), attempt > 1 ? str("-again", attempt - 1) : "");
}

class Sweep {
  public:
    Sweep(const Plan& plan, const std::string& plan_text, const RunnerOptions& options)
        : plan_(plan),
          options_(options),
          hash_(plan_hash(plan_text)),
          public_text_(options.program, options.out),
          history_(plan, read_records(options.out)) {
        for (const Measurement& measurement : plan.measurements) {
            arms_.push_back(arms_of(plan, measurement));
        }
        order_ = launch_order(plan);
        const trainer::Recipe recipe = trainer::load_recipe(plan.recipe);
        provenance_ = provenance_json(options.program, {{"sweep", options.out}, {"data", recipe.data.train}});
    }

    void run() {
        base::Progress progress("bench", "launches", order_.size(), done());
        std::size_t block_begin = 0;
        for (std::size_t i = 0; i < order_.size(); ++i) {
            const bool begins_block =
                i == 0 || order_[i].block != order_[i - 1].block || order_[i].measurement != order_[i - 1].measurement;
            if (begins_block) {
                block_begin = i;
                if (passes_budget(block_begin)) {
                    base::log_warning(str("stopped at the budget of ", plan_.budget_minutes, " minutes, before block ",
                                          order_[i].block, " of ", measurement_of(order_[i]).blocks,
                                          "; raise budget_minutes in the plan and start a new directory for more"));
                    return;
                }
            }
            while (!is_done(order_[i])) {
                launch(order_[i]);
                const auto left = predicted_seconds(plan_, history_.records());
                progress.update(done(), str(arm_of(order_[i]).name, ", block ", order_[i].block,
                                            left ? ", left " + base::human_duration(*left) : std::string()));
            }
        }
        progress.finish();
    }

  private:
    const Measurement& measurement_of(const PlannedLaunch& launch) const {
        return plan_.measurements[launch.measurement];
    }
    const Arm& arm_of(const PlannedLaunch& launch) const { return arms_[launch.measurement][launch.arm]; }

    bool is_done(const PlannedLaunch& launch) const {
        return history_.is_done(std::string(name_of(measurement_of(launch).kind)), launch.block, arm_of(launch).name,
                                order_.size());
    }
    std::size_t done() const {
        return static_cast<std::size_t>(
            std::ranges::count_if(order_, [&](const auto& launch) { return is_done(launch); }));
    }

    /// A block is begun only where all of it fits, so that arms keep equal numbers of launches.
    bool passes_budget(std::size_t begin) const {
        if (plan_.budget_minutes == 0) {
            return false;
        }
        double block_seconds = 0;
        for (std::size_t i = begin; i < order_.size() && order_[i].block == order_[begin].block &&
                                    order_[i].measurement == order_[begin].measurement;
             ++i) {
            if (!is_done(order_[i])) {
                block_seconds += history_.launch_seconds(measurement_of(order_[i]), arm_of(order_[i]).name).value_or(0);
            }
        }
        return block_seconds > 0 && history_.spent_seconds() + block_seconds > 60 * plan_.budget_minutes;
    }

    void launch(const PlannedLaunch& planned) {
        const Measurement& measurement = measurement_of(planned);
        const Arm& arm = arm_of(planned);
        Record record;
        record.sweep = hash_;
        record.measurement = name_of(measurement.kind);
        record.block = planned.block;
        record.arm = arm.name;
        record.attempt = history_.attempts(record.measurement, planned.block, arm.name) + 1;
        record.order = static_cast<std::int64_t>(history_.records().size()) + 1;
        record.id = launch_id(record.order, measurement, planned.block, planned.arm, record.attempt);
        record.ranks = ranks_of(arm);
        record.recipe = resolved_recipe(plan_, measurement, arm, planned.block);
        record.provenance = provenance_;
        const trainer::Recipe recipe = trainer::parse_recipe(record.recipe, record.id);
        record.seed = recipe.seed;
        for (const std::string& data : {recipe.data.train, recipe.data.validation}) {
            if (!data.empty()) {
                record.data_hashes[data] = data_hash(data);
            }
        }
        const fs::path run = options_.out / "runs" / record.id;
        fs::remove_all(run);  // of a launch that was killed with its runner
        fs::create_directories(run);
        record.command = {options_.program, "train", plan_.recipe.string()};
        for (const std::string& setting : launch_settings(measurement, arm, planned.block)) {
            record.command.insert(record.command.end(), {"--set", setting});
        }
        record.command.insert(record.command.end(), {"--out", run.string()});

        const auto launcher = options_.launcher(ranks_of(arm));
        record.launcher = launcher->name();
        record.started = base::utc_timestamp();
        const fs::path output = run / "output.txt";
        try {
            record.outcome = launcher->launch({.words = record.command,
                                               .ranks = ranks_of(arm),
                                               .environment = arm.settings.environment,
                                               .run = run,
                                               .output = output,
                                               .timeout_seconds = measurement.timeout_seconds});
            record.status = record.outcome.timed_out        ? LaunchStatus::timed_out
                            : record.outcome.exit_code == 0 ? LaunchStatus::ok
                                                            : LaunchStatus::failed;
        } catch (const Error& error) {
            record.status = LaunchStatus::failed;
            record.reason = error.what();
        }
        record.ended = base::utc_timestamp();
        read_run(record, run);
        if (record.reason.empty()) {
            read_output(record, output, measurement);
        }
        if (record.status == LaunchStatus::ok && !record.metrics.contains("seconds_per_image")) {
            record.status = LaunchStatus::failed;
            record.reason = "it ended with exit code 0 but took no step that could be timed";
        }
        record.interference = interference_of(record.outcome, options_.limits);
        if (record.status == LaunchStatus::ok) {
            drop_tensors(run);
        } else {
            base::log_warning(str(arm.name, ", block ", planned.block, " failed: ", record.reason));
        }
        make_public(record);
        base::write_whole(options_.out / "records" / (record.id + ".json"), to_json(record));
        history_.add(std::move(record));
    }

    /// A record is made to be published.
    void make_public(Record& record) const {
        const auto make = [&](std::string& text) { text = public_text_.of(std::move(text)); };
        std::ranges::for_each(record.command, make);
        std::ranges::for_each(record.warnings, make);
        make(record.reason);
        make(record.recipe);
        record.recipe_hash = base::Hash64().add(record.recipe).hex();
        std::map<std::string, std::string> hashes;
        for (const auto& [data, hash] : record.data_hashes) {
            hashes[public_text_.of(data)] = hash;
        }
        record.data_hashes = std::move(hashes);
    }

    const Plan& plan_;
    const RunnerOptions& options_;
    std::string hash_, provenance_;
    PublicText public_text_;
    History history_;
    std::vector<std::vector<Arm>> arms_;
    std::vector<PlannedLaunch> order_;
};

/// The arms that some measurement launches.
std::vector<Arm> launched_arms(const Plan& plan) {
    std::vector<Arm> arms = arms_of(plan);
    std::erase_if(arms, [&](const Arm& arm) {
        return std::ranges::none_of(plan.measurements, [&](const Measurement& measurement) {
            const auto launched = arms_of(plan, measurement);
            return std::ranges::find(launched, arm.name, &Arm::name) != launched.end();
        });
    });
    return arms;
}

std::string settings_text(const Settings& settings) {
    std::vector<std::string> parts;
    if (settings.ranks) {
        parts.push_back(str("ranks=", *settings.ranks));
    }
    for (const auto& [key, value] : settings.recipe) {
        parts.push_back(key + "=" + value);
    }
    for (const auto& [name, value] : settings.environment) {
        parts.push_back(str("env.", name, "=", value));
    }
    return parts.empty() ? "as the recipe says" : base::join(parts, " ");
}

/// The training of an arm as one types it.
std::string command_text(const std::string& recipe, const Arm& arm) {
    std::string text;
    for (const auto& [name, value] : arm.settings.environment) {
        text += str(name, "=", value, " ");
    }
    if (ranks_of(arm) > 1) {
        text += str("mpirun -np ", ranks_of(arm), " ");
    }
    text += "lockstep train " + recipe;
    for (const auto& [key, value] : arm.settings.recipe) {
        text += str(" --set '", key, "=", value, "'");
    }
    return text;
}

}  // namespace

std::vector<std::string> interference_of(const LaunchOutcome& outcome, const InterferenceLimits& limits) {
    std::vector<std::string> marks;
    if (outcome.foreign_cpu > limits.foreign_cpu) {
        marks.push_back(str("other processes used ", fixed(100 * outcome.foreign_cpu, 1), "% of the cores"));
    }
    if (outcome.stolen_cpu > limits.stolen_cpu) {
        marks.push_back(str("the hypervisor took ", fixed(100 * outcome.stolen_cpu, 1), "% of the cores"));
    }
    if (outcome.wall_seconds > 0 && outcome.throttled_seconds > limits.throttled_share * outcome.wall_seconds) {
        marks.push_back(str("held back by the CPU quota for ", fixed(outcome.throttled_seconds, 1), " s"));
    }
    if (outcome.disk_bytes_read > limits.disk_bytes_read) {
        marks.push_back(str("cold page cache: ", base::human_bytes(static_cast<double>(outcome.disk_bytes_read)),
                            " read from disk"));
    }
    return marks;
}

std::string plan_hash(const std::string& plan_text) {
    return base::Hash64().add(plan_text).hex();
}

std::string sweep_json(const Plan& plan, const std::string& plan_text) {
    json measurements = json::array(), factors = json::array(), arms = json::array(), missing = json::array();
    for (const Measurement& measurement : plan.measurements) {
        std::vector<std::string> names;
        for (const Arm& arm : arms_of(plan, measurement)) {
            names.push_back(arm.name);
        }
        measurements.push_back({{"kind", name_of(measurement.kind)},
                                {"blocks", measurement.blocks},
                                {"steps", measurement.steps},
                                {"arms", names}});
    }
    for (const Factor& factor : plan.factors) {
        json levels = json::array();
        for (const Level& level : factor.levels) {
            levels.push_back({{"name", level.name}, {"settings", settings_text(level.settings)}});
        }
        factors.push_back({{"name", factor.name}, {"about", factor.about}, {"levels", levels}});
    }
    for (const Arm& arm : launched_arms(plan)) {
        arms.push_back({{"name", arm.name},
                        {"levels", arm.levels},
                        {"settings", settings_text(arm.settings)},
                        {"command", command_text(plan.recipe.string(), arm)},
                        {"ranks", ranks_of(arm)},
                        {"simulates_nodes", simulates_nodes(arm)},
                        {"impossible", arm.impossible},
                        {"is_control", arm.is_control}});
    }
    for (const Missing& entry : plan.missing) {
        missing.push_back({{"name", entry.name}, {"reason", entry.reason}});
    }
    const json sweep = {{"schema", "lockstep.bench.sweep"},
                        {"version", 1},
                        {"title", plan.title},
                        {"about", plan.about},
                        {"recipe", plan.recipe.string()},
                        {"plan_hash", plan_hash(plan_text)},
                        {"seed", plan.seed},
                        {"budget_minutes", plan.budget_minutes},
                        {"measurements", measurements},
                        {"factors", factors},
                        {"arms", arms},
                        {"missing", missing}};
    return sweep.dump(1) + "\n";
}

std::optional<double> predicted_seconds(const Plan& plan, const std::vector<Record>& records) {
    const History history(plan, records);
    const auto order = launch_order(plan);
    std::vector<std::vector<Arm>> arms;
    for (const Measurement& measurement : plan.measurements) {
        arms.push_back(arms_of(plan, measurement));
    }
    double seconds = 0;
    for (const PlannedLaunch& launch : order) {
        const Measurement& measurement = plan.measurements[launch.measurement];
        const std::string& arm = arms[launch.measurement][launch.arm].name;
        if (history.is_done(std::string(name_of(measurement.kind)), launch.block, arm, order.size())) {
            continue;
        }
        const auto launch_seconds = history.launch_seconds(measurement, arm);
        if (!launch_seconds) {
            return std::nullopt;
        }
        seconds += *launch_seconds;
    }
    return seconds;
}

std::string describe_sweep(const Plan& plan, const std::vector<Record>& records) {
    std::string text = str(plan.title, "\n\n");
    const auto arms = launched_arms(plan);
    std::size_t width = 0;
    for (const Arm& arm : arms) {
        width = std::max(width, arm.name.size());
    }
    for (const Arm& arm : arms) {
        text += arm.name + std::string(width - arm.name.size() + 2, ' ');
        text += arm.is_control ? "the baseline once more: what differs is noise" : settings_text(arm.settings);
        if (static_cast<unsigned>(ranks_of(arm)) > base::usable_cores()) {
            text += str("   [", ranks_of(arm), " ranks share ", base::usable_cores(), " cores]");
        }
        if (simulates_nodes(arm)) {
            text += "   [simulated nodes]";
        }
        if (!arm.impossible.empty()) {
            text += "   [not launched: " + arm.impossible + "]";
        }
        text += '\n';
    }
    text += '\n';
    for (const Measurement& measurement : plan.measurements) {
        const std::size_t count = arms_of(plan, measurement).size();
        text += str(name_of(measurement.kind), ": ", measurement.blocks, " blocks of ", count, " arms",
                    measurement.kind == MeasurementKind::speed ? str(", ", measurement.steps, " steps a launch") : "",
                    "\n");
    }
    for (const Missing& entry : plan.missing) {
        text += str("not measurable yet: ", entry.name, ": ", entry.reason, "\n");
    }
    const auto seconds = predicted_seconds(plan, records);
    text += str("\n", launch_order(plan).size(), " launches, ", records.size(), " made; predicted time: ",
                seconds ? base::human_duration(*seconds) : std::string("unknown until the first launch"));
    if (plan.budget_minutes > 0) {
        text += str("; budget ", plan.budget_minutes, " min");
        if (seconds && *seconds > 60 * plan.budget_minutes) {
            text += ", so the last blocks will be left out";
        }
    }
    return text + "\n";
}

void run_sweep(const Plan& plan, const std::string& plan_text, const RunnerOptions& options) {
    fs::create_directories(options.out / "records");
    fs::create_directories(options.out / "runs");
    const DirectoryLock lock(options.out / "lock");
    const fs::path kept_plan = options.out / "plan.toml";
    if (fs::exists(kept_plan)) {
        if (base::read_text(kept_plan) != plan_text) {
            throw base::UsageError(str(options.out.string(), " holds the sweep of another plan (", kept_plan.string(),
                                       " differs); give another --out"));
        }
    } else {
        base::write_whole(kept_plan, plan_text);
    }
    const PublicText public_text(options.program, options.out);
    base::write_whole(options.out / "sweep.json", public_text.of(sweep_json(plan, plan_text)));
    Sweep(plan, plan_text, options).run();
}

}  // namespace lockstep::bench
