#include "base/error.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <type_traits>

#include "base/exit_code.h"
#include "base/resources.h"
#include "scratch.h"

namespace lockstep::base {
namespace {

class ProcessName : public testing::Test {
  protected:
    ProcessName() { forget_launcher(); }
    ~ProcessName() override { forget_launcher(); }
};

TEST_F(ProcessName, IsThePidWithoutALauncher) {
    EXPECT_FALSE(under_launcher());
    EXPECT_EQ(process_name(), str("pid ", getpid(), " on ", host_name()));
}

TEST_F(ProcessName, IsTheRankUnderMpirunAlsoInsideASlurmAllocation) {
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    EXPECT_TRUE(under_launcher());
    EXPECT_EQ(process_name(), str("rank 1 of 4 on ", host_name()));
}

TEST_F(ProcessName, IsTheRankUnderSrun) {
    setenv("SLURM_PROCID", "3", 1);
    setenv("SLURM_STEP_NUM_TASKS", "8", 1);
    setenv("PMIX_RANK", "3", 1);
    EXPECT_EQ(process_name(), str("rank 3 of 8 on ", host_name()));
}

TEST_F(ProcessName, IsNoRankInABatchScript) {
    setenv("SLURM_PROCID", "0", 1);
    EXPECT_FALSE(under_launcher());
    EXPECT_EQ(process_name(), str("pid ", getpid(), " on ", host_name()));
}

TEST_F(ProcessName, HasNoSizeWherePmixGivesNone) {
    setenv("PMIX_RANK", "2", 1);
    EXPECT_EQ(process_name(), str("rank 2 on ", host_name()));
}

TEST(Check, PassesSilentlyAndEvaluatesOnce) {
    int calls = 0;
    const auto next = [&] { return ++calls; };
    LOCKSTEP_CHECK(next() == 1);
    LOCKSTEP_CHECK_EQ(next(), 2);
    LOCKSTEP_CHECK_LT(next(), 4, "further ", "text");
    EXPECT_EQ(calls, 3);
}

TEST(Check, SaysWhatWasNotTrueWhereAndWithWhichValues) {
    const int offset = 7;
    const std::string message =
        message_of<InternalError>([&] { LOCKSTEP_CHECK_LE(offset, 3, "in bucket ", "head.0"); });
    EXPECT_TRUE(contains(message, "offset <= 3"));
    EXPECT_TRUE(contains(message, "7 against 3 in bucket head.0"));
    EXPECT_TRUE(contains(message, ": tests/base/error_test.cc:"));
    EXPECT_TRUE(contains(message, process_name()));
    EXPECT_TRUE(contains(message_of<InternalError>([&] { LOCKSTEP_CHECK(offset < 3); }), "offset < 3"));
}

TEST(Check, IsNoUserError) {
    EXPECT_THROW(LOCKSTEP_CHECK_NE(1, 1), std::logic_error);
    EXPECT_FALSE((std::is_base_of_v<Error, InternalError>));
    EXPECT_TRUE((std::is_base_of_v<Error, UsageError>));
}

TEST(ExitCode, IsWhatTheManualSays) {
    EXPECT_EQ(exit_code::success, EXIT_SUCCESS);
    EXPECT_EQ(exit_code::failure, 1);
    EXPECT_EQ(exit_code::usage, 2);
    EXPECT_EQ(exit_code::run_again, 75);
}

}  // namespace
}  // namespace lockstep::base
