#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "comm/job_communicators.h"
#include "comm/job_watch.h"
#include "comm/mpi.h"

namespace lockstep::comm {
namespace {

class Launch : public testing::Test {
  protected:
    void SetUp() override {
        for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
            unsetenv(name);
        }
    }
};

TEST_F(Launch, IsSeenUnderMpirunAndSrunWithPmix) {
    EXPECT_FALSE(is_launched_by_mpi());
    setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
    EXPECT_TRUE(is_launched_by_mpi());
    unsetenv("OMPI_COMM_WORLD_SIZE");
    setenv("PMIX_RANK", "3", 1);
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    EXPECT_TRUE(is_launched_by_mpi());
}

TEST_F(Launch, IsNotAnAllocationNorAStepOfOneTask) {
    setenv("SLURM_JOB_ID", "17", 1);
    setenv("SLURM_NTASKS", "4", 1);
    setenv("SLURM_STEP_NUM_TASKS", "1", 1);
    EXPECT_FALSE(is_launched_by_mpi());
}

TEST_F(Launch, OfTasksThatMpiWouldNotSeeIsRefusedWithTheRemedy) {
    for (const char* name : {"SLURM_STEP_NUM_TASKS", "PMI_SIZE"}) {
        setenv(name, "4", 1);
        try {
            is_launched_by_mpi();
            FAIL() << name << " was let through";
        } catch (const base::Error& error) {
            const std::string text = error.what();
            EXPECT_NE(text.find("4 tasks"), std::string::npos) << text;
            EXPECT_NE(text.find("srun --mpi=pmix"), std::string::npos) << text;
        }
        unsetenv(name);
    }
}

TEST_F(Launch, WithoutMpiRunsTheBodyAloneAndLetsExceptionsPass) {
    const auto body = [] {
        const JobCommunicators job({});
        EXPECT_EQ(job.make("control")->size(), 1);
        EXPECT_EQ(job.topology().nodes(), 1);
        EXPECT_EQ(job.describe(), "alone");
        return 7;
    };
    EXPECT_EQ(run_ranks(body), 7);
    EXPECT_THROW(run_ranks([]() -> int { throw base::UsageError("no"); }), base::UsageError);
    EXPECT_THROW(make_mpi_communicator("gradients", std::chrono::seconds(1)), base::InternalError);
}

}  // namespace
}  // namespace lockstep::comm
