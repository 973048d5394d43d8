#include "comm/communication_probe.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "comm/communicator.h"
#include "tests/comm/mpi_test_main.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t mib = 1 << 20;
using enum MpiAllReduce;

void expect_choice(const std::vector<ProbedAllReduce>& probed, MpiAllReduce algorithm, std::size_t bytes) {
    const CommunicationChoice choice = choose_communication(probed);
    EXPECT_EQ(choice.algorithm, algorithm) << name_of(choice.algorithm) << " instead of " << name_of(algorithm);
    EXPECT_EQ(choice.bucket_bytes, bytes);
}

TEST(ChooseCommunication, TakesTheSmallestSizeThatIsNearlyAsFastAsTheBest) {
    expect_choice({{direct, mib, 10e-3}, {direct, 4 * mib, 37e-3}, {direct, 16 * mib, 146e-3}}, direct, mib);
    expect_choice({{direct, mib, 12e-3}, {direct, 4 * mib, 37e-3}, {direct, 16 * mib, 146e-3}}, direct, 4 * mib);
}

TEST(ChooseCommunication, KeepsTheFirstAlgorithmUnlessAnotherIsClearlyFaster) {
    expect_choice({{direct, mib, 10e-3}, {ring, mib, 9.5e-3}}, direct, mib);
    expect_choice({{direct, mib, 10e-3}, {ring, mib, 8.5e-3}}, ring, mib);
    expect_choice({{direct, mib, 10e-3}, {direct, 4 * mib, 36e-3}, {ring, mib, 12e-3}, {ring, 4 * mib, 30e-3}}, ring,
                  4 * mib);
}

TEST(ChooseCommunication, GivesTheOnlySizeBack) {
    expect_choice({{halving_doubling, 3, 1}}, halving_doubling, 3);
}

TEST(ProbeCommunication, SaysTheSameOnAllRanks) {
    for (const char* topology : {"flat", "auto"}) {
        const JobShape shape{.topology = topology, .timeout = std::chrono::minutes(1)};
        const std::vector<MpiAllReduce> algorithms{direct, ring, halving_doubling};
        const std::vector<ProbedAllReduce> probed = probe_communication(shape, DataType::f32, algorithms, mib);
        ASSERT_EQ(probed.size(), algorithms.size());
        std::vector<double> seconds;
        for (std::size_t i = 0; i < probed.size(); ++i) {
            EXPECT_EQ(probed[i].algorithm, algorithms[i]);
            EXPECT_EQ(probed[i].bytes, mib);
            EXPECT_GT(probed[i].seconds, 0);
            seconds.push_back(probed[i].seconds);
        }
        const auto world = JobCommunicators(shape).make("test");
        const auto of_ranks = world->all_gather_bytes(std::as_bytes(std::span(seconds)), "times");
        for (const auto& theirs : of_ranks) {
            EXPECT_TRUE(theirs == of_ranks.front());
        }
    }
}

TEST(ProbeCommunication, GrowsUntilItIsHardlyFaster) {
    const std::vector<MpiAllReduce> algorithms{direct};
    const auto probed = probe_communication({.topology = "flat"}, DataType::bf16, algorithms, std::nullopt);
    ASSERT_FALSE(probed.empty());
    EXPECT_EQ(probed.front().bytes, mib);
    for (std::size_t i = 1; i < probed.size(); ++i) {
        EXPECT_GT(probed[i].bytes, probed[i - 1].bytes);
        if (i + 1 < probed.size()) {
            EXPECT_LT(probed[i].seconds_per_byte(), 0.9 * probed[i - 1].seconds_per_byte());
        }
    }
}

}  // namespace
}  // namespace lockstep::comm
