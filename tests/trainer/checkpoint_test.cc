#include "trainer/checkpoint.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/file.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
  protected:
    void SetUp() override {
        run_ = fs::path(testing::TempDir()) /
               ("checkpoint-" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
        fs::remove_all(run_);
    }
    void TearDown() override { fs::remove_all(run_); }

    static CheckpointContent content_at(std::uint64_t step) {
        CheckpointContent content;
        content.model = "yolov10n";
        content.classes = {"tree", "other"};
        content.progress = {3, 4, step, 0.1};
        content.training_hash = 0xfedcba9876543210ULL;
        content.data_hash = 0xffffffffffffffffULL;
        content.ledger_count = 12;
        content.ledger_hash = 0x8000000000000001ULL;
        content.recipe = "model = \"yolov10n\"\n";
        content.tensors["parameters/a.weight"] = at::rand({4, 3, 5, 5}).to(at::MemoryFormat::ChannelsLast);
        content.tensors["parameters/b"] = at::rand({7}, at::kDouble);
        content.tensors["buffers/steps"] = at::full({}, 42, at::kLong);
        return content;
    }
    static void flip_byte(const fs::path& file, std::streamoff position) {
        std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
        stream.seekg(position);
        const char byte = static_cast<char>(stream.get() ^ 0x40);
        stream.seekp(position);
        stream.put(byte);
    }
    fs::path run_;
};

TEST_F(CheckpointTest, ComesBackBitForBit) {
    const CheckpointContent saved = content_at(17);
    const CheckpointContent loaded = load_checkpoint(save_checkpoint(run_, saved, 2));
    EXPECT_EQ(loaded.model, saved.model);
    EXPECT_EQ(loaded.classes, saved.classes);
    EXPECT_EQ(loaded.progress, saved.progress);
    EXPECT_EQ(loaded.training_hash, saved.training_hash);
    EXPECT_EQ(loaded.data_hash, saved.data_hash);
    EXPECT_EQ(loaded.ledger_hash, saved.ledger_hash);
    EXPECT_EQ(loaded.recipe, saved.recipe);
    ASSERT_EQ(loaded.tensors.size(), saved.tensors.size());
    for (const auto& [name, tensor] : saved.tensors) {
        EXPECT_EQ(loaded.tensors.at(name).scalar_type(), tensor.scalar_type()) << name;
        EXPECT_TRUE(at::equal(loaded.tensors.at(name).reshape(tensor.sizes()), tensor)) << name;
    }
}

TEST_F(CheckpointTest, KeepsTheNewest) {
    for (std::uint64_t step : {5, 10, 15, 1000}) {
        save_checkpoint(run_, content_at(step), 2);
    }
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(run_ / "checkpoints")) {
        names.push_back(entry.path().filename());
    }
    std::ranges::sort(names);
    EXPECT_EQ(names, (std::vector<std::string>{"step-000000015", "step-000001000"}));
}

TEST_F(CheckpointTest, DamagedFilesAreNamedAndPassedOver) {
    const fs::path old_one = save_checkpoint(run_, content_at(5), 3);
    const fs::path new_one = save_checkpoint(run_, content_at(10), 3);
    const auto size = static_cast<std::streamoff>(fs::file_size(new_one / "rank-00000.h5"));
    for (std::streamoff position : {std::streamoff{0}, size / 2, size - 1}) {
        flip_byte(new_one / "rank-00000.h5", position);
        try {
            load_checkpoint(new_one);
            FAIL() << "a flipped byte at " << position << " went unseen";
        } catch (const base::Error& error) {
            EXPECT_NE(std::string(error.what()).find("rank-00000.h5"), std::string::npos) << error.what();
        }
        EXPECT_EQ(newest_checkpoint(run_), old_one);
        flip_byte(new_one / "rank-00000.h5", position);
    }
    EXPECT_EQ(newest_checkpoint(run_), new_one);
    fs::resize_file(new_one / "rank-00000.h5", static_cast<std::uintmax_t>(size - 100));
    EXPECT_EQ(newest_checkpoint(run_), old_one);
    std::ofstream(old_one / "manifest.json") << "{\"format\": 1, ";
    EXPECT_EQ(newest_checkpoint(run_), std::nullopt);
}

TEST_F(CheckpointTest, AFlippedDigitInTheManifestIsSeen) {
    const fs::path old_one = save_checkpoint(run_, content_at(5), 3);
    const fs::path new_one = save_checkpoint(run_, content_at(10), 3);
    std::string manifest = base::read_text(new_one / "manifest.json");
    const auto at = manifest.find("\"optimizer_steps\": 10");
    ASSERT_NE(at, std::string::npos) << manifest;
    manifest[at + 20] = '7';
    std::ofstream(new_one / "manifest.json") << manifest;
    EXPECT_EQ(newest_checkpoint(run_), old_one);
}

TEST_F(CheckpointTest, ADamagedOneIsWrittenAnewAndAWholeOneKept) {
    const fs::path path = save_checkpoint(run_, content_at(5), 3);
    flip_byte(path / "rank-00000.h5", 0);
    EXPECT_EQ(newest_checkpoint(run_), std::nullopt);
    EXPECT_EQ(save_checkpoint(run_, content_at(5), 3), path);
    EXPECT_EQ(newest_checkpoint(run_), path);
    const auto written = fs::last_write_time(path / "manifest.json");
    save_checkpoint(run_, content_at(5), 3);
    EXPECT_EQ(fs::last_write_time(path / "manifest.json"), written);
}

TEST_F(CheckpointTest, OnesAfterAStepCanBeRemoved) {
    for (std::uint64_t step : {5, 10, 1000}) {
        save_checkpoint(run_, content_at(step), 3);
    }
    remove_checkpoints_after(run_, 10);
    EXPECT_EQ(newest_checkpoint(run_), run_ / "checkpoints" / "step-000000010");
    remove_checkpoints_after(run_, 0);
    EXPECT_EQ(newest_checkpoint(run_), std::nullopt);
}

TEST_F(CheckpointTest, AnotherFormatIsRefused) {
    const fs::path path = save_checkpoint(run_, content_at(5), 1);
    std::ofstream(path / "manifest.json") << "{\"format\": 99}";
    EXPECT_THROW(load_checkpoint(path), base::Error);
}

TEST_F(CheckpointTest, LeftoversOfAKilledSaveAreNotCheckpoints) {
    fs::create_directories(run_ / "checkpoints" / "step-000000099.partial-123");
    EXPECT_EQ(newest_checkpoint(run_), std::nullopt);
}

}  // namespace
}  // namespace lockstep::trainer
