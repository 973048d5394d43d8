// The runner with trainings that only pretend: what is launched, recorded, repeated and continued.

#include "bench/runner.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "base/resources.h"
#include "bench/provenance.h"
#include "tests/base/scratch.h"

namespace lockstep::bench {
namespace {

namespace fs = std::filesystem;

class RunnerTest : public testing::Test {
  protected:
    RunnerTest() {
        base::write_whole(scratch_ / "recipe.toml",
                          "model = \"yolov10n\"\nimage_size = 64\nbatch = 8\n[data]\ntrain = \"somewhere\"\n");
    }
    std::string plan_text(const std::string& more, const std::string& head = "") const {
        return "title = \"t\"\nrecipe = \"" + (scratch_ / "recipe.toml").string() + "\"\nattempts = 1\n" + head + more;
    }
    /// What a quiet machine would say, so that no launch is repeated for what else this one does.
    RunnerOptions options() const {
        return {
            .out = scratch_ / "out", .program = FAKE_TRAINING, .launcher = launcher_for, .limits = {2, 2, 2, ~0ULL}};
    }
    void run(const std::string& text) const { run_sweep(parse_plan(text, "plan.toml"), text, options()); }
    std::vector<Record> records() const { return read_records(scratch_ / "out"); }

    base::ScratchDirectory scratch_;
};

const std::string two_arms = R"(
[speed]
blocks = 7
[factors.amp]
precision = ["fp32", "bf16"]
[factors.accumulate]
accumulation = [1, 2]
)";

TEST_F(RunnerTest, RecordsEveryLaunchOfThePlan) {
    const std::string text = plan_text(two_arms);
    run(text);
    const auto made = records();
    const Plan plan = parse_plan(text, "plan.toml");
    const auto order = launch_order(plan);
    const auto arms = arms_of(plan);
    ASSERT_EQ(made.size(), order.size());
    for (std::size_t i = 0; i < made.size(); ++i) {
        const Record& record = made[i];
        EXPECT_EQ(record.arm, arms[order[i].arm].name);
        EXPECT_EQ(record.block, order[i].block);
        EXPECT_EQ(record.status, LaunchStatus::ok) << record.reason;
        EXPECT_EQ(record.steps.seconds.size(), 20u);
        EXPECT_GE(record.warm_up.steps, 2u);
        const double factor = record.arm == "amp" ? 0.6 : record.arm == "accumulate" ? 1.25 : 1;
        EXPECT_NEAR(record.metrics.at("seconds_per_image"), 0.1 * factor, 0.002 * factor) << record.id;
        EXPECT_NEAR(record.metrics.at("data_wait_fraction"), 0.1, 1e-9);
        EXPECT_EQ(record.metrics.at("AP50"), 0.5);
        EXPECT_EQ(record.metrics.at("evaluation_seconds"), 2.5);
        EXPECT_FALSE(record.metrics.contains("APl")) << "-1 is no value";
        EXPECT_EQ(record.launcher, "local");
        ASSERT_EQ(record.warnings.size(), 1u);
        EXPECT_TRUE(base::contains(record.warnings[0], "planted warning"));
        EXPECT_TRUE(base::contains(record.recipe, record.arm == "amp" ? "\"bf16\"" : "\"fp32\""));
        const fs::path kept = scratch_ / "out" / "runs" / record.id;
        EXPECT_TRUE(fs::exists(kept / "metrics.jsonl"));
        EXPECT_FALSE(fs::exists(kept / "weights.safetensors")) << "tensors are not kept";
        EXPECT_FALSE(fs::exists(kept / "checkpoints"));
    }
    EXPECT_EQ(made[0].loss_digest, made[1].loss_digest) << "the same losses";
    run(text);
    EXPECT_EQ(records().size(), made.size()) << "nothing is left to launch";
}

TEST_F(RunnerTest, AFailedArmIsARowWithItsReason) {
    setenv("FAKE_FAILS_WITH", "precision=\"bf16\"", 1);
    run(plan_text(two_arms));
    unsetenv("FAKE_FAILS_WITH");
    std::size_t failed = 0, others = 0;
    for (const Record& record : records()) {
        if (record.arm == "amp") {
            ++failed;
            EXPECT_EQ(record.status, LaunchStatus::failed);
            EXPECT_EQ(record.reason, "exit code 1: [error] planted failure");
        } else {
            ++others;
            EXPECT_EQ(record.status, LaunchStatus::ok);
        }
    }
    EXPECT_EQ(failed, 2u) << "after two failures an arm is left alone";
    EXPECT_EQ(others, 3u * 7);
}

TEST_F(RunnerTest, ALaunchThatHangsTimesOut) {
    setenv("FAKE_MILLISECONDS", "60000", 1);
    run(plan_text("[speed]\nblocks = 6\ntimeout_seconds = 1\n"));
    unsetenv("FAKE_MILLISECONDS");
    const auto made = records();
    ASSERT_EQ(made.size(), 4u) << "two for the baseline, two for the control";
    EXPECT_EQ(made[0].status, LaunchStatus::timed_out);
    EXPECT_EQ(made[0].reason, "took longer than timeout_seconds = 1");
}

TEST_F(RunnerTest, DisturbedLaunchesAreMarkedAndRepeated) {
    class Disturbed : public LocalLauncher {
      public:
        LaunchOutcome launch(const LaunchRequest& request) override {
            LaunchOutcome outcome = LocalLauncher::launch(request);
            outcome.foreign_cpu = request.run.string().find("again") == std::string::npos ? 0.5 : 0;
            return outcome;
        }
    };
    const std::string text = plan_text(two_arms, "");
    std::string with_attempts = text;
    with_attempts.replace(with_attempts.find("attempts = 1"), 12, "attempts = 3");
    RunnerOptions disturbed = options();
    disturbed.limits.foreign_cpu = 0.1;
    disturbed.launcher = [](std::int32_t) { return std::make_unique<Disturbed>(); };
    run_sweep(parse_plan(with_attempts, "plan.toml"), with_attempts, disturbed);
    const auto made = records();
    EXPECT_EQ(made.size(), 28u + 7) << "at most a quarter is repeated";
    std::size_t marked = 0;
    for (const Record& record : made) {
        marked += record.interference.empty() ? 0 : 1;
        EXPECT_EQ(record.interference.empty(), record.attempt == 2) << record.id;
    }
    EXPECT_EQ(marked, 28u);
    EXPECT_EQ(made[0].interference[0], "other processes used 50.0% of the cores");
}

TEST_F(RunnerTest, MarksEveryKindOfInterference) {
    const auto marks = interference_of({.wall_seconds = 10,
                                        .foreign_cpu = 0.2,
                                        .stolen_cpu = 0.1,
                                        .throttled_seconds = 1,
                                        .disk_bytes_read = 1ULL << 30},
                                       {});
    EXPECT_EQ(marks.size(), 4u);
    EXPECT_TRUE(interference_of({.wall_seconds = 10, .foreign_cpu = 0.01}, {}).empty());
}

TEST_F(RunnerTest, StopsBeforeTheBlockThatPassesTheBudget) {
    setenv("FAKE_MILLISECONDS", "150", 1);
    const std::string text = plan_text("[speed]\nblocks = 40\n", "budget_minutes = 0.1\n");
    run(text);
    unsetenv("FAKE_MILLISECONDS");
    const auto made = records();
    ASSERT_GE(made.size(), 2u);
    EXPECT_LT(made.size(), 80u);
    EXPECT_EQ(made.size() % 2, 0u) << "whole blocks only";
    double before_the_last_block = 0;
    for (std::size_t i = 0; i + 2 < made.size(); ++i) {
        before_the_last_block += made[i].outcome.wall_seconds;
    }
    EXPECT_LE(before_the_last_block, 6);
}

TEST_F(RunnerTest, AnotherPlanOrASecondRunnerIsRefused) {
    run(plan_text(two_arms));
    const std::string message = base::message_of<base::UsageError>([&] { run(plan_text(two_arms) + "\n# other\n"); });
    EXPECT_TRUE(base::contains(message, "holds the sweep of another plan"));
}

/// The runner is killed at random moments, again and again, until a sitting comes to the end.
TEST_F(RunnerTest, AKillCostsAtMostTheLaunchInFlight) {
    const std::string text = plan_text(two_arms);
    const std::size_t planned = launch_order(parse_plan(text, "plan.toml")).size();
    setenv("FAKE_MILLISECONDS", "40", 1);
    base::Random random(1, base::RandomPurpose::test, 0, 0);
    std::size_t before = 0, kills = 0;
    bool ended = false;
    while (!ended) {
        const fs::path orphan = scratch_ / base::str("orphan-", kills);
        setenv("FAKE_LEAVES_CHILD", orphan.c_str(), 1);
        const pid_t runner = fork();
        if (runner == 0) {
            try {
                run(text);
            } catch (const std::exception& error) {
                std::fputs(error.what(), stderr);
                _exit(1);
            }
            _exit(0);
        }
        const auto moment = std::chrono::milliseconds(100 + random.below(900));
        int status = 0;
        if (kills < 6) {
            std::this_thread::sleep_for(moment);
            kill(runner, SIGKILL);
            ++kills;
        }
        waitpid(runner, &status, 0);
        ended = WIFEXITED(status);
        ASSERT_TRUE(!ended || WEXITSTATUS(status) == 0);
        // Every file is a whole, valid record, and none that was there is lost or made again.
        const std::size_t now = records().size();
        EXPECT_GE(now, before);
        before = now;
        ASSERT_LT(kills, 50u);
    }
    unsetenv("FAKE_LEAVES_CHILD");
    unsetenv("FAKE_MILLISECONDS");
    EXPECT_GE(kills, 1u);
    std::set<std::pair<std::string, std::int64_t>> places;
    for (const Record& record : records()) {
        EXPECT_TRUE(places.emplace(record.arm, record.block).second) << record.id << " was launched twice";
        EXPECT_EQ(record.status, LaunchStatus::ok) << record.reason;
    }
    EXPECT_EQ(places.size(), planned);
}

TEST_F(RunnerTest, PredictsFromLaunchesOrFromThePlan) {
    const Plan without = parse_plan(plan_text("[speed]\nblocks = 6\n"), "plan.toml");
    EXPECT_FALSE(predicted_seconds(without, {}).has_value());
    EXPECT_TRUE(base::contains(describe_sweep(without, {}), "unknown until the first launch"));
    const Plan guessed =
        parse_plan(plan_text("[speed]\nblocks = 6\nlaunch_seconds = 5\n", "budget_minutes = 0.5\n"), "plan.toml");
    EXPECT_EQ(predicted_seconds(guessed, {}), 60);
    EXPECT_TRUE(base::contains(describe_sweep(guessed, {}),
                               "12 launches, 0 made; predicted time: 1:00; budget 0.5 min, so the last"));
    Record record;
    record.measurement = "speed";
    record.block = 1;
    record.arm = "baseline";
    record.status = LaunchStatus::ok;
    record.outcome.wall_seconds = 2;
    EXPECT_EQ(predicted_seconds(guessed, {record}), 11 * 2);
}

TEST_F(RunnerTest, NothingThatIsPublishedNamesTheMachineOrAPlaceOnIt) {
    setenv("FAKE_SAYS", ("[warning] in " + (scratch_ / "out").string() + " on " + base::host_name()).c_str(), 1);
    const fs::path before = fs::current_path();
    fs::current_path(scratch_.path());
    run(plan_text("[speed]\nblocks = 6\n"));
    fs::current_path(before);
    unsetenv("FAKE_SAYS");
    const auto made = records();
    ASSERT_EQ(made.size(), 12u);
    EXPECT_EQ(made[0].command[0], "fake_training");
    EXPECT_EQ(made[0].command.back(), "runs/" + made[0].id);
    EXPECT_EQ(made[0].warnings.back(), "[warning] in . on HOST");
    std::vector<std::string> texts = {base::read_text(scratch_ / "out" / "sweep.json")};
    for (const Record& record : made) {
        texts.push_back(to_json(record));
    }
    for (const std::string& text : texts) {
        EXPECT_EQ(text.find(scratch_.path().string()), std::string::npos);
        EXPECT_EQ(text.find(fs::path(FAKE_TRAINING).parent_path().string()), std::string::npos);
    }
}

TEST(PublicTextTest, LeavesWordsThatHoldTheNameOfTheMachine) {
    const PublicText text("/opt/bin/lockstep", "/elsewhere/sweep");
    const std::string host = base::host_name();
    EXPECT_EQ(text.of("/opt/bin/lockstep train --out /elsewhere/sweep/runs/1"), "lockstep train --out runs/1");
    EXPECT_EQ(text.of("on " + host + ": x" + host + "y"), "on HOST: x" + host + "y");
    EXPECT_EQ(text.of(fs::current_path().string() + "/data"), "data");
}

TEST_F(RunnerTest, RecordsAreValidAndReadBack) {
    run(plan_text("[speed]\nblocks = 6\n"));
    const fs::path file = fs::directory_iterator(scratch_ / "out" / "records")->path();
    const std::string text = base::read_text(file);
    EXPECT_EQ(record_problems(text), std::vector<std::string>{});
    EXPECT_EQ(to_json(parse_record(text, "r")), text);
    using nlohmann::json;
    const json whole = json::parse(text);
    EXPECT_GT(whole["provenance"]["libraries"].size(), 0u);
    EXPECT_FALSE(whole["provenance"]["program_hash"].get<std::string>().empty());
    // Each field is missed, and each is refused with a value of another type.
    std::size_t fields = 0;
    const std::function<void(const json&, const json::json_pointer&)> visit = [&](const json& object,
                                                                                  const json::json_pointer& at) {
        for (const auto& [name, value] : object.items()) {
            const auto here = at / name;
            static const std::set<std::string> open = {"/provenance/environment", "/provenance/mounts", "/metrics",
                                                       "/data_hashes", "/provenance/network"};
            static const std::set<std::string> optional = {"/provenance/available_memory_mib", "/provenance/governor",
                                                           "/warm_up/still_drifts"};
            if (optional.contains(here.to_string())) {
                continue;
            }
            ++fields;
            json without = whole, other = whole;
            without.at(at).erase(name);
            other[here] = true;
            EXPECT_FALSE(record_problems(without.dump()).empty()) << here.to_string();
            EXPECT_FALSE(record_problems(other.dump()).empty()) << here.to_string();
            if (value.is_object() && !open.contains(here.to_string())) {
                visit(value, here);
            }
        }
    };
    visit(whole, json::json_pointer());
    EXPECT_GT(fields, 45u);
    for (const auto& [pointer, value] : {std::pair<const char*, json>{"/version", 2},
                                         {"/status", "fine"},
                                         {"/block", 0},
                                         {"/measurement", "taste"},
                                         {"/warm_up/steps", 21}}) {
        json wrong = whole;
        wrong[json::json_pointer(pointer)] = value;
        EXPECT_FALSE(record_problems(wrong.dump()).empty()) << pointer;
    }
    json shorter = whole;
    shorter["steps"]["loss"].erase(0);
    EXPECT_FALSE(record_problems(shorter.dump()).empty());
    EXPECT_EQ(record_problems("{"), std::vector<std::string>{"not valid JSON"});
    EXPECT_TRUE(base::contains(base::message_of<base::Error>([] { parse_record("[]", "some.json"); }),
                               "some.json: not a valid record"));
}

}  // namespace
}  // namespace lockstep::bench
