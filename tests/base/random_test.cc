#include "base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <vector>

#include "base/error.h"

namespace lockstep::base {
namespace {

using Block = std::array<std::uint32_t, 4>;

Random stream(std::uint64_t item = 0) {
    return {7, RandomPurpose::test, 0, item};
}

TEST(Philox, GivesThePublishedVectors) {
    // Known-answer vectors of the Random123 distribution.
    EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(philox4x32_10({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, IsAFunctionOfItsArgumentsAndTheNumberOfDraws) {
    // Written out from the definition; data orders and resumed runs rely on it, so it may never change.
    const std::uint64_t seed = 0x1111111122222222, epoch = 0x3333333344444444, item = 0x5555555566666666;
    const Block hashed = philox4x32_10({2, 0x44444444, 0x33333333, 0}, {0x22222222, 0x11111111});
    Random random(seed, RandomPurpose::augmentation, epoch, item);
    for (std::uint32_t block = 0; block < 5; ++block) {
        for (const std::uint32_t expected : philox4x32_10({block, 0, 0x66666666, 0x55555555}, {hashed[0], hashed[1]})) {
            ASSERT_EQ(random.next_u32(), expected) << "block " << block;
        }
    }
}

TEST(Random, IsAnotherStreamForEverySeedPurposeEpochAndItem) {
    std::set<std::uint64_t> first_draws;
    std::size_t streams = 0;
    for (const std::uint64_t seed : {0ull, 1ull, 1ull << 32, ~0ull}) {
        for (const RandomPurpose purpose : {RandomPurpose::order, RandomPurpose::augmentation, RandomPurpose::mosaic}) {
            for (const std::uint64_t epoch : {0ull, 1ull, 1ull << 32, 1ull << 63}) {
                for (const std::uint64_t item : {0ull, 1ull, 1ull << 32, 1ull << 63}) {
                    first_draws.insert(Random(seed, purpose, epoch, item).next_u64());
                    ++streams;
                }
            }
        }
    }
    EXPECT_EQ(first_draws.size(), streams);
}

TEST(Random, NextU64IsTwoWordsLowFirst) {
    Random words = stream(), doubles = stream();
    const std::uint64_t low = words.next_u32();
    const std::uint64_t high = words.next_u32();
    EXPECT_EQ(doubles.next_u64(), low | high << 32);
}

TEST(Random, UniformIsInItsRangeWithTheRightMoments) {
    Random random = stream();
    constexpr int count = 100000;
    double sum = 0, squares = 0;
    for (int i = 0; i < count; ++i) {
        const double value = random.uniform();
        ASSERT_GE(value, 0);
        ASSERT_LT(value, 1);
        sum += value;
        squares += value * value;
    }
    // Five standard deviations of the means of u (sqrt(1/12)) and of u^2 (sqrt(4/45)).
    EXPECT_NEAR(sum / count, 0.5, 5 * std::sqrt(1.0 / 12 / count));
    EXPECT_NEAR(squares / count, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / count));
}

TEST(Random, UniformBetweenNeverReachesTheUpperEnd) {
    Random random = stream();
    const double high = std::nextafter(1.0, 2.0);  // half of all sums would be rounded up to it
    for (int i = 0; i < 100; ++i) {
        ASSERT_EQ(random.uniform(1.0, high), 1.0);
    }
    for (int i = 0; i < 1000; ++i) {
        const double value = random.uniform(-3, 5);
        ASSERT_GE(value, -3);
        ASSERT_LT(value, 5);
    }
    EXPECT_EQ(random.uniform(2, 2), 2);
    EXPECT_THROW(random.uniform(2, 1), InternalError);
}

TEST(Random, BelowIsUniform) {
    Random random = stream();
    constexpr int count = 70000;
    std::array<int, 7> seen{};
    for (int i = 0; i < count; ++i) {
        ++seen.at(random.below(seen.size()));
    }
    double chi_square = 0;
    for (const int times : seen) {
        const double expected = count / 7.0;
        chi_square += (times - expected) * (times - expected) / expected;
    }
    EXPECT_LT(chi_square, 22.46) << "99.9th percentile for 6 degrees of freedom";
}

TEST(Random, BelowHasNoBiasForAHugeBound) {
    // Without rejection, a bound of 3/4 of 2^64 would give the multiples of 3 twice as often as the rest.
    Random random = stream();
    const std::uint64_t bound = 3ull << 62;
    constexpr int count = 30000;
    int multiples = 0;
    for (int i = 0; i < count; ++i) {
        const std::uint64_t value = random.below(bound);
        ASSERT_LT(value, bound);
        multiples += value % 3 == 0;
    }
    EXPECT_NEAR(multiples / static_cast<double>(count), 1.0 / 3, 5 * std::sqrt(2.0 / 9 / count));
}

TEST(Random, BelowOneIsZeroAndBelowZeroIsAMistake) {
    Random random = stream();
    EXPECT_EQ(random.below(1), 0u);
    EXPECT_THROW(random.below(0), InternalError);
}

TEST(Random, CoinHasItsProbability) {
    Random random = stream();
    constexpr int count = 100000;
    int heads = 0;
    for (int i = 0; i < count; ++i) {
        ASSERT_FALSE(random.coin(0));
        ASSERT_TRUE(random.coin(1));
        heads += random.coin(0.3);
    }
    EXPECT_NEAR(heads / static_cast<double>(count), 0.3, 5 * std::sqrt(0.3 * 0.7 / count));
}

TEST(Random, NormalHasTheNormalDistribution) {
    constexpr int count = 20000;
    std::vector<double> values(count);
    Random random = stream();
    std::generate(values.begin(), values.end(), [&] { return random.normal(); });
    std::sort(values.begin(), values.end());
    double distance = 0;  // Kolmogorov-Smirnov, against the closed form
    for (int i = 0; i < count; ++i) {
        const double below = 0.5 * std::erfc(-values[i] / std::numbers::sqrt2);
        distance =
            std::max({distance, below - i / static_cast<double>(count), (i + 1) / static_cast<double>(count) - below});
    }
    EXPECT_LT(distance * std::sqrt(count), 1.95) << "99.9th percentile";
}

}  // namespace
}  // namespace lockstep::base
