#include "trainer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace lockstep::trainer {
namespace {

Recipe recipe_of(const std::string& schedule) {
    Recipe recipe;
    recipe.epochs = 10;
    recipe.optimizer.learning_rate = 0.1;
    recipe.schedule.name = schedule;
    recipe.schedule.final_fraction = 0.05;
    recipe.schedule.warmup_epochs = 0;
    return recipe;
}

TEST(Schedule, CosineFallsFromPeakToFloor) {
    const Schedule schedule(recipe_of("cosine"), 100);
    EXPECT_EQ(schedule.total_steps(), 1000u);
    EXPECT_DOUBLE_EQ(schedule.at(0).learning_rate, 0.1);
    EXPECT_DOUBLE_EQ(schedule.at(999).learning_rate, 0.005);
    const double expected = 0.1 * (0.05 + 0.95 * (1 + std::cos(std::numbers::pi * 300 / 999)) / 2);
    EXPECT_NEAR(schedule.at(300).learning_rate, expected, 1e-12);
}

TEST(Schedule, ARuleTakesTheImagesOfAnAverageStepWhereTheyAreGiven) {
    Recipe recipe = recipe_of("constant");
    recipe.batch = 128;
    recipe.optimizer.reference_batch = 64;
    recipe.optimizer.learning_rate_rule = "linear";
    EXPECT_DOUBLE_EQ(Schedule(recipe, 100).peak_rate(), 0.2);
    EXPECT_DOUBLE_EQ(Schedule(recipe, 100, 16.0).peak_rate(), 0.025);
}

TEST(Schedule, LinearFallsEvenly) {
    const Schedule schedule(recipe_of("linear"), 100);
    EXPECT_DOUBLE_EQ(schedule.at(0).learning_rate, 0.1);
    EXPECT_NEAR(schedule.at(333).learning_rate, 0.1 * (1 - 0.95 / 3), 1e-12);
    EXPECT_NEAR(schedule.at(999).learning_rate, 0.005, 1e-12);
    EXPECT_NEAR(schedule.at(5000).learning_rate, 0.005, 1e-12) << "past the end the floor holds";
}

TEST(Schedule, StepMultipliesAtItsEpochs) {
    Recipe recipe = recipe_of("step");
    recipe.schedule.step_epochs = 3;
    recipe.schedule.step_factor = 0.1;
    const Schedule schedule(recipe, 10);
    EXPECT_DOUBLE_EQ(schedule.at(29).learning_rate, 0.1);
    EXPECT_NEAR(schedule.at(30).learning_rate, 0.01, 1e-15);
    EXPECT_NEAR(schedule.at(99).learning_rate, 1e-4, 1e-15);
}

TEST(Schedule, OneCycleRisesThenFalls) {
    Recipe recipe = recipe_of("one_cycle");
    recipe.schedule.peak_fraction = 0.25;
    const Schedule schedule(recipe, 100);
    EXPECT_NEAR(schedule.at(0).learning_rate, 0.1 / 25, 1e-12);
    double peak = 0;
    for (std::uint64_t step = 0; step < 1000; ++step) {
        peak = std::max(peak, schedule.at(step).learning_rate);
    }
    EXPECT_NEAR(peak, 0.1, 1e-5);
    EXPECT_NEAR(schedule.at(999).learning_rate, 0.005, 1e-12);
}

TEST(Schedule, WarmupRaisesRatesAndMomentum) {
    Recipe recipe = recipe_of("constant");
    recipe.schedule.warmup_epochs = 2;
    recipe.schedule.warmup_bias_rate = 0.5;
    recipe.schedule.warmup_momentum = 0.8;
    recipe.optimizer.momentum = 0.9;
    const Schedule schedule(recipe, 10);
    EXPECT_EQ(schedule.warmup_steps(), 20u);
    const StepRates first = schedule.at(0);
    EXPECT_NEAR(first.learning_rate, 0.1 / 21, 1e-12);
    EXPECT_NEAR(first.bias_learning_rate, 0.5 + (0.1 - 0.5) / 21, 1e-12);
    EXPECT_NEAR(first.momentum, 0.8 + 0.1 / 21, 1e-12);
    const StepRates after = schedule.at(20);
    EXPECT_DOUBLE_EQ(after.learning_rate, 0.1);
    EXPECT_DOUBLE_EQ(after.bias_learning_rate, 0.1);
    EXPECT_DOUBLE_EQ(after.momentum, 0.9);
    recipe.optimizer.name = "adamw";
    EXPECT_DOUBLE_EQ(Schedule(recipe, 10).at(0).momentum, 0.9)
        << "beta1 stays, its bias correction takes it as constant";
}

TEST(Schedule, RateRulesScaleThePeak) {
    Recipe recipe = recipe_of("constant");
    recipe.batch = 256;
    recipe.optimizer.reference_batch = 64;
    EXPECT_DOUBLE_EQ(Schedule(recipe, 10).peak_rate(), 0.1);
    recipe.optimizer.learning_rate_rule = "linear";
    EXPECT_DOUBLE_EQ(Schedule(recipe, 10).peak_rate(), 0.4);
    recipe.optimizer.learning_rate_rule = "sqrt";
    EXPECT_DOUBLE_EQ(Schedule(recipe, 10).peak_rate(), 0.2);
}

}  // namespace
}  // namespace lockstep::trainer
