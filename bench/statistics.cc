#include "bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/random.h"

namespace lockstep::bench {
namespace {

/// Streams of random numbers of one sweep.
enum Stream : std::uint64_t { interval_stream = 1, findable_stream = 2 };

double median_in_place(std::vector<double>& values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (values.size() % 2 == 1) {
        return *middle;
    }
    return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

std::vector<double> logarithms(std::span<const double> ratios) {
    std::vector<double> logs;
    logs.reserve(ratios.size());
    for (const double ratio : ratios) {
        LOCKSTEP_CHECK(ratio > 0 && std::isfinite(ratio), "ratio ", ratio);
        logs.push_back(std::log(ratio));
    }
    return logs;
}

/// Twice the rank of each of these ascending values: whole also where equal values share the mean of theirs.
std::vector<std::size_t> doubled_ranks(std::span<const double> sorted) {
    std::vector<std::size_t> ranks;
    while (ranks.size() < sorted.size()) {
        const std::size_t begin = ranks.size();
        std::size_t end = begin;
        while (end < sorted.size() && sorted[end] == sorted[begin]) {
            ++end;
        }
        ranks.resize(end, begin + 1 + end);
    }
    return ranks;
}

/// Percentiles of what `draw` gives.
template <typename Draw>
Interval percentile_interval(std::size_t resamples, Draw draw) {
    std::vector<double> values(resamples);
    std::ranges::generate(values, draw);
    std::ranges::sort(values);
    const double tail = (1 - confidence) / 2;
    const auto at = [&](double share) {
        return values[static_cast<std::size_t>(std::llround(share * static_cast<double>(resamples - 1)))];
    };
    return {at(tail), at(1 - tail)};
}

double resampled_median(std::span<const double> values, std::vector<double>& sample, base::Random& random) {
    sample.resize(values.size());
    std::ranges::generate(sample, [&] { return values[random.below(values.size())]; });
    return median_in_place(sample);
}

Comparison compare(const PairedRatios& pairs, std::uint64_t seed, std::size_t resamples) {
    Comparison comparison;
    comparison.blocks = pairs.ratios.size();
    if (pairs.ratios.empty()) {
        return comparison;
    }
    comparison.ratio = median(pairs.ratios);
    comparison.interval = bootstrap_interval_of_median(pairs.ratios, seed, resamples);
    comparison.p = signed_rank_p(logarithms(pairs.ratios));
    comparison.adjusted_p = comparison.p;
    return comparison;
}

}  // namespace

double median(std::span<const double> values) {
    LOCKSTEP_CHECK(!values.empty());
    std::vector<double> copy(values.begin(), values.end());
    return median_in_place(copy);
}

Interval bootstrap_interval_of_median(std::span<const double> values, std::uint64_t seed, std::size_t resamples) {
    LOCKSTEP_CHECK(!values.empty() && resamples > 0);
    base::Random random(seed, base::RandomPurpose::measurement, interval_stream, values.size());
    std::vector<double> sample;
    return percentile_interval(resamples, [&] { return resampled_median(values, sample, random); });
}

Interval bootstrap_interval_of_ratio(std::span<const double> a, std::span<const double> b, std::uint64_t seed,
                                     std::size_t resamples) {
    LOCKSTEP_CHECK(!a.empty() && !b.empty() && resamples > 0);
    base::Random random(seed, base::RandomPurpose::measurement, interval_stream, a.size() + b.size());
    std::vector<double> sample;
    return percentile_interval(resamples, [&] {
        const double above = resampled_median(a, sample, random);
        return above / resampled_median(b, sample, random);
    });
}

double rank_sum_p(std::span<const double> a, std::span<const double> b) {
    if (a.empty() || b.empty()) {
        return 1;
    }
    std::vector<std::pair<double, bool>> pooled;
    for (const double value : a) {
        pooled.emplace_back(value, true);
    }
    for (const double value : b) {
        pooled.emplace_back(value, false);
    }
    std::ranges::sort(pooled);
    std::vector<double> sorted;
    std::ranges::transform(pooled, std::back_inserter(sorted), &std::pair<double, bool>::first);
    const std::vector<std::size_t> ranks = doubled_ranks(sorted);
    const std::size_t total = std::accumulate(ranks.begin(), ranks.end(), std::size_t{0});
    std::size_t seen = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        seen += pooled[i].second ? ranks[i] : 0;
    }
    // ways[k][s]: how many choices of k values have the rank sum s, by value after value.
    std::vector<std::vector<double>> ways(a.size() + 1, std::vector<double>(total + 1, 0.0));
    ways[0][0] = 1;
    for (const std::size_t rank : ranks) {
        for (std::size_t k = a.size(); k > 0; --k) {
            for (std::size_t sum = total; sum >= rank; --sum) {
                ways[k][sum] += ways[k - 1][sum - rank];
            }
        }
    }
    const double mean = static_cast<double>(total) * static_cast<double>(a.size()) / static_cast<double>(ranks.size());
    const double distance = std::abs(static_cast<double>(seen) - mean);
    double as_lopsided = 0, all = 0;
    for (std::size_t sum = 0; sum <= total; ++sum) {
        all += ways[a.size()][sum];
        as_lopsided += std::abs(static_cast<double>(sum) - mean) >= distance - 1e-9 ? ways[a.size()][sum] : 0;
    }
    return as_lopsided / all;
}

double signed_rank_p(std::span<const double> differences) {
    std::vector<double> values;
    std::ranges::copy_if(differences, std::back_inserter(values), [](double value) { return value != 0; });
    if (values.empty()) {
        return 1;
    }
    std::ranges::sort(values, {}, [](double value) { return std::abs(value); });
    const std::size_t n = values.size();
    std::vector<double> sizes;
    std::ranges::transform(values, std::back_inserter(sizes), [](double value) { return std::abs(value); });
    const std::vector<std::size_t> ranks = doubled_ranks(sizes);
    const std::size_t total = std::accumulate(ranks.begin(), ranks.end(), std::size_t{0});
    std::size_t positive = 0;
    for (std::size_t i = 0; i < n; ++i) {
        positive += values[i] > 0 ? ranks[i] : 0;
    }
    // The distribution of that sum over all 2^n signs, rank by rank.
    std::vector<double> probability(total + 1, 0.0);
    probability[0] = 1;
    std::size_t reached = 0;
    for (const std::size_t rank : ranks) {
        reached += rank;
        for (std::size_t sum = reached + 1; sum-- > 0;) {
            probability[sum] = (probability[sum] + (sum >= rank ? probability[sum - rank] : 0.0)) / 2;
        }
    }
    const std::size_t lesser = std::min(positive, total - positive);
    const double tail =
        std::accumulate(probability.begin(), probability.begin() + static_cast<std::ptrdiff_t>(lesser) + 1, 0.0);
    return std::min(1.0, 2 * tail);
}

std::vector<double> holm(std::span<const double> p_values) {
    std::vector<std::size_t> order(p_values.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return p_values[i]; });
    std::vector<double> adjusted(p_values.size());
    double least = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
        least = std::max(least, std::min(1.0, p_values[order[i]] * static_cast<double>(order.size() - i)));
        adjusted[order[i]] = least;
    }
    return adjusted;
}

SweepComparison compare_sweep(const PairedRatios& control, std::span<const PairedRatios> arms, std::uint64_t seed,
                              std::size_t resamples) {
    SweepComparison sweep;
    sweep.control = compare(control, seed, resamples);
    if (sweep.control.blocks > 0) {
        sweep.band = std::max(least_band, std::expm1(std::abs(std::log(sweep.control.ratio))));
    }
    std::vector<double> p_values;
    for (const PairedRatios& pairs : arms) {
        sweep.arms.push_back(compare(pairs, seed, resamples));
        if (pairs.ratios.size() > 1) {
            p_values.push_back(sweep.arms.back().p);
        }
    }
    const std::vector<double> adjusted = holm(p_values);
    const auto judge = [&](Comparison& comparison) {
        const double low = 1 / (1 + sweep.band), high = 1 + sweep.band;
        if (comparison.blocks < 2) {
            return;
        }
        if (comparison.adjusted_p < significance && comparison.ratio < low) {
            comparison.finding = Finding::lower;
        } else if (comparison.adjusted_p < significance && comparison.ratio > high) {
            comparison.finding = Finding::higher;
        } else if (comparison.interval.low >= low && comparison.interval.high <= high) {
            comparison.finding = Finding::no_difference;
        }
    };
    std::size_t next = 0;
    for (Comparison& comparison : sweep.arms) {
        if (comparison.blocks > 1) {
            comparison.adjusted_p = adjusted[next++];
        }
        judge(comparison);
    }
    judge(sweep.control);
    sweep.control_differs = sweep.control.blocks > 1 && sweep.control.p < significance &&
                            std::abs(std::log(sweep.control.ratio)) > std::log1p(least_band);
    return sweep;
}

// By resampling what is left of the ratios when each arm's median is taken out. The first step of Holm, the hardest
// one, has to find it.
double smallest_findable(const PairedRatios& control, std::span<const PairedRatios> arms, double band,
                         std::uint64_t seed) {
    std::vector<double> residuals;
    std::size_t blocks = std::numeric_limits<std::size_t>::max(), compared = 0;
    const auto add = [&](const PairedRatios& pairs) {
        std::vector<double> logs = logarithms(pairs.ratios);
        const double centre = median(logs);
        // Taking the median out narrows a sample; as for a variance.
        const double widen = std::sqrt(static_cast<double>(logs.size()) / static_cast<double>(logs.size() - 1));
        for (const double value : logs) {
            residuals.push_back((value - centre) * widen);
        }
    };
    if (control.ratios.size() > 1) {
        add(control);
        blocks = control.ratios.size();
    }
    for (const PairedRatios& pairs : arms) {
        if (pairs.ratios.size() > 1) {
            add(pairs);
            blocks = std::min(blocks, pairs.ratios.size());
            ++compared;
        }
    }
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (residuals.empty()) {
        return infinity;
    }
    const double wanted = significance / static_cast<double>(std::max<std::size_t>(compared, 1));
    constexpr std::size_t sweeps = 400;
    std::vector<std::vector<double>> noise(sweeps, std::vector<double>(blocks));
    base::Random random(seed, base::RandomPurpose::measurement, findable_stream, 0);
    for (auto& sweep : noise) {
        for (double& value : sweep) {
            value = residuals[random.below(residuals.size())];
        }
    }
    std::vector<double> shifted(blocks);
    const auto is_found = [&](double difference) {
        std::size_t found = 0;
        for (const auto& sweep : noise) {
            std::ranges::transform(sweep, shifted.begin(), [&](double value) { return value + difference; });
            found += signed_rank_p(shifted) < wanted && median(shifted) > std::log1p(band) ? 1 : 0;
        }
        return static_cast<double>(found) >= power * sweeps;
    };
    double low = 0, high = std::log(16.0);
    if (!is_found(high)) {
        return infinity;
    }
    for (int i = 0; i < 16; ++i) {
        const double middle = (low + high) / 2;
        (is_found(middle) ? high : low) = middle;
    }
    return std::expm1(high);
}

double trend_p(std::span<const double> values) {
    const auto n = static_cast<double>(values.size());
    if (values.size() < 4) {
        return 1;
    }
    double rises = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        for (std::size_t j = i + 1; j < values.size(); ++j) {
            rises += values[j] > values[i] ? 1 : values[j] < values[i] ? -1 : 0;
        }
    }
    std::vector<double> sorted(values.begin(), values.end());
    std::ranges::sort(sorted);
    double variance = n * (n - 1) * (2 * n + 5);
    for (std::size_t begin = 0; begin < sorted.size();) {
        const auto end =
            static_cast<std::size_t>(std::upper_bound(sorted.begin(), sorted.end(), sorted[begin]) - sorted.begin());
        const auto equal = static_cast<double>(end - begin);
        variance -= equal * (equal - 1) * (2 * equal + 5);
        begin = end;
    }
    variance /= 18;
    if (variance <= 0) {
        return 1;
    }
    const double z = rises == 0 ? 0 : (rises - (rises > 0 ? 1 : -1)) / std::sqrt(variance);
    return std::erfc(std::abs(z) / std::sqrt(2.0));
}

WarmUp find_warm_up(std::span<const double> step_seconds) {
    const std::size_t n = step_seconds.size();
    const std::size_t most = n / 2;
    if (n < 8) {
        return {.steps = std::min<std::size_t>(1, n > 1 ? 1 : 0), .still_drifts = false};
    }
    // What stands out is measured by the second half, which the warm-up doesn't reach.
    const auto steady = step_seconds.subspan(most);
    const double middle = median(steady);
    std::vector<double> deviations;
    for (const double value : steady) {
        deviations.push_back(std::abs(value - middle));
    }
    constexpr double normal_deviations = 1.4826;  // of a normal distribution's median absolute deviation
    const double limit = middle + 3 * normal_deviations * median(deviations);
    std::size_t cut = 1;  // the first step allocates
    while (cut < most && step_seconds[cut] > limit) {
        ++cut;
    }
    const std::size_t stride = std::max<std::size_t>(1, n / 20);
    while (cut < most && trend_p(step_seconds.subspan(cut)) < significance) {
        cut = std::min(most, cut + stride);
    }
    return {.steps = cut, .still_drifts = trend_p(step_seconds.subspan(cut)) < significance};
}

}  // namespace lockstep::bench
