// The whole way from launches to findings: sweeps are drawn from launches that are all alike, so every finding is a
// false alarm, but for one that is planted. Once from noise that is made here, and once from a recording of real
// launches, where there is one (docs/bench.md says how it is made).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/file.h"
#include "base/random.h"
#include "bench/plan.h"
#include "bench/statistics.h"

namespace lockstep::bench {
namespace {

constexpr std::size_t sweeps = 1000;
constexpr std::size_t resamples = 20;  ///< intervals decide nothing here
constexpr std::size_t arms = 6;        ///< beside baseline and control

constexpr const char* made = "made";
constexpr const char* recorded = "recorded";

/// A machine with a drift, slow moods, launches that differ by 1%, and a few disturbed ones that went unnoticed.
std::vector<double> made_noise() {
    base::Random random(2, base::RandomPurpose::test, 0, 0);
    std::vector<double> seconds;
    double mood = 0;
    for (int i = 0; i < 400; ++i) {
        mood = 0.95 * mood + 0.005 * random.normal();
        const double disturbance = random.coin(0.02) ? random.uniform(0, 0.3) : 0;
        seconds.push_back(0.02 * std::exp(0.0002 * i + mood + 0.01 * random.normal() + disturbance));
    }
    return seconds;
}

class NoiseTest : public testing::TestWithParam<const char*> {
  protected:
    NoiseTest() {
        if (GetParam() == made) {
            seconds_ = made_noise();
        } else {
            const auto recording = nlohmann::json::parse(base::read_text(RECORDED_NOISE));
            seconds_ = recording["seconds_per_image"].get<std::vector<double>>();
        }
    }

    struct Drawn {
        PairedRatios control;
        std::vector<PairedRatios> arms{bench::arms};
    };

    /// A block is a stretch of the recording, so that what drifts or lasts stays as it was; its launches are dealt to
    /// the arms in random order, as the runner does.
    Drawn draw(std::uint64_t sweep, std::int64_t blocks) const {
        base::Random random(1, base::RandomPurpose::test, 0, sweep);
        Drawn drawn;
        std::vector<std::size_t> turn(arms + 2);
        std::iota(turn.begin(), turn.end(), std::size_t{0});
        for (std::int64_t block = 0; block < blocks; ++block) {
            if (block % 2 == 0) {
                for (std::size_t i = turn.size(); i > 1; --i) {
                    std::swap(turn[i - 1], turn[random.below(i)]);
                }
            } else {
                std::ranges::reverse(turn);
            }
            const std::size_t begin = random.below(seconds_.size() - turn.size() + 1);
            std::vector<double> of_arm(turn.size());
            for (std::size_t i = 0; i < turn.size(); ++i) {
                of_arm[turn[i]] = seconds_[begin + i];
            }
            drawn.control.ratios.push_back(of_arm[1] / of_arm[0]);
            for (std::size_t arm = 0; arm < arms; ++arm) {
                drawn.arms[arm].ratios.push_back(of_arm[arm + 2] / of_arm[0]);
            }
        }
        return drawn;
    }

    std::vector<double> seconds_;
};

bool is_alarm(const Comparison& comparison) {
    return comparison.finding == Finding::lower || comparison.finding == Finding::higher;
}

TEST_P(NoiseTest, RecordingIsLongEnough) {
    ASSERT_GE(seconds_.size(), 40u);
    const double middle = median(seconds_);
    std::vector<double> off;
    for (const double value : seconds_) {
        off.push_back(std::abs(value / middle - 1));
    }
    std::printf("%zu launches, median %.4f s an image, median deviation %.2f%%\n", seconds_.size(), middle,
                100 * median(off));
}

TEST_P(NoiseTest, AtMostSixOfAHundredSweepsRaiseAFalseAlarm) {
    std::size_t alarms = 0;
    for (std::uint64_t sweep = 0; sweep < sweeps; ++sweep) {
        const Drawn drawn = draw(sweep, default_blocks);
        const auto result = compare_sweep(drawn.control, drawn.arms, sweep, resamples);
        alarms += std::ranges::any_of(result.arms, is_alarm) ? 1 : 0;
    }
    std::printf("%zu of %zu sweeps with a false alarm\n", alarms, sweeps);
    EXPECT_LE(alarms, 60u) << "of " << sweeps << " sweeps of " << arms << " arms and " << default_blocks << " blocks";
}

TEST_P(NoiseTest, APlantedSlowdownOfThreePercentIsFound) {
    std::size_t found = 0;
    for (std::uint64_t sweep = 0; sweep < sweeps; ++sweep) {
        Drawn drawn = draw(sweeps + sweep, default_blocks);
        for (double& ratio : drawn.arms[0].ratios) {
            ratio *= 1.03;
        }
        const auto result = compare_sweep(drawn.control, drawn.arms, sweep, resamples);
        found += result.arms[0].finding == Finding::higher ? 1 : 0;
    }
    std::printf("found in %zu of %zu sweeps\n", found, sweeps);
    EXPECT_GE(found, 800u) << "of " << sweeps << " sweeps of " << default_blocks << " blocks";
}

INSTANTIATE_TEST_SUITE_P(Noise, NoiseTest,
                         testing::ValuesIn(std::filesystem::exists(RECORDED_NOISE)
                                               ? std::vector<const char*>{made, recorded}
                                               : std::vector<const char*>{made}),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lockstep::bench
