#include "bench/launcher.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/resources.h"
#include "bench/supervised_process.h"
#include "tests/base/scratch.h"

namespace lockstep::bench {
namespace {

bool is_alive(pid_t pid) {
    std::ifstream file(base::str("/proc/", pid, "/stat"));
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const auto name_end = text.rfind(')');
    return name_end != std::string::npos && text[name_end + 2] != 'Z';
}

pid_t pid_in(const std::filesystem::path& file) {
    std::ifstream text(file);
    pid_t pid = 0;
    text >> pid;
    return pid;
}

/// False where it still lives after a while.
bool ends(pid_t pid) {
    for (int i = 0; i < 400 && is_alive(pid); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(25));
    }
    return !is_alive(pid);
}

class LauncherTest : public testing::Test {
  protected:
    ProcessRequest shell(const std::string& script, double timeout_seconds = 60) const {
        return {.words = {"sh", "-c", script},
                .environment = {},
                .output = scratch_ / "out",
                .timeout_seconds = timeout_seconds};
    }
    base::ScratchDirectory scratch_;
};

TEST_F(LauncherTest, ReportsHowItEnded) {
    EXPECT_EQ(run_supervised(shell("exit 0")).exit_code, 0);
    EXPECT_EQ(run_supervised(shell("exit 7")).exit_code, 7);
    const ProcessOutcome killed = run_supervised(shell("kill -9 $$"));
    EXPECT_EQ(killed.exit_code, -1);
    EXPECT_EQ(killed.signal, SIGKILL);
    EXPECT_FALSE(killed.timed_out);
    const std::string message = base::message_of<base::Error>([&] {
        run_supervised(
            {.words = {"no-such-program"}, .environment = {}, .output = scratch_ / "out", .timeout_seconds = 1});
    });
    EXPECT_TRUE(base::contains(message, "no-such-program can't be started"));
}

TEST_F(LauncherTest, KeepsOutputAndGivesEnvironment) {
    ProcessRequest request = shell("echo out; echo $WORD >&2");
    request.environment["WORD"] = "err";
    run_supervised(request);
    EXPECT_EQ(base::read_text(scratch_ / "out"), "out\nerr\n");
    EXPECT_EQ(std::getenv("WORD"), nullptr);
}

TEST_F(LauncherTest, CountsTheTimeOfAllThatItStarted) {
    const ProcessOutcome outcome =
        run_supervised(shell("sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; sleep 0.2"));
    EXPECT_GE(outcome.wall_seconds, 0.2);
    EXPECT_GT(outcome.cpu_seconds, 0.02);
    EXPECT_LE(outcome.cpu_seconds, outcome.wall_seconds);
}

TEST_F(LauncherTest, EndsWhatTakesTooLongAndWhatIgnoresTerm) {
    const ProcessOutcome polite = run_supervised(shell("sleep 60", 0.3));
    EXPECT_TRUE(polite.timed_out);
    EXPECT_EQ(polite.signal, SIGTERM);
    EXPECT_LT(polite.wall_seconds, 30);
    const ProcessOutcome stubborn = run_supervised(shell("trap '' TERM; while :; do sleep 0.1; done", 0.3));
    EXPECT_TRUE(stubborn.timed_out);
    EXPECT_EQ(stubborn.signal, SIGKILL);
}

TEST_F(LauncherTest, LeavesNoOrphans) {
    const std::filesystem::path file = scratch_ / "pid";
    // In a session of its own, as Open MPI's ranks are in groups of their own.
    run_supervised(shell(base::str("setsid sh -c 'echo $$ > ", file.string(), "; sleep 300' & while ! [ -s ",
                                   file.string(), " ]; do sleep 0.01; done")));
    const pid_t child = pid_in(file);
    ASSERT_GT(child, 0);
    EXPECT_FALSE(is_alive(child));
}

TEST_F(LauncherTest, NothingOutlivesARunnerThatIsKilled) {
    const std::filesystem::path file = scratch_ / "pid";
    const pid_t runner = fork();
    if (runner == 0) {
        run_supervised(shell(base::str("setsid sh -c 'echo $$ > ", file.string(), "; sleep 300' & sleep 300")));
        _exit(0);
    }
    while (pid_in(file) == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const pid_t child = pid_in(file);
    EXPECT_TRUE(is_alive(child));
    kill(runner, SIGKILL);
    int status = 0;
    waitpid(runner, &status, 0);
    EXPECT_TRUE(ends(child)) << "process " << child << " outlived its runner";
}

TEST_F(LauncherTest, SumsTheMemoryOfAllProcesses) {
    // Two processes of 30 MB each, told apart from one by the sum.
    const std::string hold = "python3 -c 'import time; x = bytearray(b\"x\" * 30000000); time.sleep(1.5)'";
    LocalLauncher local;
    const LaunchOutcome outcome = local.launch({.words = {"sh", "-c", hold + " & " + hold + "; wait"},
                                                .ranks = 1,
                                                .environment = {},
                                                .run = scratch_.path(),
                                                .output = scratch_ / "out",
                                                .timeout_seconds = 60});
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_GT(outcome.peak_memory_mib, 57);
    EXPECT_LT(outcome.peak_memory_mib, 150) << "making them takes as much again for a moment";
    EXPECT_EQ(outcome.first_step_seconds, 0) << "there was no metrics.jsonl";
    EXPECT_GE(outcome.foreign_cpu, 0);
    EXPECT_LE(outcome.foreign_cpu, 1);
}

TEST_F(LauncherTest, SeesTheFirstStep) {
    LocalLauncher local;
    const LaunchOutcome outcome = local.launch(
        {.words = {"sh", "-c",
                   base::str("sleep 0.4; echo {} > ", (scratch_ / "metrics.jsonl").string(), "; sleep 0.4")},
         .ranks = 1,
         .environment = {},
         .run = scratch_.path(),
         .output = scratch_ / "out",
         .timeout_seconds = 60});
    EXPECT_GE(outcome.first_step_seconds, 0.4);
    EXPECT_LE(outcome.first_step_seconds, outcome.wall_seconds - 0.3);
}

TEST_F(LauncherTest, MpirunStartsAllRanksWithTheirEnvironment) {
    base::forget_launcher();
    EXPECT_EQ(launcher_for(1)->name(), "local");
    const auto launcher = launcher_for(2);
    EXPECT_EQ(launcher->name(), "mpirun");
    const LaunchOutcome outcome =
        launcher->launch({.words = {"sh", "-c", "echo rank $OMPI_COMM_WORLD_RANK $WORD; sleep 1"},
                          .ranks = 2,
                          .environment = {{"WORD", "given"}},
                          .run = scratch_.path(),
                          .output = scratch_ / "out",
                          .timeout_seconds = 60});
    const std::string text = base::read_text(scratch_ / "out");
    EXPECT_EQ(outcome.exit_code, 0) << text;
    EXPECT_TRUE(base::contains(text, "rank 0 given"));
    EXPECT_TRUE(base::contains(text, "rank 1 given"));
    EXPECT_GT(outcome.peak_memory_mib, 0);
    EXPECT_LT(outcome.peak_memory_mib, 8) << "two shells; mpirun itself is not a rank";
}

TEST_F(LauncherTest, MpirunLeavesNoRanksBehind) {
    const LaunchOutcome outcome = MpirunLauncher().launch(
        {.words = {"sh", "-c",
                   base::str("echo $$ > ", scratch_.path().string(),
                             "/pid$OMPI_COMM_WORLD_RANK; trap '' TERM; while :; do sleep 0.1; done")},
         .ranks = 2,
         .environment = {},
         .run = scratch_.path(),
         .output = scratch_ / "out",
         .timeout_seconds = 15});
    EXPECT_TRUE(outcome.timed_out);
    for (const char* name : {"pid0", "pid1"}) {
        const pid_t rank = pid_in(scratch_ / name);
        EXPECT_GT(rank, 0) << base::read_text(scratch_ / "out");
        EXPECT_FALSE(is_alive(rank)) << name;
    }
}

TEST(CpuTimes, ReadsTheFirstLineOfProcStat) {
    const auto times = detail::cpu_times("cpu  100 20 30 400 50 6 7 8 9 10\ncpu0 1 1 1 1\n");
    EXPECT_EQ(times.busy, 100 + 20 + 30 + 6 + 7);
    EXPECT_EQ(times.stolen, 8);
    EXPECT_EQ(times.total, 100 + 20 + 30 + 400 + 50 + 6 + 7 + 8);
}

}  // namespace
}  // namespace lockstep::bench
