#include "trainer/checkpoint_writer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "tests/comm/thread_node.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::int64_t elements = 300000;

/// Two ranks as threads; each owns a half of a tensor whose elements all are the checkpoint's step.
class CheckpointWriterTest : public testing::Test {
  protected:
    void SetUp() override {
        run_ = fs::path(testing::TempDir()) / ("checkpoint-writer-" + std::to_string(getpid()));
        fs::remove_all(run_);
    }
    void TearDown() override { fs::remove_all(run_); }

    static CheckpointContent content_at(std::uint64_t step) {
        CheckpointContent content;
        content.model = "yolov10n";
        content.progress.optimizer_steps = step;
        content.tensors["buffers/step"] = at::full({elements}, static_cast<double>(step));
        return content;
    }
    static std::vector<TensorPiece> half_at(std::uint64_t step, comm::Rank rank, at::ScalarType type = at::kFloat) {
        return {{"parameters/a",
                 {elements},
                 {1},
                 static_cast<std::uint64_t>(comm::index_of(rank) * elements / 2),
                 at::full({elements / 2}, static_cast<double>(step), type)}};
    }
    static bool is_of_step(const CheckpointContent& content, std::uint64_t step) {
        const at::Tensor expected = at::full({elements}, static_cast<double>(step));
        return content.progress.optimizer_steps == step && at::equal(content.tensors.at("buffers/step"), expected) &&
               at::equal(content.tensors.at("parameters/a"), expected);
    }

    void on_ranks(const std::function<void(CheckpointWriter&, comm::Communicator&)>& work) const {
        comm::tests::ThreadNode node({comm::Rank{0}, comm::Rank{1}});
        comm::tests::on_rank_threads(2, [&](comm::Rank rank) {
            const auto ranks = node.join("control", rank, 60s);
            CheckpointWriter writer(run_, 2, *ranks);
            work(writer, *ranks);
        });
    }

    fs::path run_;
};

TEST_F(CheckpointWriterTest, SavesWhatThereWasWhenItBegan) {
    on_ranks([](CheckpointWriter& writer, comm::Communicator& ranks) {
        CheckpointContent content = content_at(5);
        std::vector<TensorPiece> half = half_at(5, ranks.rank());
        EXPECT_FALSE(writer.is_under_way());
        writer.begin(content, half);
        EXPECT_TRUE(writer.is_under_way());
        content.tensors.at("buffers/step").zero_();
        half.front().values.zero_();
        writer.finish();
        EXPECT_FALSE(writer.is_under_way());
        EXPECT_FALSE(writer.is_busy());
    });
    EXPECT_TRUE(is_of_step(load_checkpoint(*newest_checkpoint(run_)), 5));
}

TEST_F(CheckpointWriterTest, IsThereOnceBothPhasesAreOver) {
    on_ranks([&](CheckpointWriter& writer, comm::Communicator& ranks) {
        writer.begin(content_at(5), half_at(5, ranks.rank()));
        int phases = 0;
        for (; writer.is_under_way(); ++phases) {
            EXPECT_TRUE(phases == 1 || !newest_checkpoint(run_)) << "there before all is written";
            ranks.barrier("looked");
            while (writer.is_busy()) {
                std::this_thread::sleep_for(1ms);
            }
            writer.advance();
        }
        EXPECT_EQ(phases, 2);
        EXPECT_TRUE(newest_checkpoint(run_));
    });
}

TEST_F(CheckpointWriterTest, TheNextOneWaitsForTheOneBefore) {
    on_ranks([](CheckpointWriter& writer, comm::Communicator& ranks) {
        for (const std::uint64_t step : {5, 10, 15}) {
            writer.begin(content_at(step), half_at(step, ranks.rank()));
        }
        writer.finish();
    });
    EXPECT_EQ(std::distance(fs::directory_iterator(run_ / "checkpoints"), fs::directory_iterator()), 2);
    EXPECT_TRUE(is_of_step(load_checkpoint(*newest_checkpoint(run_)), 15));
}

TEST_F(CheckpointWriterTest, AThreadsErrorIsAllRanksAndTheNextOneIsWritten) {
    on_ranks([](CheckpointWriter& writer, comm::Communicator& ranks) {
        const bool is_first = comm::index_of(ranks.rank()) == 0;
        writer.begin(content_at(5), half_at(5, ranks.rank(), is_first ? at::kFloat : at::kInt));
        try {
            writer.finish();
            ADD_FAILURE() << "a type that checkpoints don't hold was saved";
        } catch (const base::Error& error) {
            EXPECT_NE(std::string(error.what()).find("parameters/a is of type Int"), std::string::npos) << error.what();
        }
        EXPECT_FALSE(writer.is_under_way());
        writer.begin(content_at(10), half_at(10, ranks.rank()));
        writer.finish();
    });
    EXPECT_EQ(std::distance(fs::directory_iterator(run_ / "checkpoints"), fs::directory_iterator()), 1);
    EXPECT_TRUE(is_of_step(load_checkpoint(*newest_checkpoint(run_)), 10));
}

TEST_F(CheckpointWriterTest, OneThatIsGivenUpLeavesNothing) {
    on_ranks([](CheckpointWriter& writer, comm::Communicator& ranks) {
        writer.begin(content_at(5), half_at(5, ranks.rank()));
        ranks.barrier("begun");
    });
    EXPECT_TRUE(fs::is_empty(run_ / "checkpoints"));
}

/// A process that does nothing but save is killed at any instant, again and again on the same run.
TEST_F(CheckpointWriterTest, KilledAtAnyInstantLeavesAWholeOne) {
    std::uint64_t last = 0;
    base::Random random(7, base::RandomPurpose::test, 0, 0);
    for (int kill = 0; kill < 30; ++kill) {
        int first_saved[2];
        ASSERT_EQ(pipe(first_saved), 0);
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            on_ranks([&](CheckpointWriter& writer, comm::Communicator& ranks) {
                for (std::uint64_t step = last + 1;; ++step) {
                    writer.begin(content_at(step), half_at(step, ranks.rank()));
                    writer.finish();
                    if (comm::index_of(ranks.rank()) == 0 && write(first_saved[1], "x", 1) != 1) {
                        _exit(1);
                    }
                }
            });
        }
        close(first_saved[1]);
        char byte = 0;
        ASSERT_EQ(read(first_saved[0], &byte, 1), 1) << "the process ended before it had saved anything";
        std::this_thread::sleep_for(std::chrono::microseconds(random.below(40000)));
        ::kill(child, SIGKILL);
        int status = 0;
        waitpid(child, &status, 0);
        close(first_saved[0]);
        EXPECT_TRUE(WIFSIGNALED(status)) << "exit code " << WEXITSTATUS(status);
        const auto newest = newest_checkpoint(run_);
        ASSERT_TRUE(newest) << "after kill " << kill;
        const CheckpointContent content = load_checkpoint(*newest);
        EXPECT_TRUE(is_of_step(content, content.progress.optimizer_steps)) << *newest;
        EXPECT_GT(content.progress.optimizer_steps, last);
        last = content.progress.optimizer_steps;
    }
    on_ranks([&](CheckpointWriter& writer, comm::Communicator& ranks) {
        writer.begin(content_at(last + 1), half_at(last + 1, ranks.rank()));
        writer.finish();
    });
    for (const auto& entry : fs::directory_iterator(run_ / "checkpoints")) {
        EXPECT_FALSE(entry.path().filename().string().find("partial") != std::string::npos) << entry.path();
    }
}

}  // namespace
}  // namespace lockstep::trainer
