// How a job ends when one of its ranks goes wrong, seen from outside: exit code of mpirun and what was said.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct End {
    int exit_code;
    std::string output;
    std::chrono::duration<double> time;
    nlohmann::json report;                     ///< stop_report.json, or null
    std::vector<std::string> last_operations;  ///< of each rank, from its flight record

    bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
};

constexpr int limit_seconds = 60;
constexpr int exit_code_of_timeout = 124;

struct Shape {
    int ranks;
    std::string topology;
};

End run_job(const Shape& shape, const std::string& mode) {
    const fs::path directory = fs::temp_directory_path() / ("lockstep-job-end-" + std::to_string(getpid()));
    fs::create_directories(directory);
    const std::string command = "LOCKSTEP_TEST_DIRECTORY=" + directory.string() + " " + std::string(MPIRUN_SCRIPT) +
                                " " + std::to_string(shape.ranks) + " " + std::to_string(limit_seconds) + " " +
                                FAILING_JOB + " " + mode + " " + shape.topology + " 2>&1";
    const auto start = std::chrono::steady_clock::now();
    FILE* pipe = popen(command.c_str(), "r");
    EXPECT_NE(pipe, nullptr) << command;
    std::string output;
    char buffer[4096];
    while (const std::size_t length = fread(buffer, 1, sizeof buffer, pipe)) {
        output.append(buffer, length);
    }
    const int status = pclose(pipe);
    End end{
        WIFEXITED(status) ? WEXITSTATUS(status) : -1, output, std::chrono::steady_clock::now() - start, nullptr, {}};
    if (std::ifstream report(directory / "stop_report.json"); report) {
        end.report = nlohmann::json::parse(report);
    }
    for (int rank = 0; rank < shape.ranks; ++rank) {
        std::ifstream file(directory / "flight" / ("rank-" + std::to_string(rank) + ".txt"));
        std::vector<std::string> lines;
        for (std::string line; std::getline(file, line);) {
            lines.push_back(line);
        }
        end.last_operations.push_back(lines.empty() ? "" : *std::ranges::max_element(lines));
    }
    fs::remove_all(directory);
    return end;
}

class JobEnd : public testing::TestWithParam<Shape> {
  protected:
    /// Peers wait up to 100 s in these jobs, so an early end is the failing rank's doing.
    void expect_failed(const End& end, int exit_code) const {
        EXPECT_EQ(end.exit_code, exit_code) << end.output;
        EXPECT_NE(end.exit_code, exit_code_of_timeout);
        EXPECT_LT(end.time.count(), limit_seconds);
        EXPECT_FALSE(end.says("reached the end")) << end.output;
    }
    void expect_behind(const End& end) const {
        EXPECT_TRUE(end.says("stop report: waited in vain for rank " + last_rank() + " on ")) << end.output;
        EXPECT_EQ(end.report["behind"], nlohmann::json::array({GetParam().ranks - 1})) << end.report;
    }
    static std::string last_rank() { return std::to_string(GetParam().ranks - 1); }
};

TEST_P(JobEnd, WithoutFailureIsSuccess) {
    const End end = run_job(GetParam(), "none");
    EXPECT_EQ(end.exit_code, 0) << end.output;
    EXPECT_TRUE(end.says("reached the end")) << end.output;
}

TEST_P(JobEnd, AnExceptionOnOneRankEndsAllAndIsSaid) {
    const End end = run_job(GetParam(), "throw");
    expect_failed(end, 1);
    EXPECT_TRUE(end.says("stop report: rank " + last_rank() + " on ")) << end.output;
    EXPECT_TRUE(end.says("failed: disk full on purpose")) << end.output;
    EXPECT_EQ(end.report["ranks"][GetParam().ranks - 1]["failure"], "disk full on purpose") << end.report;
    EXPECT_EQ(end.report["ranks"][0]["state"], "running") << end.report;
    EXPECT_EQ(end.report["ranks"][0]["step"], 7) << end.report;
}

TEST_P(JobEnd, AnExceptionThatMeetsTheGuardAloneEndsAll) {
    expect_failed(run_job(GetParam(), "guard"), 1);
}

TEST_P(JobEnd, AbortGivesItsCodeToTheLauncher) {
    const End end = run_job(GetParam(), "abort");
    expect_failed(end, 3);
    EXPECT_TRUE(end.says("stopped on purpose")) << end.output;
}

TEST_P(JobEnd, ARankThatNeverCallsIsNamed) {
    const End end = run_job(GetParam(), "absent");
    expect_failed(end, 1);
    const std::string operation =
        GetParam().topology == "2x2" ? "gradients, inside a node: reduce_scatter" : "gradients: all_reduce";
    EXPECT_TRUE(end.says(operation + " (sum of f32) \"bucket 3\"")) << end.output;
    EXPECT_TRUE(end.says("waiting for rank " + last_rank() + " on ")) << end.output;
    expect_behind(end);
}

TEST_P(JobEnd, AStoppedRankIsNamedAsSuch) {
    const End end = run_job(GetParam(), "stopped");
    expect_failed(end, 1);
    EXPECT_TRUE(end.says("stop report: rank " + last_rank() + " on ")) << end.output;
    EXPECT_TRUE(end.says("stopped by a signal or a debugger")) << end.output;
}

TEST_P(JobEnd, ARankWithOneOperationLessIsNamed) {
    const End end = run_job(GetParam(), "fewer");
    expect_failed(end, 1);
    expect_behind(end);
}

TEST_P(JobEnd, AnotherShapeOnOneRankIsAnErrorThatSaysSo) {
    const End end = run_job(GetParam(), "mismatch");
    expect_failed(end, 1);
    EXPECT_TRUE(end.says("99999") || end.says("400.0 KB") || end.says("390.6 KiB")) << end.output;
    EXPECT_FALSE(end.report.is_null()) << end.output;
}

TEST_P(JobEnd, ARankThatIsOnlySlowIsWaitedFor) {
    const End end = run_job(GetParam(), "slow");
    EXPECT_EQ(end.exit_code, 0) << end.output;
    EXPECT_TRUE(end.says("reached the end")) << end.output;
    EXPECT_TRUE(end.report.is_null()) << end.report;
}

TEST_P(JobEnd, AUsageErrorOnAllRanksExitsWithTwo) {
    const End end = run_job(GetParam(), "usage");
    expect_failed(end, 2);
    EXPECT_TRUE(end.says("unknown key on purpose")) << end.output;
}

TEST_P(JobEnd, ACodeThatAllRanksReturnReachesTheLauncher) {
    const End end = run_job(GetParam(), "again");
    expect_failed(end, 75);
}

TEST_P(JobEnd, AKilledRankEndsAll) {
    const End end = run_job(GetParam(), "killed");
    EXPECT_NE(end.exit_code, 0) << end.output;
    EXPECT_NE(end.exit_code, exit_code_of_timeout) << end.output;
    EXPECT_FALSE(end.says("reached the end")) << end.output;
    EXPECT_TRUE(end.says("stop report: rank " + last_rank() + " on ")) << end.output;
    EXPECT_TRUE(end.says("died: its process is gone")) << end.output;
    EXPECT_EQ(end.report["ranks"][GetParam().ranks - 1]["state"], "died") << end.report;
    EXPECT_NE(end.last_operations.back().find("barrier \"start\""), std::string::npos) << end.last_operations.back();
    EXPECT_NE(end.last_operations.front().find("waits"), std::string::npos) << end.last_operations.front();
}

INSTANTIATE_TEST_SUITE_P(Shapes, JobEnd,
                         testing::Values(Shape{2, "flat"}, Shape{3, "flat"}, Shape{3, "auto"}, Shape{4, "2x2"}),
                         [](const auto& info) {
                             return "Ranks" + std::to_string(info.param.ranks) + info.param.topology;
                         });

}  // namespace
