#include "comm/topology.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "comm/job_communicators.h"

namespace lockstep::comm {
namespace {

TEST(Topology, NumbersNodesByTheirLowestRank) {
    // Two nodes, ranks dealt unevenly and out of order, as with mpirun --map-by node and an odd number of ranks.
    const Topology topology({7, 3, 7, 3, 7}, {"a", "b", "a", "b", "a"});
    EXPECT_EQ(topology.ranks(), 5);
    EXPECT_EQ(topology.nodes(), 2);
    EXPECT_EQ(topology.node_of(Rank{0}), 0);
    EXPECT_EQ(topology.node_of(Rank{1}), 1);
    EXPECT_EQ(topology.node_of(Rank{4}), 0);
    EXPECT_EQ(topology.ranks_of_node(0), (std::vector<Rank>{Rank{0}, Rank{2}, Rank{4}}));
    EXPECT_EQ(topology.ranks_of_node(1), (std::vector<Rank>{Rank{1}, Rank{3}}));
    EXPECT_EQ(topology.local_rank_of(Rank{4}), 2);
    EXPECT_EQ(topology.local_rank_of(Rank{3}), 1);
    EXPECT_EQ(topology.host_of(Rank{3}), "b");
}

std::string refusal_of(const Topology& detected, const std::string& shape) {
    try {
        shaped(detected, shape);
    } catch (const base::UsageError& error) {
        return error.what();
    }
    return "taken";
}

TEST(Shaped, ModelsNodesOfRanksInOrder) {
    const Topology machine({0, 0, 0, 0, 0, 0}, std::vector<std::string>(6, "big"));
    const Topology seen = shaped(machine, "3x2");
    EXPECT_EQ(seen.nodes(), 3);
    EXPECT_EQ(seen.node_of(Rank{3}), 1);
    EXPECT_EQ(seen.local_rank_of(Rank{3}), 1);
    EXPECT_EQ(seen.host_of(Rank{3}), "big");
    EXPECT_EQ(shaped(machine, "flat").nodes(), 6);
    EXPECT_EQ(shaped(machine, "auto").nodes(), 1);
}

TEST(Shaped, RefusesWhatDoesNotFit) {
    const Topology detected({0, 1, 0, 1}, {"a", "b", "a", "b"});
    EXPECT_NE(refusal_of(detected, "2x3").find("is for 6 ranks; this job has 4"), std::string::npos);
    EXPECT_NE(refusal_of(detected, "2x2").find("puts ranks 0 (a) and 1 (b) on one node"), std::string::npos);
    EXPECT_EQ(refusal_of(detected, "4x1"), "taken");
    for (const char* wrong : {"", "2", "x2", "2x", "0x4", "2x2x1", "tree", "-1x-4"}) {
        EXPECT_NE(refusal_of(detected, wrong).find("none of auto, flat, and NODESxRANKS"), std::string::npos) << wrong;
    }
}

}  // namespace
}  // namespace lockstep::comm
