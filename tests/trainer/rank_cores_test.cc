#include "trainer/rank_cores.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lockstep::trainer {
namespace {

using Cpus = std::vector<std::int32_t>;

Cpus range(std::int32_t begin, std::int32_t end) {
    Cpus cpus(static_cast<std::size_t>(end - begin));
    std::iota(cpus.begin(), cpus.end(), begin);
    return cpus;
}

TEST(PartOfCpus, RanksThatShareAllCpusGetEqualParts) {
    const std::vector<Cpus> four(4, range(0, 16));
    for (std::size_t rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(part_of_cpus(four, rank), 4U);
    }
    EXPECT_EQ(part_of_cpus(std::vector<Cpus>(3, range(0, 3)), 1), 1U);
    EXPECT_EQ(part_of_cpus(std::vector<Cpus>(3, range(0, 8)), 2), 2U);
}

TEST(PartOfCpus, BoundRanksKeepWhatTheyAreBoundTo) {
    const std::vector<Cpus> bound{range(0, 8), range(8, 16), range(16, 18)};
    EXPECT_EQ(part_of_cpus(bound, 0), 8U);
    EXPECT_EQ(part_of_cpus(bound, 1), 8U);
    EXPECT_EQ(part_of_cpus(bound, 2), 2U);
}

TEST(PartOfCpus, OverlapsCountByHalves) {
    const std::vector<Cpus> overlapping{range(0, 4), range(2, 6)};
    EXPECT_EQ(part_of_cpus(overlapping, 0), 3U);
    EXPECT_EQ(part_of_cpus(overlapping, 1), 3U);
}

TEST(PartOfCpus, IsOneWhereRanksOutnumberCpus) {
    const std::vector<Cpus> crowd(5, range(0, 2));
    for (std::size_t rank = 0; rank < 5; ++rank) {
        EXPECT_EQ(part_of_cpus(crowd, rank), 1U);
    }
}

}  // namespace
}  // namespace lockstep::trainer
