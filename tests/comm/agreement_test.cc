#include "comm/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/comm/collective_checks.h"
#include "tests/comm/thread_node.h"

namespace lockstep::comm {
namespace {

using tests::error_of;

/// What each of `size` ranks hears when it brings items(rank).
std::vector<std::string> heard_by(std::int32_t size,
                                  const std::function<std::vector<AgreementItem>(std::int32_t rank)>& items) {
    std::vector<Rank> members;
    for (std::int32_t rank = 0; rank < size; ++rank) {
        members.push_back(Rank{rank});
    }
    tests::ThreadNode node(members);
    std::vector<std::string> heard(static_cast<std::size_t>(size));
    tests::on_rank_threads(size, [&](Rank rank) {
        const auto ranks = node.join("control", rank, std::chrono::minutes(5));
        const std::vector<AgreementItem> mine = items(index_of(rank));
        heard[static_cast<std::size_t>(index_of(rank))] =
            error_of([&] { require_agreement(*ranks, mine, "before the first step", "Look there."); });
    });
    return heard;
}

TEST(Agreement, IsSilentWhereAllIsAlike) {
    for (const std::int32_t size : {1, 2, 5}) {
        const auto heard = heard_by(size, [](std::int32_t) {
            return std::vector{agreement_item("model", "yolov10n"), AgreementItem{"parameter", 42, "one text"}};
        });
        EXPECT_EQ(heard, std::vector<std::string>(static_cast<std::size_t>(size), "no error"));
    }
}

TEST(Agreement, NamesTheFewAndTheFirstItemOnAllRanksAlike) {
    const auto heard = heard_by(5, [](std::int32_t rank) {
        return std::vector{agreement_item("model", "yolov10n"),
                           agreement_item("rate", rank == 1 || rank == 4 ? "0.02" : "0.01"),
                           agreement_item("batch", rank == 2 ? "9" : "8")};
    });
    EXPECT_EQ(heard, std::vector<std::string>(5,
                                              "ranks do not agree before the first step: rank 1 on node7, rank 4 on "
                                              "node7 have rate: 0.02; rank 0 on node7 has rate: 0.01. Look there."));
}

/// Rank 0 may be the odd one; of two ranks it is the other.
TEST(Agreement, BelievesTheMost) {
    const auto odd_first =
        heard_by(3, [](std::int32_t rank) { return std::vector{agreement_item("data set", rank == 0 ? "a" : "b")}; });
    EXPECT_EQ(odd_first.back(),
              "ranks do not agree before the first step: rank 0 on node7 has data set: a; rank 1 on node7 has data "
              "set: b. Look there.");
    const auto of_two =
        heard_by(2, [](std::int32_t rank) { return std::vector{agreement_item("data set", std::to_string(rank))}; });
    EXPECT_EQ(of_two.front(),
              "ranks do not agree before the first step: rank 1 on node7 has data set: 1; rank 0 on node7 has data "
              "set: 0. Look there.");
}

TEST(Agreement, SaysOfEachValueWhoHasIt) {
    const auto heard = heard_by(
        4, [](std::int32_t rank) { return std::vector{agreement_item("seed", std::to_string(std::max(rank, 1)))}; });
    EXPECT_EQ(heard.front(),
              "ranks do not agree before the first step: rank 2 on node7 has seed: 2; rank 0 on node7 has seed: 1; 1 "
              "more have other values. Look there.");
}

TEST(Agreement, SeesAMissingItemAndAnotherName) {
    const auto missing = heard_by(3, [](std::int32_t rank) {
        std::vector items{agreement_item("a", "1")};
        if (rank != 2) {
            items.push_back(agreement_item("b", "2"));
        }
        return items;
    });
    EXPECT_EQ(
        missing.front(),
        "ranks do not agree before the first step: rank 2 on node7 has nothing; rank 0 on node7 has b: 2. Look there.");
    const auto renamed =
        heard_by(3, [](std::int32_t rank) { return std::vector{agreement_item(rank == 1 ? "conv" : "linear", "1")}; });
    EXPECT_EQ(renamed.front(),
              "ranks do not agree before the first step: rank 1 on node7 has conv: 1; rank 0 on node7 has linear: 1. "
              "Look there.");
}

/// The text alone does not tell: a parameter's values are in the hash.
TEST(Agreement, ComparesHashes) {
    const auto heard = heard_by(2, [](std::int32_t rank) {
        return std::vector{AgreementItem{"weight", static_cast<std::uint64_t>(rank), "[64, 3, 3, 3]"}};
    });
    EXPECT_NE(heard.front(), "no error");
}

}  // namespace
}  // namespace lockstep::comm
