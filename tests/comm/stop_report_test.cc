#include "comm/stop_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/exit_code.h"

namespace lockstep::comm {
namespace {

SeenOperation operation(std::string purpose, std::uint64_t sequence, bool is_under_way) {
    SeenOperation seen;
    seen.purpose = std::move(purpose);
    seen.operation = {OperationKind::all_reduce, ReduceOp::sum, DataType::f32, 1000, "bucket 3", sequence, {}};
    seen.is_under_way = is_under_way;
    seen.seconds = 5;
    return seen;
}

/// Four ranks that wait for each other in "gradients", operation 40, with "control" done before.
std::vector<SeenRank> waiting_ranks() {
    std::vector<SeenRank> ranks;
    for (std::int32_t rank = 0; rank < 4; ++rank) {
        SeenRank seen;
        seen.member = {rank, "node" + std::to_string(rank / 2)};
        seen.state = RankState::runs;
        seen.process = 100 + rank;
        seen.phase = "training";
        seen.step = 12;
        seen.operations = {operation("control", 7, false), operation("gradients", 40, true)};
        ranks.push_back(seen);
    }
    return ranks;
}

void set_late(SeenRank& rank) {
    rank.state = RankState::was_late;
    rank.failure = "gradients: bucket 3 is not done after 10 s";
    rank.exit_code = base::exit_code::failure;
}

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

TEST(StopReport, ADeadRankIsTheCauseAndTheOthersSufferFromIt) {
    std::vector<SeenRank> ranks = waiting_ranks();
    ranks[2].is_gone = true;
    set_late(ranks[0]);
    const StopReport report = make_stop_report(ranks);
    EXPECT_TRUE(report.text.starts_with("stop report: rank 2 on node1 died")) << report.text;
    EXPECT_TRUE(contains(report.text,
                         "rank 0 on node0, process 100: waited in vain, in training, step 12; gradients: "
                         "all_reduce (sum of f32) \"bucket 3\", operation 40, 3.9 KiB, waiting for 5.0 s"))
        << report.text;
    EXPECT_EQ(report.exit_code, base::exit_code::failure);
}

TEST(StopReport, TheFirstFailureComesFirstWithItsTextAndItsExitCode) {
    std::vector<SeenRank> ranks = waiting_ranks();
    for (const std::size_t failing : {1u, 3u}) {
        ranks[failing].state = RankState::failed;
        ranks[failing].exit_code = failing == 3 ? base::exit_code::usage : base::exit_code::failure;
        ranks[failing].failed_at = failing == 3 ? 10 : 20;
        ranks[failing].failure = failing == 3 ? "no such file" : "another one";
    }
    const StopReport report = make_stop_report(ranks);
    EXPECT_TRUE(
        report.text.starts_with("stop report: rank 3 on node1 failed: no such file\n  rank 1 on node0 failed: "
                                "another one\n"))
        << report.text;
    EXPECT_EQ(report.exit_code, base::exit_code::usage);
}

TEST(StopReport, OneErrorOfAllRanksIsSaidOnceAndAlone) {
    std::vector<SeenRank> ranks = waiting_ranks();
    for (SeenRank& rank : ranks) {
        rank.state = RankState::failed;
        rank.exit_code = base::exit_code::usage;
        rank.failure = "unknown key";
    }
    const StopReport report = make_stop_report(ranks);
    EXPECT_EQ(report.text, "unknown key");
    EXPECT_EQ(report.exit_code, base::exit_code::usage);
}

TEST(StopReport, RanksBehindAreThoseThatHaveNotBegunWhatTheOthersWaitIn) {
    std::vector<SeenRank> ranks = waiting_ranks();
    ranks[3].operations[1] = operation("gradients", 39, false);
    for (const std::size_t late : {0u, 1u, 2u}) {
        set_late(ranks[late]);
    }
    const StopReport report = make_stop_report(ranks);
    EXPECT_TRUE(report.text.starts_with("stop report: waited in vain for rank 3 on node1\n")) << report.text;
    EXPECT_TRUE(contains(report.text, "rank 3 on node1, process 103: running, in training, step 12; control: "))
        << report.text;
    const auto json = nlohmann::json::parse(report.json);
    EXPECT_EQ(json["behind"], nlohmann::json::array({3}));
    EXPECT_EQ(json["ranks"][3]["operations"][1]["sequence"], 39);
    EXPECT_EQ(json["ranks"][0]["operations"][1]["waits"], true);
    EXPECT_EQ(json["exit_code"], base::exit_code::failure);
}

TEST(StopReport, AFinishedRankIsNotBehind) {
    std::vector<SeenRank> ranks = waiting_ranks();
    ranks[3].state = RankState::finished;
    ranks[3].operations[1] = operation("gradients", 39, false);
    set_late(ranks[0]);
    EXPECT_EQ(nlohmann::json::parse(make_stop_report(ranks).json)["behind"], nlohmann::json::array());
}

TEST(StopReport, AStoppedProcessIsNamedAsSuch) {
    std::vector<SeenRank> ranks = waiting_ranks();
    ranks[1].is_stopped = true;
    set_late(ranks[0]);
    EXPECT_TRUE(make_stop_report(ranks).text.starts_with("stop report: rank 1 on node0 stopped by a signal"));
}

TEST(StopReport, OfManyRanksStaysShort) {
    std::vector<SeenRank> ranks;
    for (std::int32_t rank = 0; rank < 500; ++rank) {
        ranks.push_back(waiting_ranks()[0]);
        ranks.back().member.world_rank = rank;
        ranks.back().is_gone = rank > 0;
    }
    const std::string text = make_stop_report(ranks).text;
    EXPECT_LT(std::ranges::count(text, '\n'), 25) << text;
    EXPECT_TRUE(contains(text, "491 more")) << text;
    EXPECT_TRUE(contains(text, "and 484 more ranks")) << text;
}

}  // namespace
}  // namespace lockstep::comm
