// Nodes of threads, also uneven ones. Inside and across are two shared-memory leaves here: the composition does not
// know.
#include "comm/hierarchical_communicator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/text.h"
#include "comm/reduce.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/thread_node.h"

namespace lockstep::comm {
namespace {

/// By rank: its node.
Topology topology_of(const std::vector<std::int32_t>& node_of_rank) {
    std::vector<std::string> hosts;
    for (const std::int32_t node : node_of_rank) {
        hosts.push_back(base::str("node", node));
    }
    return {node_of_rank, hosts};
}

void on_cluster(const std::vector<std::int32_t>& node_of_rank, const std::function<void(Communicator&)>& body) {
    const Topology topology = topology_of(node_of_rank);
    std::vector<std::unique_ptr<tests::ThreadNode>> nodes;
    for (std::int32_t node = 0; node < topology.nodes(); ++node) {
        nodes.push_back(std::make_unique<tests::ThreadNode>(topology.ranks_of_node(node)));
    }
    std::vector<std::unique_ptr<tests::ThreadNode>> lanes;
    for (std::int32_t lane = 0; lane < lanes_of(topology); ++lane) {
        lanes.push_back(std::make_unique<tests::ThreadNode>(ranks_of_lane(topology, lane)));
    }
    constexpr std::chrono::minutes timeout{5};
    tests::on_rank_threads(topology.ranks(), [&](Rank rank) {
        const std::int32_t node = topology.node_of(rank);
        const std::int32_t local = topology.local_rank_of(rank);
        CommunicatorIdentity identity{"gradients", rank, {}, timeout};
        for (std::int32_t member = 0; member < topology.ranks(); ++member) {
            identity.members.push_back({member, topology.host_of(Rank{member})});
        }
        auto inside = nodes[static_cast<std::size_t>(node)]->join("inside", Rank{local}, timeout);
        auto across = local < lanes_of(topology)
                          ? lanes[static_cast<std::size_t>(local)]->join("across", Rank{node}, timeout)
                          : nullptr;
        body(*make_hierarchical_communicator(std::move(identity), topology, std::move(inside), std::move(across)));
    });
}

class Hierarchical : public testing::TestWithParam<std::vector<std::int32_t>> {};

TEST_P(Hierarchical, EveryCollectiveGivesTheClosedForm) {
    on_cluster(GetParam(), [](Communicator& ranks) {
        for (const DataType type : tests::types_to_check()) {
            for (const std::size_t count : {0, 1, 7, 1000, 10007, tests::is_sanitized ? 20001 : 70001}) {
                for (const tests::Memory memory : {tests::Memory::any, tests::Memory::shared}) {
                    tests::expect_closed_forms(ranks, type, count, memory);
                }
            }
        }
        tests::expect_bytes_of_any_length(ranks);
    });
}

/// One rounding inside a node and one across: 256 + 1 is 256 in bf16, so a node's own ones must not be lost one by one.
TEST_P(Hierarchical, SixteenBitSumsRoundOncePerLevel) {
    const Topology topology = topology_of(GetParam());
    on_cluster(GetParam(), [&](Communicator& ranks) {
        constexpr std::size_t count = 40000;
        const auto value_of = [&](Rank rank) { return index_of(rank) == 0 ? 256.0F : 1.0F; };
        std::vector<std::uint16_t> values(count, float_to_bf16(value_of(ranks.rank())));
        ranks.all_reduce({values.data(), count, DataType::bf16}, ReduceOp::sum, "test");
        float total = 0;
        for (std::int32_t node = 0; node < topology.nodes(); ++node) {
            float of_node = 0;
            for (const Rank rank : topology.ranks_of_node(node)) {
                of_node += value_of(rank);
            }
            total += bf16_to_float(float_to_bf16(of_node));
        }
        EXPECT_EQ(values, std::vector<std::uint16_t>(count, float_to_bf16(total)));
    });
}

TEST_P(Hierarchical, ResultsAreTheSameOnAllRanksAndFromRunToRun) {
    on_cluster(GetParam(), [&](Communicator& ranks) {
        std::vector<float> first;
        for (int repetition = 0; repetition < 2; ++repetition) {
            std::vector<float> values(50001);
            for (std::size_t i = 0; i < values.size(); ++i) {
                values[i] = std::sin(static_cast<float>(i * static_cast<std::size_t>(index_of(ranks.rank()) + 3)));
            }
            ranks.all_reduce(Buffer::of(std::span(values)), ReduceOp::sum, "test");
            EXPECT_TRUE(tests::same_on_all_ranks(ranks, std::as_bytes(std::span(values))));
            EXPECT_TRUE(first.empty() || first == values);
            first = values;
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Clusters, Hierarchical,
                         testing::Values(std::vector{0, 0}, std::vector{0, 1}, std::vector{0, 0, 1, 1},
                                         std::vector{0, 1, 0, 1}, std::vector{0, 0, 0, 1},
                                         std::vector{0, 1, 2, 1, 2, 2}, std::vector{0, 0, 1, 1, 2, 2, 3, 3},
                                         std::vector{1, 0, 0, 0, 0, 1, 1}),
                         [](const auto& info) {
                             std::string name;
                             for (const std::int32_t node : info.param) {
                                 name += std::to_string(node);
                             }
                             return "Nodes" + name;
                         });

TEST(Lanes, AreAsManyAsTheSmallestNodeHasRanks) {
    const Topology topology = topology_of({0, 1, 0, 2, 0, 1, 2, 2});
    EXPECT_EQ(lanes_of(topology), 2);
    EXPECT_EQ(ranks_of_lane(topology, 0), (std::vector{Rank{0}, Rank{1}, Rank{3}}));
    EXPECT_EQ(ranks_of_lane(topology, 1), (std::vector{Rank{2}, Rank{5}, Rank{6}}));
}

}  // namespace
}  // namespace lockstep::comm
