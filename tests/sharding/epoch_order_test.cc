#include "sharding/epoch_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "base/error.h"

namespace lockstep::sharding {
namespace {

std::vector<std::uint64_t> epoch_of(const EpochOrder& order, std::uint64_t epoch) {
    std::vector<std::uint64_t> ids(order.size());
    for (std::uint64_t position = 0; position < order.size(); ++position) {
        ids[position] = order.sample_at(epoch, position);
    }
    return ids;
}

double chi_square(const std::vector<double>& counts, double expected) {
    double sum = 0;
    for (double count : counts) {
        sum += (count - expected) * (count - expected) / expected;
    }
    return sum;
}

class Permutation : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Permutation, HoldsEverySampleOnce) {
    const std::uint64_t size = GetParam();
    for (std::uint64_t seed : {0ULL, 1ULL, ~0ULL}) {
        const EpochOrder order(OrderKind::full, seed, size);
        for (std::uint64_t epoch : {0ULL, 1ULL, 499ULL}) {
            std::vector<std::uint64_t> ids = epoch_of(order, epoch);
            std::sort(ids.begin(), ids.end());
            for (std::uint64_t i = 0; i < size; ++i) {
                ASSERT_EQ(ids[i], i) << "seed " << seed << " epoch " << epoch;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Permutation,
                         testing::Values(0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 64, 97, 127, 128, 129, 255, 289, 997,
                                         1000, 1024, 1025, 7919, 65537));

TEST(EpochOrder, IsAPureFunctionOfSeedEpochAndPosition) {
    const EpochOrder order(OrderKind::full, 7, 1000);
    const EpochOrder same(OrderKind::full, 7, 1000);
    EXPECT_EQ(epoch_of(order, 3), epoch_of(same, 3));
    EXPECT_NE(epoch_of(order, 3), epoch_of(order, 4));
    EXPECT_NE(epoch_of(order, 3), epoch_of(EpochOrder(OrderKind::full, 8, 1000), 3));
}

TEST(EpochOrder, OneEpochOfItAndItsInverseAreTheSame) {
    for (const OrderKind kind : {OrderKind::sequential, OrderKind::block, OrderKind::full}) {
        for (const std::uint64_t size : {1, 2, 57, 64, 1000, 1003}) {
            const EpochOrder order(kind, 9, size, {.block = 8, .window = 3});
            for (const std::uint64_t epoch : {0, 7}) {
                const OrderOfEpoch one(order, epoch);
                for (std::uint64_t position = 0; position < size; ++position) {
                    const std::uint64_t id = order.sample_at(epoch, position);
                    ASSERT_EQ(one.sample_at(position), id) << size << " " << position;
                    ASSERT_EQ(order.position_of(epoch, id), position) << size << " " << id;
                    ASSERT_EQ(one.position_of(id), position) << size << " " << id;
                }
            }
        }
    }
}

TEST(EpochOrder, SequentialIsTheIdentityInEveryEpoch) {
    const EpochOrder order(OrderKind::sequential, 7, 5);
    EXPECT_EQ(epoch_of(order, 9), (std::vector<std::uint64_t>{0, 1, 2, 3, 4}));
}

TEST(EpochOrder, TakesTheLargestSizesWithoutOverflow) {
    const std::uint64_t size = ~0ULL;
    const EpochOrder order(OrderKind::full, 1, size);
    std::set<std::uint64_t> seen;
    for (std::uint64_t position = 0; position < 1000; ++position) {
        const std::uint64_t id = order.sample_at(0, size - 1 - position);
        EXPECT_LT(id, size);
        seen.insert(id);
    }
    EXPECT_EQ(seen.size(), 1000u);
}

// Pearson's statistic of a fair shuffle has mean `freedom` and variance 2 * freedom; the bound is six deviations away.
double six_deviations(double freedom) {
    return freedom + 6 * std::sqrt(2 * freedom);
}

TEST(EpochOrder, PutsEverySampleAtEveryPositionEquallyOften) {
    for (std::uint64_t size : {2ULL, 3ULL, 5ULL, 10ULL, 16ULL}) {
        const EpochOrder order(OrderKind::full, 11, size);
        const int epochs = 20000;
        std::vector<double> counts(size * size);
        for (int epoch = 0; epoch < epochs; ++epoch) {
            for (std::uint64_t position = 0; position < size; ++position) {
                counts[position * size + order.sample_at(epoch, position)] += 1;
            }
        }
        const double freedom = (size - 1.0) * (size - 1.0);
        EXPECT_LT(chi_square(counts, epochs / double(size)), six_deviations(freedom)) << "size " << size;
    }
}

TEST(EpochOrder, ReachesEveryPermutationOfFourEquallyOften) {
    const EpochOrder order(OrderKind::full, 5, 4);
    const int epochs = 24000;
    std::vector<double> counts(256);
    for (int epoch = 0; epoch < epochs; ++epoch) {
        const auto ids = epoch_of(order, epoch);
        counts[ids[0] * 64 + ids[1] * 16 + ids[2] * 4 + ids[3]] += 1;
    }
    std::erase(counts, 0.0);
    ASSERT_EQ(counts.size(), 24u);
    EXPECT_LT(chi_square(counts, epochs / 24.0), six_deviations(23));
}

TEST(BlockShuffle, HoldsEverySampleOnceWhateverTheSizes) {
    for (std::uint64_t size : {1, 2, 3, 7, 8, 9, 16, 63, 64, 65, 100, 1000, 1025}) {
        for (const BlockShape shape : {BlockShape{1, 1}, BlockShape{1, 5}, BlockShape{8, 1}, BlockShape{8, 3},
                                       BlockShape{64, 16}, BlockShape{5000, 2}}) {
            for (std::uint64_t epoch : {0ULL, 7ULL}) {
                std::vector<std::uint64_t> ids = epoch_of(EpochOrder(OrderKind::block, 3, size, shape), epoch);
                std::sort(ids.begin(), ids.end());
                for (std::uint64_t i = 0; i < size; ++i) {
                    ASSERT_EQ(ids[i], i) << size << " samples, block " << shape.block << ", window " << shape.window;
                }
            }
        }
    }
}

TEST(BlockShuffle, AWindowHoldsWholeBlocksAndMixesThem) {
    const std::uint64_t block = 8, window = 4, size = 8 * 4 * 10;
    const EpochOrder order(OrderKind::block, 3, size, {block, window});
    const auto ids = epoch_of(order, 2);
    EXPECT_EQ(ids, epoch_of(EpochOrder(OrderKind::block, 3, size, {block, window}), 2));
    EXPECT_NE(ids, epoch_of(order, 3));
    EXPECT_NE(ids, epoch_of(EpochOrder(OrderKind::block, 4, size, {block, window}), 2));
    std::uint64_t changes_of_block = 0;
    for (std::uint64_t begin = 0; begin < size; begin += block * window) {
        std::set<std::uint64_t> blocks;
        for (std::uint64_t i = begin; i < begin + block * window; ++i) {
            blocks.insert(ids[i] / block);
            changes_of_block += i > begin && ids[i] / block != ids[i - 1] / block ? 1 : 0;
        }
        EXPECT_EQ(blocks.size(), window) << "window at " << begin;
    }
    // Of 32 neighbours 24 belong to other blocks: 31 * 24 / 31 = 24 changes are expected in each of the ten windows.
    EXPECT_NEAR(static_cast<double>(changes_of_block), 240, 40);
}

TEST(BlockShuffle, TheShortBlockAtTheEndComesAnywhere) {
    const EpochOrder order(OrderKind::block, 9, 10 * 4 + 1, {4, 1});
    std::set<std::uint64_t> places;
    for (std::uint64_t epoch = 0; epoch < 200; ++epoch) {
        const auto ids = epoch_of(order, epoch);
        places.insert(static_cast<std::uint64_t>(std::find(ids.begin(), ids.end(), 40) - ids.begin()) / 4);
    }
    EXPECT_EQ(places.size(), 11u);
}

TEST(ShuffleQuality, IsTheMeanDistanceOfNeighboursOverThatOfAFairShuffle) {
    const std::uint64_t size = 3000;
    EXPECT_DOUBLE_EQ(EpochOrder(OrderKind::sequential, 1, size).shuffle_quality(0), 3.0 / (size + 1));
    const EpochOrder blocks(OrderKind::block, 1, size, {10, 5});
    double plain = 0;
    const auto ids = epoch_of(blocks, 4);
    for (std::uint64_t i = 0; i + 1 < size; ++i) {
        plain += std::abs(static_cast<double>(ids[i + 1]) - static_cast<double>(ids[i]));
    }
    EXPECT_DOUBLE_EQ(blocks.shuffle_quality(4), plain / (size - 1) / ((size + 1) / 3.0));
    // The distance of two fair draws has a variance of size^2 / 18; six deviations of 4096 of them.
    EXPECT_NEAR(EpochOrder(OrderKind::full, 1, 1000000).shuffle_quality(0), 1, 6 * 3 / std::sqrt(18.0 * 4096));
    // One pair in `window` comes from the same block and is no distance apart.
    EXPECT_NEAR(EpochOrder(OrderKind::block, 1, 1000000, {64, 16}).shuffle_quality(0), 15.0 / 16, 0.07);
    EXPECT_LT(EpochOrder(OrderKind::block, 1, 1000000, {64, 1}).shuffle_quality(0), 0.06);
    EXPECT_EQ(EpochOrder(OrderKind::full, 1, 2).shuffle_quality(0), 1);
}

TEST(EpochOrder, NeighboursInTheOrderAreStrangers) {
    const std::uint64_t size = 1000;
    const EpochOrder order(OrderKind::full, 3, size);
    const int epochs = 40;
    const std::uint64_t bins = 20;
    std::vector<double> step_between_neighbours(bins);
    std::vector<double> joint(bins * bins);
    for (int epoch = 0; epoch < epochs; ++epoch) {
        const auto ids = epoch_of(order, epoch);
        for (std::uint64_t i = 0; i + 1 < size; ++i) {
            const std::uint64_t difference = (ids[i + 1] + size - ids[i]) % size;
            step_between_neighbours[difference * bins / size] += 1;
            joint[ids[i] * bins / size * bins + ids[i + 1] * bins / size] += 1;
        }
    }
    const double pairs = epochs * (size - 1.0);
    // A difference of zero can't occur, so the first bin holds 49 of 999 differences; the bound's slack covers that.
    EXPECT_LT(chi_square(step_between_neighbours, pairs / bins), six_deviations(bins - 1));
    EXPECT_LT(chi_square(joint, pairs / (bins * bins)), six_deviations((bins - 1) * (bins - 1)));
}

TEST(PartOf, CutsIntoContiguousPiecesLargerOnesFirst) {
    EXPECT_EQ(part_of({10, 17}, 3, 0), (PositionRange{10, 13}));
    EXPECT_EQ(part_of({10, 17}, 3, 1), (PositionRange{13, 15}));
    EXPECT_EQ(part_of({10, 17}, 3, 2), (PositionRange{15, 17}));
    for (std::uint64_t count = 0; count < 40; ++count) {
        for (std::uint64_t parts = 1; parts < 9; ++parts) {
            std::uint64_t at = 100;
            for (std::uint64_t index = 0; index < parts; ++index) {
                const PositionRange part = part_of({100, 100 + count}, parts, index);
                EXPECT_EQ(part.begin, at);
                EXPECT_LE(part.count(), count / parts + 1);
                EXPECT_GE(part.count(), count / parts);
                at = part.end;
            }
            EXPECT_EQ(at, 100 + count);
        }
    }
    EXPECT_THROW(part_of({0, 4}, 2, 2), base::InternalError);
}

TEST(EffectiveBatch, CoversAnEpochAndShortensTheLast) {
    const EpochOrder order(OrderKind::full, 0, 10);
    EXPECT_EQ(order.steps_per_epoch(4), 3u);
    EXPECT_EQ(order.effective_batch(0, 4), (PositionRange{0, 4}));
    EXPECT_EQ(order.effective_batch(2, 4), (PositionRange{8, 10}));
    EXPECT_EQ(order.steps_per_epoch(5), 2u);
    EXPECT_EQ(order.steps_per_epoch(64), 1u);
    EXPECT_EQ(order.effective_batch(0, 64), (PositionRange{0, 10}));
    EXPECT_EQ(EpochOrder(OrderKind::full, 0, 0).steps_per_epoch(4), 0u);
    EXPECT_THROW(order.effective_batch(3, 4), base::InternalError);
    EXPECT_THROW(order.sample_at(0, 10), base::InternalError);
}

Ledger ledger_of(const std::vector<std::uint64_t>& ids) {
    Ledger ledger;
    for (std::uint64_t id : ids) {
        ledger.enter(id);
    }
    return ledger;
}

TEST(Ledger, OfAnyOrderAndAnySplitEqualsTheWhole) {
    const auto ids = epoch_of(EpochOrder(OrderKind::full, 1, 101), 0);
    EXPECT_EQ(ledger_of(ids), Ledger::whole(101));
    const Ledger first = ledger_of({ids.begin(), ids.begin() + 40});
    const Ledger second = ledger_of({ids.begin() + 40, ids.end()});
    EXPECT_EQ((Ledger{first.count + second.count, first.hash + second.hash}), Ledger::whole(101));
    EXPECT_EQ(Ledger::whole(0), Ledger{});
}

TEST(Ledger, CatchesEveryLostRepeatedOrReplacedSample) {
    const std::uint64_t size = 40;
    std::vector<std::uint64_t> ids(size);
    std::iota(ids.begin(), ids.end(), 0);
    for (std::uint64_t lost = 0; lost < size; ++lost) {
        auto without = ids;
        without.erase(without.begin() + lost);
        EXPECT_NE(ledger_of(without), Ledger::whole(size)) << "lost " << lost;
        for (std::uint64_t instead = 0; instead < size; ++instead) {
            auto repeated = ids;
            repeated.push_back(instead);
            EXPECT_NE(ledger_of(repeated), Ledger::whole(size)) << "repeated " << instead;
            auto replaced = ids;
            replaced[lost] = instead;
            EXPECT_EQ(ledger_of(replaced) == Ledger::whole(size), lost == instead) << lost << " became " << instead;
        }
    }
    // Two errors that leave count and sum of ids as they are.
    auto compensated = ids;
    compensated[10] = 11;
    compensated[21] = 20;
    EXPECT_NE(ledger_of(compensated), Ledger::whole(size));
}

}  // namespace
}  // namespace lockstep::sharding
