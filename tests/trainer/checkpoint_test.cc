#include "trainer/checkpoint_writer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "tests/comm/thread_node.h"

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

/// Two ranks as threads, each with its part of a tensor in channels_last and of one that is flat.
class CheckpointInPieces : public CheckpointTest {
  protected:
    using Pieces = std::vector<TensorPiece>;

    TensorPiece piece(const char* name, const at::Tensor& whole, std::int64_t begin, std::int64_t end) const {
        return {name, whole.sizes().vec(), whole.strides().vec(), static_cast<std::uint64_t>(begin),
                whole.as_strided({whole.numel()}, {1}).slice(0, begin, end)};
    }
    Pieces pieces_of(comm::Rank rank) const {
        if (comm::index_of(rank) == 0) {
            return {piece("momentum/a.weight", weight_, 0, 100), piece("momentum/b", flat_, 0, 7)};
        }
        return {piece("momentum/a.weight", weight_, 100, 300)};
    }

    /// What each rank's call threw; empty where it came through.
    std::vector<std::string> save(std::uint64_t step, const std::function<Pieces(comm::Rank)>& pieces) {
        comm::tests::ThreadNode node({comm::Rank{0}, comm::Rank{1}});
        std::vector<std::string> errors(2);
        comm::tests::on_rank_threads(2, [&](comm::Rank rank) {
            const auto ranks = node.join("control", rank, std::chrono::seconds(60));
            try {
                save_checkpoint(run_, content_at(step), pieces(rank), 2, *ranks);
            } catch (const base::Error& error) {
                errors[static_cast<std::size_t>(comm::index_of(rank))] = error.what();
            }
        });
        return errors;
    }
    std::string error_of_load() const {
        try {
            load_checkpoint(*newest_checkpoint(run_));
            return "";
        } catch (const base::Error& error) {
            return error.what();
        }
    }

    at::Tensor weight_ = at::rand({4, 3, 5, 5}).to(at::MemoryFormat::ChannelsLast);
    at::Tensor flat_ = at::rand({7}, at::kDouble);
};

TEST_F(CheckpointInPieces, ComeTogether) {
    EXPECT_EQ(save(5, [&](comm::Rank rank) { return pieces_of(rank); }), (std::vector<std::string>{"", ""}));
    const CheckpointContent loaded = load_checkpoint(*newest_checkpoint(run_));
    EXPECT_TRUE(at::equal(loaded.tensors.at("momentum/a.weight"), weight_));
    EXPECT_TRUE(at::equal(loaded.tensors.at("momentum/b"), flat_));
    EXPECT_EQ(loaded.tensors.size(), content_at(5).tensors.size() + 2) << "rank 1 writes its pieces alone";
}

TEST_F(CheckpointInPieces, GapsAndOverlapsAreErrors) {
    for (const auto& [begin, expected] : {std::pair(101, "elements from 100 on are not there"),
                                          {99, "elements from 99 on are there twice"},
                                          {300, "elements from 100 on are not there"}}) {
        fs::remove_all(run_);
        save(5, [&, first = begin](comm::Rank rank) {
            Pieces pieces = pieces_of(rank);
            if (comm::index_of(rank) == 1) {
                pieces.clear();
                if (first < 300) {
                    pieces.push_back(piece("momentum/a.weight", weight_, first, 300));
                }
            }
            return pieces;
        });
        const std::string error = error_of_load();
        EXPECT_NE(error.find("momentum/a.weight"), std::string::npos) << error;
        EXPECT_NE(error.find(expected), std::string::npos) << error;
    }
}

TEST_F(CheckpointInPieces, AnErrorOnOneRankIsAllRanksAndLeavesNothing) {
    save(5, [&](comm::Rank rank) { return pieces_of(rank); });
    const fs::path before = *newest_checkpoint(run_);
    const auto errors = save(10, [&](comm::Rank rank) {
        Pieces pieces = pieces_of(rank);
        if (comm::index_of(rank) == 1) {
            pieces.front().values = at::full({200}, 1, at::kInt);
        }
        return pieces;
    });
    for (const std::string& error : errors) {
        EXPECT_NE(error.find("momentum/a.weight is of type Int"), std::string::npos) << error;
    }
    EXPECT_EQ(newest_checkpoint(run_), before);
    EXPECT_EQ(std::distance(fs::directory_iterator(run_ / "checkpoints"), fs::directory_iterator()), 1);
}

/// Whoever can write a manifest can write its checksum, too.
TEST_F(CheckpointInPieces, TamperedManifestsAreRefused) {
    save(5, [&](comm::Rank rank) { return pieces_of(rank); });
    const fs::path file = *newest_checkpoint(run_) / "manifest.json";
    const auto manifest = nlohmann::json::parse(base::read_text(file));
    const auto expect_refused = [&](const char* what, const std::function<void(nlohmann::json&)>& tamper,
                                    const char* expected) {
        nlohmann::json changed = manifest;
        changed.erase("checksum");
        tamper(changed);
        const std::string text = changed.dump();
        changed["checksum"] = base::crc32c({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
        base::write_whole(file, changed.dump(1));
        std::string error;
        try {
            load_checkpoint(file.parent_path());
        } catch (const base::Error& refused) {
            error = refused.what();
        }
        EXPECT_NE(error.find(expected), std::string::npos) << what << ": " << error;
        EXPECT_NE(error.find("manifest.json"), std::string::npos) << what << ": " << error;
    };
    const auto first_piece = [](nlohmann::json& m) -> nlohmann::json& { return m["pieces"][0]; };
    expect_refused(
        "shape",
        [&](auto& m) {
            first_piece(m)["shape"] = {1LL << 40, 1LL << 40, 5, 5};
        },
        "no dense tensor");
    expect_refused(
        "negative",
        [&](auto& m) {
            first_piece(m)["shape"] = {-4, 3, 5, 5};
        },
        "no dense tensor");
    expect_refused(
        "strides",
        [&](auto& m) {
            first_piece(m)["strides"] = {0, 1, 15, 3};
        },
        "no dense tensor");
    expect_refused(
        "begin", [&](auto& m) { first_piece(m)["begin"] = 299; }, "doesn't fit");
    expect_refused(
        "type", [&](auto& m) { first_piece(m)["type"] = "f16"; }, "unknown type");
    expect_refused(
        "file", [&](auto& m) { first_piece(m)["file"] = "rank-00009.h5"; }, "is not among");
    expect_refused(
        "path", [&](auto& m) { m["files"]["../rank-00000.h5"] = m["files"]["rank-00000.h5"]; }, "none of a checkpoint");
}

}  // namespace
}  // namespace lockstep::trainer
