#include "comm/topology.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep::comm
