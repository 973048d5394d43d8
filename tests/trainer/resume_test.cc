// Promise 3: the continued run is bitwise the uninterrupted one.

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "comm/mpi.h"
#include "tests/comm/mpi_test_main.h"
#include "tests/trainer/small_training.h"
#include "trainer/checkpoint.h"
#include "trainer/run_directory.h"
#include "trainer/trainer.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;

class ResumeTest : public testing::Test {
  protected:
    void SetUp() override {
        world_ = tests::make_test_communicator();
        root_ = fs::path(testing::TempDir()) / ("resume-" + std::to_string(world_->size()));
        if (is_first()) {
            fs::remove_all(root_);
            fs::create_directories(root_);
            tests::write_small_detection_data(root_ / "boxes", 17);
            tests::write_small_classification_data(root_ / "labels", 17);
        }
        world_->barrier("data written");
    }
    void TearDown() override {
        world_->barrier("test done");
        if (is_first()) {
            fs::remove_all(root_);
        }
    }
    bool is_first() const { return comm::index_of(world_->rank()) == 0; }

    Outcome train(const Recipe& recipe, const std::string& name) {
        const auto gradients = comm::make_mpi_communicator("gradients", tests::test_timeout);
        const auto batch_norm = comm::make_mpi_communicator("batch norm", tests::test_timeout);
        const auto control = comm::make_mpi_communicator("control", tests::test_timeout);
        const auto checkpoint = newest_checkpoint(root_ / name);
        world_->barrier("checkpoint found");
        Trainer trainer(recipe, root_ / name, checkpoint, {*gradients, *batch_norm, *control},
                        comm::detect_topology(*control));
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
            const auto straight = read_metrics(root_ / "straight"), broken = read_metrics(root_ / "broken");
            ASSERT_EQ(straight.size(), broken.size());
            for (std::size_t i = 0; i < straight.size(); ++i) {
                EXPECT_EQ(straight[i]["loss"], broken[i]["loss"]) << "line " << i + 1;
                EXPECT_EQ(straight[i]["step"], broken[i]["step"]) << "line " << i + 1;
            }
        }
        world_->barrier("compared");
    }

    std::unique_ptr<comm::Communicator> world_;
    fs::path root_;
};

TEST_F(ResumeTest, DetectorWithEverythingOn) {
    Recipe recipe = tests::small_detection_recipe(root_ / "boxes");
    recipe.accumulate = 2;
    expect_exact_resume(recipe);
}

TEST_F(ResumeTest, ClassifierWithAdamW) {
    Recipe recipe = tests::small_classification_recipe(root_ / "labels");
    recipe.optimizer.name = "adamw";
    recipe.optimizer.learning_rate = 0.001;
    expect_exact_resume(recipe);
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
