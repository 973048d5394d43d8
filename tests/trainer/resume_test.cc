// Promise 3: the continued run is bitwise the uninterrupted one.

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hdf5.h"
#include "comm/mpi.h"
#include "sharding/epoch_order.h"
#include "tests/comm/mpi_test_main.h"
#include "tests/trainer/small_training.h"
#include "trainer/checkpoint_writer.h"
#include "trainer/run_directory.h"
#include "trainer/trainer.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;

class ResumeTest : public tests::SmallTraining {
  protected:
    Outcome train(const Recipe& recipe, const std::string& name, bool may_start_over = false) {
        const tests::JobRanks ranks(recipe.communication.topology);
        const auto checkpoint = newest_checkpoint(root_ / name);
        world_->barrier("checkpoint found");
        Trainer trainer(recipe, {root_ / name, checkpoint, may_start_over}, ranks.communicators(),
                        ranks.job.machines());
        const Outcome outcome = trainer.run();
        world_->barrier("trained");
        return outcome;
    }

    void expect_same_state(const std::string& one, const std::string& other) const {
        const auto a = load_checkpoint(*newest_checkpoint(root_ / one));
        const auto b = load_checkpoint(*newest_checkpoint(root_ / other));
        EXPECT_EQ(a.progress, b.progress);
        EXPECT_EQ(a.ledger_count, b.ledger_count);
        EXPECT_EQ(a.ledger_hash, b.ledger_hash);
        ASSERT_EQ(a.tensors.size(), b.tensors.size());
        for (const auto& [name, tensor] : a.tensors) {
            EXPECT_TRUE(at::equal(tensor, b.tensors.at(name))) << name << " differs";
        }
    }

    void expect_same_metrics(const std::string& one, const std::string& other) const {
        const auto a = read_metrics(root_ / one), b = read_metrics(root_ / other);
        ASSERT_EQ(a.size(), b.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
            for (const char* key : {"kind", "epoch", "step", "loss", "accuracy"}) {
                EXPECT_EQ(a[i].value(key, nlohmann::json()), b[i].value(key, nlohmann::json()))
                    << key << " of line " << i + 1;
            }
        }
    }

    std::vector<nlohmann::json> steps_of(const std::string& name) const {
        std::vector<nlohmann::json> steps;
        for (const auto& line : read_metrics(root_ / name)) {
            if (line["kind"] == "step") {
                steps.push_back(line);
            }
        }
        return steps;
    }

    /// The same samples in batches of the same shapes, and losses within this part of each other.
    void expect_same_steps(const std::string& one, const std::string& other, double tolerance) const {
        const auto a = steps_of(one), b = steps_of(other);
        ASSERT_EQ(a.size(), b.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
            for (const char* key : {"epoch", "step", "images", "width", "height"}) {
                EXPECT_EQ(a[i][key], b[i][key]) << key << " of step " << i + 1;
            }
            const double loss = a[i]["loss"];
            EXPECT_NEAR(b[i]["loss"].get<double>(), loss, tolerance * loss) << "step " << i + 1;
        }
    }

    /// Ten steps straight against five, a stop, five more.
    void expect_exact_resume(Recipe recipe) {
        recipe.max_steps = 10;
        train(recipe, "straight");
        recipe.max_steps = 5;
        train(recipe, "broken");
        recipe.max_steps = 10;
        train(recipe, "broken");
        expect_same_state("straight", "broken");
        if (is_first()) {
            expect_same_metrics("straight", "broken");
        }
        world_->barrier("compared");
    }
};

TEST_F(ResumeTest, DetectorWithEverythingOn) {
    Recipe recipe = tests::small_detection_recipe(root_ / "boxes");
    recipe.accumulate = 2;
    expect_exact_resume(recipe);
}

TEST_F(ResumeTest, DetectorInShapesOfTheirOwn) {
    for (const auto& [rule, has_pixel_budget] : {std::pair("published", true), {"squares", false}}) {
        Recipe recipe = tests::small_scaling_recipe(root_ / "mixed", rule, has_pixel_budget);
        const std::string name = std::string(rule) + "-";
        recipe.max_steps = 6;
        train(recipe, name + "straight");
        recipe.max_steps = 3;
        train(recipe, name + "broken");
        recipe.max_steps = 6;
        train(recipe, name + "broken");
        expect_same_state(name + "straight", name + "broken");
        if (is_first()) {
            expect_same_steps(name + "straight", name + "broken", 0);
        }
        world_->barrier("compared");
    }
}

/// All ranks begin, one goes on alone to the end of the epoch, whose ledger it then has to answer for.
TEST_F(ResumeTest, AnotherNumberOfRanksGoesOnWithTheSameBatches) {
    if (world_->size() == 1) {
        GTEST_SKIP() << "one rank after one rank: DetectorInShapesOfTheirOwn";
    }
    for (const char* rule : {"published", "squares"}) {
        Recipe recipe = tests::small_scaling_recipe(root_ / "mixed", rule, true);
        recipe.precision = "fp64";
        recipe.batch_norm = "frozen";
        recipe.epochs = 1;
        recipe.schedule.warmup_epochs = 0;
        recipe.augmentation.closing_epochs = 0;
        const std::string straight = std::string(rule) + "-straight", broken = std::string(rule) + "-broken";
        train(recipe, straight);
        recipe.max_steps = 3;
        train(recipe, broken);
        recipe.max_steps = 0;
        if (is_first()) {
            tests::train_alone(recipe, root_ / broken, /*resume=*/true);
            expect_same_steps(straight, broken, 1e-6);
        }
        world_->barrier("compared");
    }
}

TEST_F(ResumeTest, ClassifierWithAdamW) {
    Recipe recipe = tests::small_classification_recipe(root_ / "labels");
    recipe.optimizer.name = "adamw";
    recipe.optimizer.learning_rate = 0.001;
    expect_exact_resume(recipe);
}

/// Without clipping, whose norm is summed in another order, no bit tells what was cut.
TEST_F(ResumeTest, ShardsOfOneStageGoOnAtAnother) {
    Recipe recipe = tests::small_classification_recipe(root_ / "labels");
    recipe.optimizer.name = "adamw";
    recipe.optimizer.learning_rate = 0.001;
    recipe.clip_norm = 0;
    recipe.max_steps = 6;
    train(recipe, "straight");
    for (const auto& [stage, steps] : {std::pair(1, 1), {3, 2}, {2, 4}, {3, 5}, {0, 6}}) {
        recipe.optimizer.zero_stage = stage;
        recipe.max_steps = steps;
        train(recipe, "cut");
        std::size_t files = 0;
        for (const fs::directory_entry& entry : fs::directory_iterator(*newest_checkpoint(root_ / "cut"))) {
            files += entry.path().extension() == ".h5" ? 1 : 0;
        }
        EXPECT_EQ(files, stage == 0 ? 1U : static_cast<std::size_t>(world_->size())) << "stage " << stage;
        world_->barrier("files counted");
    }
    expect_same_state("straight", "cut");
}

/// One rank alone gets the signal, once its first step is logged.
TEST_F(ResumeTest, SignalStopsAtACheckpointOnAllRanks) {
    Recipe recipe = tests::small_classification_recipe(root_ / "labels");
    train(recipe, "straight");
    for (const int signal : {SIGTERM, SIGUSR1}) {
        const std::string name = "stopped-" + std::to_string(signal);
        std::jthread sender;
        if (is_first()) {
            sender = std::jthread([path = root_ / name / "metrics.jsonl", signal](const std::stop_token& given_up) {
                std::error_code ignored;
                while (fs::file_size(path, ignored) == 0 || ignored) {
                    if (given_up.stop_requested()) {
                        return;
                    }
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                }
                kill(getpid(), signal);
            });
        }
        EXPECT_EQ(train(recipe, name), Outcome::stopped_at_checkpoint);
        EXPECT_EQ(train(recipe, name), Outcome::finished);
        expect_same_state("straight", name);
        world_->barrier("compared");
    }
}

/// What a signal leaves that arrives during the last step of an epoch: the step is done, the epoch not yet closed.
TEST_F(ResumeTest, StopBehindTheLastStepOfAnEpoch) {
    Recipe recipe = tests::small_classification_recipe(root_ / "labels");
    recipe.data.validation = recipe.data.train;
    train(recipe, "straight");
    recipe.max_steps = 3;
    train(recipe, "broken");
    if (is_first()) {
        const fs::path run = root_ / "broken";
        auto content = load_checkpoint(*newest_checkpoint(run));
        ASSERT_EQ(content.progress.epoch, 1);
        ASSERT_EQ(content.progress.step_in_epoch, 0);
        ASSERT_EQ(content.progress.optimizer_steps, 3);
        content.progress = {.optimizer_steps = 3};  // nothing is evaluated yet
        std::string steps;
        for (const auto& line : read_metrics(run)) {
            if (line["kind"] == "step") {
                content.progress.epoch_loss += line["loss"].get<double>();
                steps += line.dump() + "\n";
            }
        }
        content.progress.step_in_epoch = 3;
        const auto whole = sharding::Ledger::whole(17);
        content.ledger_count = whole.count, content.ledger_hash = whole.hash;
        fs::remove_all(run / "checkpoints");
        fs::remove(run / "summary.json");
        base::write_whole(run / "metrics.jsonl", steps);
        save_checkpoint(run, content, 1);
    }
    world_->barrier("checkpoint moved back");
    recipe.max_steps = 0;
    EXPECT_EQ(train(recipe, "broken"), Outcome::finished);
    expect_same_state("straight", "broken");
    if (is_first()) {
        expect_same_metrics("straight", "broken");
    }
    world_->barrier("compared");
}

/// The ledger is what finds samples that a training loses or repeats. A checkpoint that says another place than where
/// the run stood makes it do just that.
TEST_F(ResumeTest, LostRepeatedAndReplacedSamplesStopTheRunAtTheEndOfTheEpoch) {
    Recipe recipe = tests::small_classification_recipe(root_ / "labels");
    struct Case {
        const char* name;
        std::uint64_t step_in_epoch;
        std::uint64_t hash_changed_by;
        const char* message;
    };
    for (const Case& wrong : {Case{"lost", 2, 0, "the ledger of samples is wrong: 9 samples seen of 17;"},
                              Case{"repeated", 0, 0, "the ledger of samples is wrong: 25 samples seen of 17;"},
                              Case{"replaced", 1, 1, "17 samples seen of 17, but not each of them once"}}) {
        recipe.max_steps = 1;
        train(recipe, wrong.name);
        if (is_first()) {
            const fs::path run = root_ / wrong.name;
            auto content = load_checkpoint(*newest_checkpoint(run));
            ASSERT_EQ(content.progress.step_in_epoch, 1u);
            ASSERT_EQ(content.ledger_count, 8u);
            content.progress.step_in_epoch = wrong.step_in_epoch;
            content.ledger_hash += wrong.hash_changed_by;
            fs::remove_all(run / "checkpoints");
            fs::remove(run / "summary.json");
            save_checkpoint(run, content, 1);
        }
        world_->barrier("checkpoint changed");
        recipe.max_steps = 0;
        std::string message;
        try {
            train(recipe, wrong.name);
        } catch (const base::Error& error) {
            message = error.what();
        }
        EXPECT_NE(message.find(wrong.message), std::string::npos) << wrong.name << ": " << message;
        world_->barrier("refused");
    }
}

TEST_F(ResumeTest, ABadSampleIsSkippedCountedAndInTheLedger) {
    Recipe recipe = tests::small_classification_recipe(root_ / "labels");
    recipe.epochs = 2;
    recipe.batch = 6;  // no batch of one, which would be empty
    recipe.augmentation.closing_epochs = 0;
    if (is_first()) {
        const fs::path shard = root_ / "labels" / "shard-00000.h5";
        const std::uint64_t third = base::Hdf5File::open_read_only(shard).extent("pool").file_offset + 3 * 28 * 28 * 3;
        std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(static_cast<std::streamoff>(third));
        const int byte = file.get();
        file.seekp(static_cast<std::streamoff>(third));
        file.put(static_cast<char>(byte ^ 1));
    }
    world_->barrier("damaged");
    if (world_->size() == 1) {  // of several ranks one would stop, and the others wait for their timeout
        try {
            train(recipe, "refused");
            ADD_FAILURE() << "the damaged sample was not noticed";
        } catch (const base::Error& error) {
            EXPECT_NE(std::string(error.what()).find("sample 3 (brightness-3"), std::string::npos) << error.what();
        }
    }
    recipe.data.on_bad_sample = "skip";
    EXPECT_EQ(train(recipe, "skipped"), Outcome::finished);
    if (is_first()) {
        std::map<int, int> images;
        int epochs = 0;
        for (const auto& line : read_metrics(root_ / "skipped")) {
            if (line["kind"] == "step") {
                images[line["epoch"]] += line["images"].get<int>();
            } else if (line["kind"] == "epoch") {
                EXPECT_EQ(line.value("skipped_samples", 0), 1) << line.dump();
                ++epochs;
            }
        }
        EXPECT_EQ(epochs, 2);
        EXPECT_EQ(images, (std::map<int, int>{{1, 16}, {2, 16}}));
    }
    world_->barrier("compared");
}

TEST_F(ResumeTest, ADiskCacheChangesNoBit) {
    Recipe recipe = tests::small_detection_recipe(root_ / "boxes");
    recipe.max_steps = 4;  // one behind the first epoch
    train(recipe, "decoded");
    recipe.data.disk_cache = root_ / "cache";
    train(recipe, "cached");
    expect_same_state("decoded", "cached");
    if (is_first()) {
        expect_same_metrics("decoded", "cached");
        int epochs = 0;
        for (const auto& line : read_metrics(root_ / "cached")) {
            if (line["kind"] == "epoch") {
                ++epochs;
                EXPECT_EQ(line.value("disk_cache_hit_rate", 0.0), 1);
                EXPECT_TRUE(line.contains("memory_cache_hit_rate")) << line.dump();
            }
        }
        EXPECT_EQ(epochs, 2) << "the second one cut short";
        EXPECT_EQ(std::distance(fs::directory_iterator(root_ / "cache"), {}), 1) << "made once, by one rank";
    }
    world_->barrier("compared");
    Recipe raw = tests::small_classification_recipe(root_ / "labels");
    raw.data.disk_cache = root_ / "cache";
    EXPECT_THROW(train(raw, "raw"), base::UsageError);
    world_->barrier("refused");
}

TEST_F(ResumeTest, AFinishedRunIsLeftAsItIs) {
    Recipe recipe = tests::small_classification_recipe(root_ / "labels");
    recipe.data.validation = recipe.data.train;
    train(recipe, "run");
    const fs::path summary = root_ / "run" / "summary.json";
    const std::string before = base::read_text(summary);
    world_->barrier("read");
    EXPECT_EQ(train(recipe, "run"), Outcome::finished);
    EXPECT_EQ(base::read_text(summary), before);
    world_->barrier("compared");
    // Killed between the last checkpoint and the summary.
    if (is_first()) {
        fs::remove(summary);
        fs::remove(root_ / "run" / "report.html");
    }
    world_->barrier("removed");
    EXPECT_EQ(train(recipe, "run"), Outcome::finished);
    const auto was = nlohmann::json::parse(before), is = nlohmann::json::parse(base::read_text(summary));
    EXPECT_EQ(is["metrics"], was["metrics"]);
    EXPECT_EQ(is["steps"], was["steps"]);
    EXPECT_TRUE(fs::exists(root_ / "run" / "report.html"));
    world_->barrier("finished again");
}

TEST_F(ResumeTest, ARunThatMaxStepsEndsIsEvaluated) {
    Recipe recipe = tests::small_classification_recipe(root_ / "labels");
    recipe.data.validation = recipe.data.train;
    recipe.max_steps = 4;
    train(recipe, "run");
    const auto summary = nlohmann::json::parse(base::read_text(root_ / "run" / "summary.json"));
    EXPECT_TRUE(summary["metrics"].contains("accuracy")) << summary.dump();
    EXPECT_EQ(summary["steps"], 4);
    world_->barrier("read");
}

TEST_F(ResumeTest, CheckpointsByStepsAreNotSkippedAtTheEndOfAnEpoch) {
    Recipe recipe = tests::small_classification_recipe(root_ / "labels");
    recipe.checkpoint.every_epochs = 0;
    recipe.checkpoint.every_steps = 3;  // as many as an epoch has
    recipe.checkpoint.keep = 10;
    recipe.max_steps = 7;
    train(recipe, "run");
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_ / "run" / "checkpoints")) {
        names.push_back(entry.path().filename());
    }
    std::ranges::sort(names);
    EXPECT_EQ(names, (std::vector<std::string>{"step-000000003", "step-000000006", "step-000000007"}));
    world_->barrier("listed");
}

TEST_F(ResumeTest, ARunWithoutACheckpointStartsOverWhenAskedTo) {
    Recipe recipe = tests::small_classification_recipe(root_ / "labels");
    recipe.max_steps = 2;
    train(recipe, "straight");
    if (is_first()) {
        fs::create_directories(root_ / "killed");
        base::write_whole(root_ / "killed" / "metrics.jsonl", "{\"kind\":\"step\",\"epoch\":1,\"step\":1}\n");
        EXPECT_THROW(RunDirectory::create(root_ / "killed"), base::UsageError);
    }
    world_->barrier("killed run written");
    train(recipe, "killed", /*may_start_over=*/true);
    expect_same_state("straight", "killed");
    world_->barrier("compared");
}

TEST_F(ResumeTest, AnotherRecipeModelOrDataIsRefused) {
    Recipe recipe = tests::small_classification_recipe(root_ / "labels");
    recipe.max_steps = 2;
    train(recipe, "run");
    Recipe other_rate = recipe;
    other_rate.optimizer.learning_rate = 0.5;
    EXPECT_THROW(train(other_rate, "run"), base::UsageError);
    Recipe other_model = recipe;
    other_model.model = "resnet34";
    EXPECT_THROW(train(other_model, "run"), base::Error);
    if (is_first()) {
        tests::write_small_classification_data(root_ / "labels-2", 18);
    }
    world_->barrier("second data set written");
    Recipe other_data = recipe;
    other_data.data.train = (root_ / "labels-2").string();
    EXPECT_THROW(train(other_data, "run"), base::Error);
    world_->barrier("all refused");
}

}  // namespace
}  // namespace lockstep::trainer
