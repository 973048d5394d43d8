#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// The statistics of a sweep. The unit of repetition is a launch; arms are compared within their block, by ratios.
namespace lockstep::bench {

inline constexpr double significance = 0.05;
inline constexpr double confidence = 0.95;
inline constexpr double power = 0.8;  ///< of "could have found"
/// Differences below this are of no interest, however certain.
inline constexpr double least_band = 0.01;

struct Interval {
    double low = 0;
    double high = 0;
    bool operator==(const Interval&) const = default;
};

/// The middle value, or the mean of the two; at least one value.
double median(std::span<const double> values);
/// Percentile interval of the bootstrapped median; the same for the same seed. With less than about six values it is
/// their range.
Interval bootstrap_interval_of_median(std::span<const double> values, std::uint64_t seed,
                                      std::size_t resamples = 10000);

/// Two-sided p-value of Wilcoxon's signed rank test, exact for any ties: the share of all sign assignments at least as
/// lopsided. Zeros are dropped. It asks of the differences only that without an effect + and - are alike, which blocks
/// in random order give, and no single outlier decides it. 1 where nothing is left.
double signed_rank_p(std::span<const double> differences);

/// Two-sided p-value of Wilcoxon's rank sum test of two independent samples, exact for any ties: the share of all ways
/// to deal the values into samples of these sizes that are at least as lopsided. 1 where a sample is empty.
double rank_sum_p(std::span<const double> a, std::span<const double> b);

/// Percentile interval of median(a) / median(b), both resampled; at least one value each, all positive.
Interval bootstrap_interval_of_ratio(std::span<const double> a, std::span<const double> b, std::uint64_t seed,
                                     std::size_t resamples = 10000);

/// Holm's step-down adjustment: adjusted p-values in the order given; below `significance` with a chance of at most
/// that of any false one among them.
std::vector<double> holm(std::span<const double> p_values);

/// One arm against the baseline: ratios arm / baseline of the blocks that have both.
struct PairedRatios {
    std::vector<double> ratios;
};

enum class Finding {
    lower,          ///< the arm's value is lower than the baseline's, beyond noise
    higher,         ///< likewise
    no_difference,  ///< the whole interval lies in the band
    unclear         ///< neither: more blocks, or less noise, would tell
};

struct Comparison {
    std::size_t blocks = 0;
    double ratio = 1;  ///< median
    Interval interval = {};
    double p = 1;           ///< alone
    double adjusted_p = 1;  ///< over the sweep
    Finding finding = Finding::unclear;
};

/// A metric over a whole sweep.
struct SweepComparison {
    Comparison control;            ///< the baseline against itself
    bool control_differs = false;  ///< it does, beyond chance: the blocks are not comparable
    double band = least_band;      ///< ratios within 1 / (1 + band) to 1 + band are no difference
    std::vector<Comparison> arms;
};

/// `control`: the ratios of the A/A arm. `arms`: of the others, in any order; one with less than two blocks stays
/// unclear. An arm differs where Holm says so and its median lies outside the band, which is what the baseline differs
/// from itself, at least 1%. Everything but `smallest_findable`, which takes longer.
SweepComparison compare_sweep(const PairedRatios& control, std::span<const PairedRatios> arms, std::uint64_t seed,
                              std::size_t resamples = 10000);

/// The least difference that would be found in 80% of sweeps with this noise and as many arms and blocks, by
/// resampling; infinite where none would be. `band` as in the comparison.
double smallest_findable(const PairedRatios& control, std::span<const PairedRatios> arms, double band,
                         std::uint64_t seed);

/// Steps at the beginning that belong to the warm-up: first those that stand out from what follows, then as many as it
/// takes until what is left shows no trend (Mann-Kendall, 5%). Half of the steps at most.
struct WarmUp {
    std::size_t steps = 0;
    bool still_drifts = false;  ///< even the second half has a trend
};
WarmUp find_warm_up(std::span<const double> step_seconds);

/// Two-sided p-value of the Mann-Kendall test for a trend, normal approximation with correction for ties.
double trend_p(std::span<const double> values);

}  // namespace lockstep::bench
