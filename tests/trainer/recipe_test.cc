#include "trainer/recipe.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"

namespace lockstep::trainer {
namespace {

const std::string minimal = "model = \"yolov10n\"\n[data]\ntrain = \"somewhere\"\n";

std::string refusal(const std::string& toml, std::vector<Override> overrides = {}) {
    try {
        parse_recipe(toml, "test.toml", overrides);
    } catch (const base::UsageError& error) {
        return error.what();
    }
    return "accepted";
}

void expect_refused(const std::string& toml, std::vector<std::string> fragments, std::vector<Override> overrides = {}) {
    const std::string message = refusal(toml, std::move(overrides));
    for (const auto& fragment : fragments) {
        EXPECT_NE(message.find(fragment), std::string::npos) << "message: " << message << "\nshould hold: " << fragment;
    }
}

TEST(Recipe, MinimalRecipeTakesTheReferenceDefaults) {
    const Recipe recipe = parse_recipe(minimal, "test.toml");
    EXPECT_EQ(recipe.model, "yolov10n");
    EXPECT_EQ(recipe.batch, 64);
    EXPECT_EQ(recipe.optimizer.momentum, 0.937);
    EXPECT_EQ(recipe.schedule.final_fraction, 0.01);
    EXPECT_EQ(recipe.clip_norm, 10);
}

TEST(Recipe, ResolvedTomlReadsBackEqual) {
    Recipe recipe =
        parse_recipe(minimal + "[optimizer]\nlearning_rate = 0.1\nmomentum = 0.30000000000000004\n", "test.toml");
    recipe.data.validation = "with \"quotes\" and \\ in it";
    const Recipe again = parse_recipe(to_toml(recipe), "resolved.toml");
    EXPECT_EQ(to_toml(again), to_toml(recipe));
    EXPECT_EQ(again.data.validation, recipe.data.validation);
    EXPECT_EQ(again.optimizer.momentum, recipe.optimizer.momentum);
    EXPECT_EQ(training_hash(again), training_hash(recipe));
}

TEST(Recipe, UnknownKeyNamesLineAndNearestKey) {
    expect_refused(minimal + "[optimizer]\nlearning_rat = 0.1\n",
                   {"test.toml:5", "optimizer.learning_rat", "optimizer.learning_rate"});
    expect_refused("modle = \"yolov10n\"\n" + minimal, {"test.toml:1", "did you mean model"});
}

TEST(Recipe, WrongTypeNamesKeyAndTypes) {
    expect_refused("batch = \"eight\"\n" + minimal, {"test.toml:1", "batch", "whole number", "eight"});
    expect_refused("batch = 8.5\n" + minimal, {"batch", "whole number"});
    expect_refused("seed = true\n" + minimal, {"seed", "whole number"});
    expect_refused(minimal + "[ema]\nenabled = 1\n", {"ema.enabled", "true or false"});
}

TEST(Recipe, WholeNumbersAreFineWhereNumbersAreAsked) {
    EXPECT_EQ(parse_recipe("clip_norm = 5\n" + minimal, "test.toml").clip_norm, 5.0);
}

TEST(Recipe, OutOfBoundsNamesBounds) {
    for (const char* value : {"0", "-8"}) {
        expect_refused("batch = " + std::string(value) + "\n" + minimal, {"batch", value, "allowed: 1"});
        expect_refused("image_size = " + std::string(value) + "\n" + minimal, {"image_size", value});
    }
    expect_refused("clip_norm = nan\n" + minimal, {"clip_norm"});
    expect_refused("clip_norm = inf\n" + minimal, {"clip_norm"});
    expect_refused(minimal + "[augmentation]\nmosaic = 1.5\n", {"augmentation.mosaic", "0 to 1"});
}

TEST(Recipe, UnknownChoiceSuggestsTheNearest) {
    expect_refused("precision = \"fp23\"\n" + minimal, {"precision", "fp23", "fp32"});
    expect_refused("model = \"yolo10n\"\n[data]\ntrain = \"x\"\n", {"did you mean \"yolov10n\""});
}

TEST(Recipe, ContradictionsAreRefused) {
    expect_refused("image_size = 300\n" + minimal, {"image_size", "32", "320"});
    expect_refused("batch = 10\naccumulate = 4\n" + minimal, {"batch", "accumulate"});
    expect_refused("model = \"resnet18\"\n[data]\ntrain = \"x\"\n", {"augmentation.mosaic", "boxes"});
    expect_refused("small_images = true\n" + minimal, {"small_images"});
    for (const char* key : {"box_gain", "classification_gain", "distribution_gain", "one_to_one_alpha"}) {
        const std::string classifier = "model = \"resnet18\"\n[data]\ntrain = \"x\"\n[augmentation]\nmosaic = 0\n";
        expect_refused(base::str(key, " = 2\n", classifier), {key, "is for detectors"});
        expect_refused(base::str(key, " = -1\n", minimal), {key});
    }
    expect_refused("label_smoothing = 0.1\n" + minimal, {"label_smoothing"});
    expect_refused(minimal + "[ema]\nenabled = false\n", {"evaluation.weights", "live"});
    expect_refused("epochs = 3\n" + minimal + "[augmentation]\nclosing_epochs = 0\n", {"warmup_epochs"});
}

TEST(Recipe, MissingModelOrDataIsRefused) {
    expect_refused("[data]\ntrain = \"x\"\n", {"model"});
    expect_refused("model = \"yolov10n\"\n", {"data.train", "lockstep import"});
    expect_refused("model = [unclosed\n", {"test.toml:", "TOML"});
}

TEST(Recipe, BatchSmallerThanRanksIsRefused) {
    const Recipe recipe = parse_recipe("batch = 4\naccumulate = 2\n" + minimal, "test.toml");
    EXPECT_NO_THROW(check_recipe(recipe, 2));
    EXPECT_THROW(check_recipe(recipe, 3), base::UsageError);
}

TEST(Recipe, OverridesAreTypedAndChecked) {
    const std::vector<Override> overrides = {parse_override("batch=8"), parse_override("precision = bf16"),
                                             parse_override("optimizer.learning_rate=1e-3")};
    const Recipe recipe = parse_recipe(minimal, "test.toml", overrides);
    EXPECT_EQ(recipe.batch, 8);
    EXPECT_EQ(recipe.precision, "bf16");
    EXPECT_EQ(recipe.optimizer.learning_rate, 1e-3);
    expect_refused(minimal, {"--set", "bacth", "batch"}, {parse_override("bacth=8")});
    EXPECT_THROW(parse_override("batch"), base::UsageError);
    EXPECT_THROW(parse_override("=8"), base::UsageError);
}

TEST(Recipe, TrainingHashFollowsWhatIsLearnedOnly) {
    const Recipe recipe = parse_recipe(minimal, "test.toml");
    Recipe moved = recipe;
    moved.data.train = "elsewhere";
    moved.data.threads = 7;
    EXPECT_EQ(training_hash(moved), training_hash(recipe));
    Recipe other = recipe;
    other.optimizer.weight_decay = 1e-4;
    EXPECT_NE(training_hash(other), training_hash(recipe));
}

TEST(Recipe, EveryFieldIsDescribed) {
    for (const auto& field : describe(parse_recipe(minimal, "test.toml"))) {
        EXPECT_FALSE(field.meaning.empty()) << field.key;
        EXPECT_FALSE(field.allowed.empty()) << field.key;
    }
}

TEST(Recipe, ClosingAllEpochsIsRefused) {
    expect_refused("epochs = 8\n" + minimal, {"augmentation.closing_epochs = 10", "8 epochs"});
    EXPECT_EQ(refusal("epochs = 8\n" + minimal + "[augmentation]\nmosaic = 0\n"), "accepted");
    EXPECT_EQ(refusal("epochs = 8\n" + minimal + "[augmentation]\nenabled = false\n"), "accepted");
}

TEST(Recipe, WhatCannotActIsRefused) {
    expect_refused(minimal + "[optimizer]\nbeta2 = 0.99\n", {"optimizer.beta2 = 0.99", "adamw"});
    expect_refused(minimal + "[optimizer]\nreference_batch = 256\n",
                   {"optimizer.reference_batch", "learning_rate_rule"});
    expect_refused(minimal + "[optimizer]\nname = \"adamw\"\n[schedule]\nwarmup_momentum = 0.5\n",
                   {"schedule.warmup_momentum", "sgd"});
    expect_refused(minimal + "[schedule]\nstep_epochs = 5\n", {"schedule.step_epochs", "step"});
    expect_refused(minimal + "[schedule]\nname = \"step\"\nfinal_fraction = 0.5\n", {"schedule.final_fraction"});
    expect_refused(minimal + "[schedule]\npeak_fraction = 0.5\n", {"schedule.peak_fraction", "one_cycle"});
    EXPECT_EQ(refusal(minimal + "[optimizer]\nbeta2 = 0.999\n"), "accepted") << "the default, as in a resolved recipe";
}

std::string expected_page() {
    std::string page =
        "# Recipe keys\n\nA recipe is a TOML file; `--set key=value` on the command line goes over it. Unknown keys, "
        "wrong "
        "types and impossible values are\nrefused with the key, the line and what is allowed; so are values that can't "
        "act, such as a `step_factor` for a cosine. Every run\nwrites all keys with their values to "
        "`recipe.resolved.toml`. This page is checked against the declaration in `trainer/recipe.cc`.\n";
    std::string section = "none";
    for (const auto& field : describe(Recipe{})) {
        const auto dot = field.key.find('.');
        const std::string own_section = dot == std::string::npos ? "" : field.key.substr(0, dot);
        if (own_section != section) {
            section = own_section;
            page += base::str("\n## ", section.empty() ? "Top level" : "[" + section + "]",
                              "\n\n| key | default | allowed | meaning |\n| --- | --- | --- | --- |\n");
        }
        page += base::str("| `", field.key, "` | `", field.value, "` | ", field.allowed, " | ", field.meaning, " |\n");
    }
    return page;
}

TEST(Recipe, ScalingThatCanNotBeIsRefused) {
    const auto with = [](const std::string& scaling, const std::string& more = "") {
        return minimal + more + "[scaling]\n" + scaling + "\n[augmentation]\nquarter_turns = 0.5\n";
    };
    EXPECT_EQ(refusal(with("rule = \"squares\"\nshort_side = 320\nlong_side = 640")), "accepted");
    expect_refused(with("rule = \"published\""), {"augmentation.quarter_turns = 0.5", "squares"});
    expect_refused(with("short_side = 320"), {"scaling.short_side = 320", "scaling.rule"});
    expect_refused(with("pixel_budget = 8.0"), {"scaling.pixel_budget = 8.0", "scaling.rule"});
    expect_refused(with("rule = \"squares\"\nmultiple = 48"), {"scaling.multiple = 48", "32"});
    expect_refused(with("rule = \"squares\"\nlong_side = 1270"), {"scaling.long_side = 1270", "1280"});
    expect_refused(with("rule = \"squares\"\nlong_side = 320"),
                   {"scaling.short_side = 640", "scaling.long_side = 320"});
    expect_refused(with("rule = \"squares\"\nlong_side = 640"), {"one side only", "fixed"});
    expect_refused(with("rule = \"squares\"", "disk_cache = \"cache\"\n"), {"data.disk_cache", "scaling.rule"});
    expect_refused(with("rule = \"squares\"", "cache_mib = 100\n"), {"data.cache_mib = 100", "scaling.rule"});
    EXPECT_EQ(refusal(with("rule = \"squares\"", "cache_mib = 0\n")), "accepted");
    expect_refused(
        "model = \"resnet18\"\n[data]\ntrain = \"x\"\n[scaling]\nrule = \"squares\"\n[augmentation]\nmosaic = 0\n",
        {"scaling.rule", "detectors"});
}

TEST(RecipePage, SaysWhatTheDeclarationSays) {
    const std::string expected = expected_page();
    const std::string page = base::read_text(std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "docs/recipe.md");
    if (page != expected) {
        const auto path = std::filesystem::path(testing::TempDir()) / "recipe.md";
        base::write_whole(path, expected);
        ADD_FAILURE() << "docs/recipe.md should be " << path;
    }
}

}  // namespace
}  // namespace lockstep::trainer
