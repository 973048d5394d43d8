// Oracles: closed forms, and slow plain versions that list every case.

#include "bench/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace lockstep::bench {
namespace {

base::Random random_of(std::uint64_t item) {
    return {1, base::RandomPurpose::test, 0, item};
}

std::vector<double> normals(std::size_t count, std::uint64_t item) {
    base::Random random = random_of(item);
    std::vector<double> values(count);
    std::ranges::generate(values, [&] { return random.normal(); });
    return values;
}

TEST(Median, IsTheMiddleOrTheMeanOfTwo) {
    EXPECT_EQ(median(std::vector{3.0, 1.0, 2.0}), 2);
    EXPECT_EQ(median(std::vector{4.0, 1.0, 2.0, 3.0}), 2.5);
    EXPECT_EQ(median(std::vector{7.0}), 7);
}

/// The share of resamples of n values whose median is at most the k-th smallest (k from 1), n odd: at least (n + 1) / 2
/// of n draws are among the k smallest.
double exact_share_at_most(std::size_t k, std::size_t n) {
    const double hit = static_cast<double>(k) / static_cast<double>(n);
    double share = 0;
    for (std::size_t j = (n + 1) / 2; j <= n; ++j) {
        share += std::exp(std::lgamma(n + 1.0) - std::lgamma(j + 1.0) - std::lgamma(n - j + 1.0)) *
                 std::pow(hit, static_cast<double>(j)) * std::pow(1 - hit, static_cast<double>(n - j));
    }
    return share;
}

TEST(BootstrapInterval, IsTheExactOneOfTheBinomialDistribution) {
    for (const std::size_t n : {5, 7, 9, 13, 21}) {
        std::vector<double> values(n);
        std::iota(values.begin(), values.end(), 1.0);
        std::size_t low = 1, high = 1;
        while (exact_share_at_most(low, n) < 0.025) {
            ++low;
        }
        while (exact_share_at_most(high, n) < 0.975) {
            ++high;
        }
        // A share next to 2.5% may fall on either side of it in 10,000 draws.
        const bool near_low = std::abs(exact_share_at_most(low, n) - 0.025) < 0.005 ||
                              std::abs(exact_share_at_most(low - 1, n) - 0.025) < 0.005;
        const bool near_high = std::abs(exact_share_at_most(high, n) - 0.975) < 0.005 ||
                               std::abs(exact_share_at_most(high - 1, n) - 0.975) < 0.005;
        for (std::uint64_t seed = 0; seed < 5; ++seed) {
            const Interval interval = bootstrap_interval_of_median(values, seed);
            EXPECT_NEAR(interval.low, static_cast<double>(low), near_low ? 1 : 0) << n << " values, seed " << seed;
            EXPECT_NEAR(interval.high, static_cast<double>(high), near_high ? 1 : 0) << n << " values, seed " << seed;
        }
    }
}

TEST(BootstrapInterval, FollowsFromTheSeed) {
    const std::vector<double> values = normals(20, 1);
    EXPECT_EQ(bootstrap_interval_of_median(values, 3), bootstrap_interval_of_median(values, 3));
    EXPECT_EQ(bootstrap_interval_of_median(std::vector{2.0, 2.0, 2.0}, 1), (Interval{2, 2}));
}

/// All 2^n sign assignments, one by one.
double listed_signed_rank_p(std::vector<double> values) {
    std::erase(values, 0.0);
    std::vector<double> ranks;
    for (const double value : values) {
        double below = 0, equal = 0;
        for (const double other : values) {
            below += std::abs(other) < std::abs(value) ? 1 : 0;
            equal += std::abs(other) == std::abs(value) ? 1 : 0;
        }
        ranks.push_back(below + (equal + 1) / 2);
    }
    const double half = std::accumulate(ranks.begin(), ranks.end(), 0.0) / 2;
    double seen = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        seen += values[i] > 0 ? ranks[i] : 0;
    }
    std::size_t as_lopsided = 0;
    for (std::size_t signs = 0; signs < std::size_t{1} << values.size(); ++signs) {
        double sum = 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
            sum += (signs >> i & 1) != 0 ? ranks[i] : 0;
        }
        as_lopsided += std::abs(sum - half) >= std::abs(seen - half) - 1e-9 ? 1 : 0;
    }
    return static_cast<double>(as_lopsided) / std::pow(2.0, static_cast<double>(values.size()));
}

TEST(SignedRank, EqualsTheListOfAllSigns) {
    for (std::uint64_t item = 0; item < 60; ++item) {
        base::Random random = random_of(item);
        std::vector<double> values(1 + random.below(11));
        for (double& value : values) {
            // Half of the samples have ties and zeros.
            value = item % 2 == 0 ? random.normal() + 0.5 : static_cast<double>(random.below(7)) - 2;
        }
        if (std::ranges::all_of(values, [](double value) { return value == 0; })) {
            continue;
        }
        EXPECT_NEAR(signed_rank_p(values), listed_signed_rank_p(values), 1e-12) << "item " << item;
    }
}

TEST(SignedRank, OfOneSidedDifferencesIsTheClosedForm) {
    for (std::size_t n = 1; n <= 40; ++n) {
        std::vector<double> values(n);
        std::iota(values.begin(), values.end(), 1.0);
        EXPECT_NEAR(signed_rank_p(values), std::min(1.0, std::pow(2.0, 1 - static_cast<double>(n))), 1e-15) << n;
    }
    EXPECT_EQ(signed_rank_p(std::vector{0.0, 0.0}), 1);
    EXPECT_EQ(signed_rank_p(std::vector<double>{}), 1);
}

/// Every way to deal the pooled values into two samples, one by one.
double listed_rank_sum_p(const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> pooled = a;
    pooled.insert(pooled.end(), b.begin(), b.end());
    std::vector<double> ranks;
    for (const double value : pooled) {
        const auto below = std::ranges::count_if(pooled, [&](double other) { return other < value; });
        const auto equal = std::ranges::count(pooled, value);
        ranks.push_back(static_cast<double>(below) + (static_cast<double>(equal) + 1) / 2);
    }
    const double all = std::accumulate(ranks.begin(), ranks.end(), 0.0);
    const double mean = all * static_cast<double>(a.size()) / static_cast<double>(pooled.size());
    const double seen = std::accumulate(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(a.size()), 0.0);
    double deals = 0, as_lopsided = 0;
    for (unsigned chosen = 0; chosen < 1U << pooled.size(); ++chosen) {
        if (static_cast<std::size_t>(__builtin_popcount(chosen)) != a.size()) {
            continue;
        }
        double sum = 0;
        for (std::size_t i = 0; i < pooled.size(); ++i) {
            sum += (chosen >> i & 1U) != 0 ? ranks[i] : 0;
        }
        deals += 1;
        as_lopsided += std::abs(sum - mean) >= std::abs(seen - mean) - 1e-9 ? 1 : 0;
    }
    return as_lopsided / deals;
}

TEST(RankSum, EqualsTheListOfAllDeals) {
    for (std::uint64_t item = 0; item < 40; ++item) {
        base::Random random = random_of(item);
        std::vector<double> a(1 + random.below(6)), b(1 + random.below(6));
        for (auto* sample : {&a, &b}) {
            for (double& value : *sample) {
                value = item % 2 == 0 ? random.normal() + (sample == &a ? 1 : 0) : static_cast<double>(random.below(4));
            }
        }
        EXPECT_NEAR(rank_sum_p(a, b), listed_rank_sum_p(a, b), 1e-12) << "item " << item;
    }
    // Two samples that don't overlap: 2 of C(8, 4) deals.
    EXPECT_NEAR(rank_sum_p(std::vector{1.0, 2.0, 3.0, 4.0}, std::vector{5.0, 6.0, 7.0, 8.0}), 2.0 / 70, 1e-12);
    EXPECT_EQ(rank_sum_p(std::vector<double>{}, std::vector{1.0}), 1);
}

TEST(BootstrapInterval, OfARatioWithAConstantIsThatOfItsMedian) {
    const std::vector<double> values = {1, 2, 3, 4, 5, 6, 7};
    const Interval ratio = bootstrap_interval_of_ratio(values, std::vector{2.0, 2.0}, 1);
    const Interval plain = bootstrap_interval_of_median(values, 1);
    EXPECT_NEAR(ratio.low, plain.low / 2, 0.5);
    EXPECT_NEAR(ratio.high, plain.high / 2, 0.5);
}

/// Of the definition: the largest adjusted value among those at least as significant.
std::vector<double> plain_holm(const std::vector<double>& p) {
    std::vector<double> adjusted(p.size(), 0);
    for (std::size_t i = 0; i < p.size(); ++i) {
        for (std::size_t j = 0; j < p.size(); ++j) {
            if (p[j] <= p[i]) {
                const auto smaller = std::ranges::count_if(p, [&](double other) { return other < p[j]; });
                adjusted[i] = std::max(adjusted[i], std::min(1.0, static_cast<double>(p.size() - smaller) * p[j]));
            }
        }
    }
    return adjusted;
}

TEST(Holm, IsItsDefinition) {
    EXPECT_EQ(holm(std::vector{0.01, 0.04, 0.03}), (std::vector{0.03, 0.06, 0.06}));
    EXPECT_EQ(holm(std::vector{0.5, 0.9}), (std::vector{1.0, 1.0}));
    EXPECT_TRUE(holm(std::vector<double>{}).empty());
    for (std::uint64_t item = 0; item < 50; ++item) {
        base::Random random = random_of(item);
        std::vector<double> p(1 + random.below(9));
        std::ranges::generate(p, [&] { return random.uniform(0, 0.2); });
        const auto ours = holm(p), plain = plain_holm(p);
        for (std::size_t i = 0; i < p.size(); ++i) {
            EXPECT_NEAR(ours[i], plain[i], 1e-15) << "item " << item << ", value " << i;
        }
    }
}

TEST(Trend, IsTheNormalApproximationOfKendall) {
    // 4 values in order: 6 concordant pairs, variance 4*3*13/18.
    EXPECT_NEAR(trend_p(std::vector{1.0, 2.0, 3.0, 4.0}), std::erfc(5 / std::sqrt(4 * 3 * 13 / 18.0) / std::sqrt(2.0)),
                1e-12);
    // A tie of two: the variance loses 2*1*9.
    EXPECT_NEAR(trend_p(std::vector{1.0, 2.0, 2.0, 3.0}),
                std::erfc(4 / std::sqrt((4 * 3 * 13 - 2 * 1 * 9) / 18.0) / std::sqrt(2.0)), 1e-12);
    EXPECT_EQ(trend_p(std::vector{1.0, 1.0, 1.0, 1.0}), 1);
    std::size_t alarms = 0;
    for (std::uint64_t item = 0; item < 1000; ++item) {
        alarms += trend_p(normals(30, item)) < significance ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(alarms), 50, 25) << "of 1000 series without a trend";
}

TEST(WarmUp, EndsWhereTheStepsAreSteady) {
    for (std::uint64_t item = 0; item < 20; ++item) {
        std::vector<double> steps = normals(60, item);
        for (std::size_t i = 0; i < steps.size(); ++i) {
            steps[i] = 1 + 0.01 * steps[i] + (i < 9 ? 0.3 * static_cast<double>(9 - i) : 0);
        }
        const WarmUp warm_up = find_warm_up(steps);
        EXPECT_GE(warm_up.steps, 9u) << item;
    }
    std::vector<double> flat(40, 1.0);
    EXPECT_EQ(find_warm_up(flat).steps, 1u) << "the first step always goes";
    std::vector<double> slower(40);
    std::iota(slower.begin(), slower.end(), 100.0);
    EXPECT_TRUE(find_warm_up(slower).still_drifts);
    EXPECT_EQ(find_warm_up(slower).steps, 20u);
    EXPECT_EQ(find_warm_up(std::vector<double>{}).steps, 0u);
}

PairedRatios ratios_of(double shift, double noise, std::size_t blocks, std::uint64_t item) {
    PairedRatios pairs;
    for (const double value : normals(blocks, item)) {
        pairs.ratios.push_back(std::exp(shift + noise * value));
    }
    return pairs;
}

TEST(Sweep, NamesWhatDiffersAndWhatDoesNot) {
    const std::vector<PairedRatios> arms = {ratios_of(std::log(0.6), 0.01, 12, 1),
                                            ratios_of(std::log(1.3), 0.01, 12, 2), ratios_of(0, 0.002, 12, 3),
                                            ratios_of(0.01, 0.2, 12, 4), PairedRatios{{0.5}}};
    const SweepComparison sweep = compare_sweep(ratios_of(0, 0.01, 12, 5), arms, 1);
    EXPECT_EQ(sweep.arms[0].finding, Finding::lower);
    EXPECT_NEAR(sweep.arms[0].ratio, 0.6, 0.01);
    EXPECT_LT(sweep.arms[0].interval.low, sweep.arms[0].ratio);
    EXPECT_GT(sweep.arms[0].interval.high, sweep.arms[0].ratio);
    EXPECT_EQ(sweep.arms[1].finding, Finding::higher);
    EXPECT_EQ(sweep.arms[2].finding, Finding::no_difference);
    EXPECT_EQ(sweep.arms[3].finding, Finding::unclear);
    EXPECT_EQ(sweep.arms[4].finding, Finding::unclear) << "one block tells nothing";
    EXPECT_FALSE(sweep.control_differs);
}

TEST(Sweep, TooFewBlocksFindNothing) {
    const SweepComparison sweep =
        compare_sweep(ratios_of(0, 0.01, 4, 1), std::vector{ratios_of(std::log(0.5), 0.01, 4, 2)}, 1);
    EXPECT_EQ(sweep.arms[0].finding, Finding::unclear);
    EXPECT_TRUE(std::isinf(smallest_findable(ratios_of(0, 0.01, 4, 1), {}, 0.01, 1)));
    EXPECT_TRUE(std::isinf(smallest_findable({}, {}, 0.01, 1))) << "without any blocks";
}

TEST(Sweep, ControlThatDiffersIsSaid) {
    const SweepComparison sweep = compare_sweep(ratios_of(std::log(1.1), 0.01, 12, 1), {}, 1);
    EXPECT_TRUE(sweep.control_differs);
    EXPECT_NEAR(sweep.band, 0.1, 0.01);
}

TEST(Sweep, SmallestFindableDifferenceIsFoundInFourOfFiveSweeps) {
    constexpr std::size_t blocks = 12, sweeps = 400;
    const std::vector<PairedRatios> arms = {ratios_of(0, 0.03, blocks, 11), ratios_of(0, 0.03, blocks, 12),
                                            ratios_of(0, 0.03, blocks, 13), ratios_of(0, 0.03, blocks, 14)};
    // So much noise to draw from that it says what it is.
    const double findable = smallest_findable(ratios_of(0, 0.03, 2000, 10), arms, least_band, 1);
    std::size_t found = 0;
    for (std::uint64_t sweep = 0; sweep < sweeps; ++sweep) {
        const PairedRatios pairs = ratios_of(std::log1p(findable), 0.03, blocks, 100 + sweep);
        std::vector<double> logs;
        for (const double ratio : pairs.ratios) {
            logs.push_back(std::log(ratio));
        }
        found += signed_rank_p(logs) < significance / 4 ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(found) / sweeps, 0.8, 0.07) << "a difference of " << findable;
}

}  // namespace
}  // namespace lockstep::bench
