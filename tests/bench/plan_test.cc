#include "bench/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "tests/base/scratch.h"
#include "trainer/recipe.h"

namespace lockstep::bench {
namespace {

class PlanTest : public testing::Test {
  protected:
    PlanTest() {
        base::write_whole(scratch_ / "recipe.toml",
                          "model = \"yolov10n\"\nimage_size = 64\nbatch = 8\n[data]\ntrain = \"somewhere\"\n");
    }
    std::string text(const std::string& more) const {
        return "title = \"t\"\nrecipe = \"" + (scratch_ / "recipe.toml").string() + "\"\n" + more;
    }
    Plan parse(const std::string& more) const { return parse_plan(text(more), "plan.toml"); }
    void expect_refused(const std::string& more, const std::vector<std::string>& parts) const {
        const std::string message = base::message_of<base::UsageError>([&] { parse(more); });
        for (const std::string& part : parts) {
            EXPECT_TRUE(base::contains(message, part)) << more;
        }
    }
    static std::vector<std::string> names(const std::vector<Arm>& arms) {
        std::vector<std::string> names;
        std::ranges::transform(arms, std::back_inserter(names), &Arm::name);
        return names;
    }

    base::ScratchDirectory scratch_;
};

using Names = std::vector<std::string>;

const std::string three_factors = R"(
[speed]
blocks = 10
[factors.amp]
precision = ["fp32", "bf16"]
[factors.ddp]
ranks = [1, 2]
[factors.accumulate]
accumulation = [1, 2, 4]
)";

TEST_F(PlanTest, ReadsFactorsOfEveryKind) {
    const Plan plan = parse(R"(
seed = 7
budget_minutes = 12.5
ranks = 2
[set]
image_size = 96
"env.OMP_NUM_THREADS" = 1
[speed]
[factors.zebra]
about = "keys that change together"
zero = [0, 2]
"optimizer.learning_rate" = [0.01, 0.02]
[factors.allocator]
"env.MALLOC_ARENA_MAX" = [1, "2"]
)");
    EXPECT_EQ(plan.seed, 7u);
    EXPECT_EQ(plan.budget_minutes, 12.5);
    ASSERT_EQ(plan.factors.size(), 2u);
    EXPECT_EQ(plan.factors[0].name, "zebra") << "factors keep the order in which they are written";
    EXPECT_EQ(plan.factors[0].about, "keys that change together");
    EXPECT_EQ(plan.factors[0].levels[1].settings.recipe.at("optimizer.zero_stage"), "2");
    EXPECT_EQ(plan.factors[0].levels[1].settings.recipe.at("optimizer.learning_rate"), "0.02");
    EXPECT_EQ(plan.factors[1].levels[1].settings.environment.at("MALLOC_ARENA_MAX"), "2");
    EXPECT_EQ(plan.measurements[0].blocks, default_blocks);
    const std::vector<Arm> arms = arms_of(plan);
    EXPECT_EQ(names(arms), (Names{"baseline", "again", "zebra", "allocator"}));
    EXPECT_TRUE(arms[1].is_control);
    EXPECT_EQ(arms[0].settings, arms[1].settings);
    EXPECT_EQ(ranks_of(arms[2]), 2);
    EXPECT_EQ(arms[3].settings.environment.at("OMP_NUM_THREADS"), "1");
    const std::string recipe = resolved_recipe(plan, plan.measurements[0], arms[2], 3);
    EXPECT_TRUE(base::contains(recipe, "zero_stage = 2"));
    EXPECT_TRUE(base::contains(recipe, "image_size = 96"));
    EXPECT_TRUE(base::contains(recipe, "max_steps = 40"));
}

TEST_F(PlanTest, DesignsMakeEachSetOfLevelsOnce) {
    EXPECT_EQ(names(arms_of(parse(three_factors))),
              (Names{"baseline", "again", "amp", "ddp", "accumulate=2", "accumulate=4"}));
    EXPECT_EQ(names(arms_of(parse("designs = [\"leave_one_out\"]" + three_factors))),
              (Names{"baseline", "again", "all", "all without amp", "all without ddp", "all without accumulate"}));
    EXPECT_EQ(names(arms_of(parse("designs = [\"waterfall\"]" + three_factors))),
              (Names{"baseline", "again", "amp", "amp + ddp", "all"}));
    EXPECT_EQ(arms_of(parse("designs = [\"grid\"]" + three_factors)).size(), 2u * 2 * 3 + 1);
    EXPECT_EQ(
        names(arms_of(parse("designs = [\"one_at_a_time\", \"waterfall\", \"leave_one_out\"]" + three_factors))).size(),
        4u + 2 + 2 + 2)
        << "amp alone is in two designs, all in two, all without accumulate is amp + ddp";
    const Plan named = parse("designs = [\"named\"]" + three_factors +
                             "[combinations]\nquick = [\"amp\", \"ddp\"]\nbig = [\"accumulate=2\"]\n");
    EXPECT_EQ(names(arms_of(named)), (Names{"baseline", "again", "quick", "big"}));
    EXPECT_EQ(arms_of(named)[3].settings.recipe.at("accumulate"), "2");
}

TEST_F(PlanTest, MeasurementsMayTakeSomeArms) {
    const Plan plan =
        parse(three_factors + "[accuracy]\narms = [\"amp\"]\nset = {epochs = 7, augmentation.closing_epochs = 2}\n");
    ASSERT_EQ(plan.measurements.size(), 2u);
    EXPECT_EQ(names(arms_of(plan, plan.measurements[0])).size(), 6u);
    EXPECT_EQ(names(arms_of(plan, plan.measurements[1])), (Names{"baseline", "again", "amp"}));
    const std::string recipe = resolved_recipe(plan, plan.measurements[1], arms_of(plan)[2], 3);
    EXPECT_TRUE(base::contains(recipe, "epochs = 7"));
    EXPECT_TRUE(base::contains(recipe, "seed = 3")) << "a block of trainings has its own seed";
}

TEST_F(PlanTest, OrderMirrorsEverySecondBlock) {
    const Plan plan = parse(three_factors);
    const auto order = launch_order(plan);
    const std::size_t arms = arms_of(plan).size();
    ASSERT_EQ(order.size(), arms * 10);
    bool changes = false;
    std::vector<double> place(arms, 0);
    for (std::size_t block = 0; block < 10; block += 2) {
        std::vector<std::size_t> first, second;
        for (std::size_t i = 0; i < arms; ++i) {
            first.push_back(order[block * arms + i].arm);
            second.push_back(order[(block + 1) * arms + i].arm);
            EXPECT_EQ(order[block * arms + i].block, static_cast<std::int64_t>(block + 1));
            place[first.back()] += static_cast<double>(i);
            place[second.back()] += static_cast<double>(i);
        }
        changes = changes || first != std::vector<std::size_t>{0, 1, 2, 3, 4, 5};
        std::ranges::reverse(second);
        EXPECT_EQ(first, second) << "block " << block + 2;
        std::ranges::sort(second);
        EXPECT_EQ(second, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5}));
    }
    EXPECT_TRUE(changes);
    for (const double sum : place) {
        EXPECT_EQ(sum, place[0]) << "each arm stands in the middle on average";
    }
    const auto again = launch_order(plan);
    EXPECT_TRUE(std::ranges::equal(order, again, [](const auto& a, const auto& b) { return a.arm == b.arm; }));
    const auto other = launch_order(parse("seed = 2\n" + three_factors));
    EXPECT_FALSE(std::ranges::equal(order, other, [](const auto& a, const auto& b) { return a.arm == b.arm; }));
}

TEST_F(PlanTest, RefusesWithPlaceAndSuggestion) {
    expect_refused("budget_minuts = 1\n[speed]\n",
                   {"plan.toml:3", "unknown key budget_minuts", "did you mean budget_minutes"});
    expect_refused("[speed]\nstep = 3\n", {"plan.toml:4", "unknown key speed.step", "did you mean steps"});
    expect_refused("[speed]\nblocks = \"x\"\n", {"speed.blocks must be a whole number"});
    expect_refused("[speed]\nblocks = 1\n", {"speed.blocks = 1 is out of bounds"});
    expect_refused("", {"nothing is measured", "[speed]"});
    expect_refused("designs = [\"gird\"]\n[speed]\n", {"unknown design gird", "did you mean grid"});
    expect_refused("[speed]\n[factors.a]\nprecison = [\"fp32\", \"bf16\"]\n",
                   {"plan.toml:5", "unknown factor key precison", "did you mean precision"});
    expect_refused("[speed]\n[factors.a]\nprecision = [\"fp32\", \"bf61\"]\n", {"arm a", "bf61", "bf16"});
    expect_refused("[speed]\n[factors.a]\nprecision = [\"fp32\"]\n", {"at least two levels"});
    expect_refused("[speed]\n[factors.a]\nzero = [0, 1]\nbatch = [8, 16, 32]\n", {"change together"});
    expect_refused("[speed]\n[factors.a]\nabout = \"nothing\"\n", {"factors.a switches nothing"});
    expect_refused("[speed]\n[factors.a]\nranks = [1, 0]\n", {"ranks must be 1 to 4096"});
    expect_refused("[speed]\n[factors.a]\nranks = [1, 16]\n", {"arm a", "smaller than the 16 ranks"});
    expect_refused(three_factors + "[combinations]\nx = [\"amq\"]\n", {"there is no factor amq", "did you mean amp"});
    expect_refused(three_factors + "[combinations]\nx = [\"accumulate=3\"]\n", {"no level 3"});
    expect_refused(three_factors + "[combinations]\nx = []\n", {"combinations.x is the baseline"});
    expect_refused("[speed]\narms = [\"amp\"]\n", {"speed.arms: there is no arm amp"});
    expect_refused("[speed\n", {"not valid TOML"});
}

TEST_F(PlanTest, ShortNameWithoutARecipeKeySaysSo) {
    expect_refused("[speed]\n[factors.q]\nquantisation = [\"none\", \"static8\"]\n",
                   {"quantisation stands for the recipe key quantisation", "doesn't have yet", "[missing]"});
    const Plan plan = parse("[speed]\n[missing]\nquantisation = \"no such inference yet\"\n");
    ASSERT_EQ(plan.missing.size(), 1u);
    EXPECT_EQ(plan.missing[0].reason, "no such inference yet");
    expect_refused("[speed]\n[missing]\nprecision = \"no\"\n", {"missing.precision", "make it a factor"});
    expect_refused("[speed]\n[missing]\nranks = \"no\"\n", {"missing.ranks", "make it a factor"});
}

TEST_F(PlanTest, ShortNamesOfTodaysKeysAreKeys) {
    std::size_t known = 0;
    for (const auto& field : trainer::describe(trainer::Recipe{})) {
        known += static_cast<std::size_t>(std::ranges::count(short_names(), field.key, &ShortName::key));
    }
    EXPECT_GE(known, 18u);
}

TEST_F(PlanTest, CombinationThatTheRecipeRefusesIsARowAndNotLaunched) {
    const Plan plan = parse(R"(
designs = ["waterfall"]
[speed]
[factors.wire]
wire = ["fp32", "bf16"]
[factors.ring]
algorithm = ["direct", "ring"]
)");
    const std::vector<Arm> arms = arms_of(plan);
    ASSERT_EQ(names(arms), (Names{"baseline", "again", "wire", "wire + ring"}));
    EXPECT_TRUE(base::contains(arms[3].impossible, "would round sums"));
    EXPECT_TRUE(std::ranges::none_of(launch_order(plan), [](const auto& launch) { return launch.arm == 3; }));
}

TEST_F(PlanTest, TooFewBlocksForTheArmsAreRefused) {
    // 2 / 2^n <= 0.05 / m, by hand.
    EXPECT_EQ(least_blocks(1), 6);   // 2/64 = 0.031
    EXPECT_EQ(least_blocks(3), 7);   // 2/128 = 0.0156 <= 0.0167
    EXPECT_EQ(least_blocks(4), 8);   // 2/256 = 0.0078 <= 0.0125
    EXPECT_EQ(least_blocks(10), 9);  // 2/512 = 0.0039 <= 0.005
    expect_refused("[speed]\nblocks = 5\n[factors.a]\nprecision = [\"fp32\", \"bf16\"]\n",
                   {"speed.blocks = 5", "give at least 6"});
}

TEST_F(PlanTest, OverriddenTopologyIsSimulated) {
    const Plan plan = parse("ranks = 2\n[speed]\n[factors.t]\ntopology = [\"auto\", \"2x1\"]\n");
    const auto arms = arms_of(plan);
    EXPECT_FALSE(simulates_nodes(arms[0]));
    EXPECT_TRUE(simulates_nodes(arms[2]));
}

TEST(ShippedPlans, AreSoundAndFitTheirBudget) {
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(LOCKSTEP_CHECKOUT);  // recipes are named from there
    std::size_t plans = 0;
    for (const auto& entry : std::filesystem::directory_iterator("bench/plans")) {
        if (entry.path().stem().string().ends_with("_recipe")) {
            continue;
        }
        ++plans;
        const std::string name = entry.path().filename().string();
        const Plan plan = parse_plan(base::read_text(entry.path()), name);
        EXPECT_FALSE(plan.about.empty()) << name;
        double seconds = 0;
        for (const PlannedLaunch& launch : launch_order(plan)) {
            EXPECT_GT(plan.measurements[launch.measurement].launch_seconds, 0) << name;
            seconds += plan.measurements[launch.measurement].launch_seconds;
        }
        if (plan.budget_minutes > 0) {
            EXPECT_LT(seconds, 60 * plan.budget_minutes) << name << " would not come to its end";
        }
        for (const Arm& arm : arms_of(plan)) {
            EXPECT_EQ(arm.impossible, "") << name << ", " << arm.name;
        }
    }
    EXPECT_EQ(plans, 7u);
    std::filesystem::current_path(before);
}

}  // namespace
}  // namespace lockstep::bench
