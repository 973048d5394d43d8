// Communicators for device memory as a job makes them: the plugin is opened from its file. Argument `fake`: a plugin
// over the fake CUDA and NCCL of tests/fake_nccl; `real`: liblockstep_cuda.so, for machines with devices.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "comm/cuda_plugin.h"
#include "comm/job_communicators.h"
#include "comm/mpi.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/mpi_test_main.h"
#include "tests/comm/on_device_communicator.h"

namespace lockstep::comm {
namespace {

using tests::error_of;

bool is_fake() {
    const std::vector<std::string> arguments = testing::internal::GetArgvs();
    return arguments.size() > 1 && arguments[1] == "fake";
}

std::string plugin() {
    return is_fake() ? FAKE_PLUGIN : REAL_PLUGIN;
}

JobShape shape(const std::string& topology) {
    return {.topology = topology, .timeout = lockstep::tests::test_timeout, .cuda = true, .cuda_plugin = plugin()};
}

/// Why there is nothing to test on this machine; empty where there is. With as many devices as the fake is to have.
std::string missing_devices(const char* fakes) {
    setenv("FAKE_CUDA_DEVICES", fakes, 1);
    return error_of([] { open_cuda_plugin(plugin())->devices(); });
}

#define SKIP_WITHOUT_DEVICES(fakes)                                                    \
    if (const std::string missing = missing_devices(fakes); missing != "no error") {   \
        GTEST_SKIP() << "not tested, since there is no CUDA device here: " << missing; \
    }

void expect_all_collectives(const JobCommunicators& job, tests::Averages averages) {
    tests::OnDeviceCommunicator ranks(job.make("test", {.on_device = true}), job.device_memory());
    for (const DataType type : {DataType::f32, DataType::f16, DataType::i64, DataType::u8}) {
        for (const std::size_t count : {7, 20011}) {
            tests::expect_closed_forms(ranks, type, count, tests::Memory::any, averages);
        }
    }
    tests::expect_bytes_of_any_length(ranks);
    ranks.barrier("end");
}

/// Before the plugin is opened: a run on CPUs maps nothing of CUDA's.
TEST(AJobWithoutCuda, OpensNoPlugin) {
    JobCommunicators({.timeout = lockstep::tests::test_timeout}).make("test")->barrier("test");
    std::ifstream maps("/proc/self/maps");
    std::stringstream text;
    text << maps.rdbuf();
    EXPECT_NE(text.str().find("libmpi"), std::string::npos) << "else this test says nothing";
    for (const char* const library : {"lockstep_cuda", "libnccl", "libcudart", "libtorch_cuda"}) {
        EXPECT_EQ(text.str().find(library), std::string::npos) << library;
    }
}

TEST(AJobWithCuda, GivesTheClosedFormsOverNccl) {
    SKIP_WITHOUT_DEVICES("4");
    const JobCommunicators job(shape("auto"));
    if (is_fake()) {
        EXPECT_EQ(job.device(), job.machines().local_rank_of(Rank{job.make("rank")->rank()}));
        EXPECT_EQ(job.describe_on_device().rfind("NCCL 2.28.9, CUDA 13.0; ", 0), 0U) << job.describe_on_device();
    }
    // Through the host, where the machine has fewer devices than ranks.
    expect_all_collectives(job, tests::Averages::of_parts_divided);
}

TEST(AJobWithCuda, GivesTheClosedFormsOverNcclInsideAndAcrossNodes) {
    SKIP_WITHOUT_DEVICES("4");
    if (lockstep::tests::make_test_communicator()->size() != 4) {
        GTEST_SKIP() << "for 4 ranks";
    }
    expect_all_collectives(JobCommunicators(shape("2x2")), tests::Averages::of_the_sum);
}

TEST(AJobWithCuda, GoesThroughTheHostWhereRanksShareADevice) {
    if (!is_fake()) {
        GTEST_SKIP() << "of the fake, whose number of devices can be set";
    }
    SKIP_WITHOUT_DEVICES("1");
    const JobCommunicators job(shape("auto"));
    const std::int32_t ranks = job.topology().ranks();
    EXPECT_EQ(job.device(), 0);
    const std::string text = job.describe_on_device();
    const std::string shared = "page-locked memory of the host, since ranks 0, 1";
    EXPECT_EQ(text.find(shared) != std::string::npos, ranks > 1) << text;
    if (ranks > 1) {
        EXPECT_NE(text.find("use device 0000:10:00.0; then shared memory"), std::string::npos) << text;
    }
    expect_all_collectives(job, ranks > 1 ? tests::Averages::of_the_sum : tests::Averages::of_parts_divided);
}

TEST(AJobWithCuda, RefusesAWireTypeThatCanNotTakeEffect) {
    SKIP_WITHOUT_DEVICES("4");
    const JobCommunicators job(shape("flat"));
    if (job.topology().ranks() == 1 || job.describe_on_device().rfind("NCCL", 0) != 0) {
        GTEST_SKIP() << "for several ranks with a device each";
    }
    const std::string error = error_of([&] { job.make("gradients", {.wire = DataType::bf16, .on_device = true}); });
    EXPECT_NE(error.find("wire type bf16 of gradients can't take effect over NCCL"), std::string::npos) << error;
}

TEST(AJobWithCuda, EndsOnAllRanksWhereOneHasNoDeviceOrNoPlugin) {
    if (!is_fake()) {
        GTEST_SKIP() << "of the fake";
    }
    const auto control = lockstep::tests::make_test_communicator();
    const std::int32_t last = control->size() - 1;
    setenv("FAKE_CUDA_DEVICES", index_of(control->rank()) == last ? "0" : "4", 1);
    std::string error = error_of([] { const JobCommunicators job(shape("auto")); });
    EXPECT_NE(error.find(base::str("CUDA can't be used on rank ", last, " on ")), std::string::npos) << error;
    EXPECT_NE(error.find("cudaErrorNoDevice"), std::string::npos) << error;
    EXPECT_NE(error.find("driver 580 or newer"), std::string::npos) << error;

    JobShape lacks_plugin = shape("auto");
    lacks_plugin.cuda_plugin = "/nowhere/liblockstep_cuda.so";
    error = error_of([&] { const JobCommunicators job(lacks_plugin); });
    EXPECT_NE(error.find("there is no CUDA plugin /nowhere/liblockstep_cuda.so: ./run build --cuda"), std::string::npos)
        << error;
}

}  // namespace
}  // namespace lockstep::comm
