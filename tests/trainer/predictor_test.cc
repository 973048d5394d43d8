#include "trainer/predictor.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "trainer/models/model_factory.h"
#include "trainer/models/yolov10.h"

namespace lockstep::trainer {
namespace {

TiledBox box(double x1, double y1, double x2, double y2, double score, std::size_t tile, bool is_cut = false,
             std::int32_t class_index = 0) {
    return {{x1, y1, x2, y2, score, class_index}, tile, is_cut};
}

TEST(MergeTiles, OneObjectSeenTwiceIsOneDetection) {
    const auto merged = merge_tiles({box(10, 10, 50, 50, 0.6, 0), box(12, 10, 52, 50, 0.8, 1)});
    ASSERT_EQ(merged.size(), 1u);
    EXPECT_EQ(merged[0].score, 0.8);
}

TEST(MergeTiles, WholeBoxGoesBeforeACutOneOfHigherScore) {
    const auto merged = merge_tiles({box(10, 10, 30, 50, 0.9, 0, true), box(10, 10, 50, 50, 0.5, 1)});
    ASSERT_EQ(merged.size(), 1u);
    EXPECT_EQ(merged[0].x2, 50);
}

TEST(MergeTiles, OneTileNeverSuppressesItself) {
    EXPECT_EQ(merge_tiles({box(10, 10, 50, 50, 0.6, 3), box(12, 10, 52, 50, 0.8, 3)}).size(), 2u);
}

TEST(MergeTiles, OtherClassesAndPlacesStayByFallingScore) {
    const auto merged = merge_tiles(
        {box(10, 10, 50, 50, 0.3, 0), box(10, 10, 50, 50, 0.8, 1, false, 1), box(100, 10, 140, 50, 0.5, 1, true)});
    ASSERT_EQ(merged.size(), 3u);
    EXPECT_EQ(merged[0].score, 0.8);
    EXPECT_EQ(merged[1].score, 0.5);
    EXPECT_EQ(merged[2].score, 0.3);
}

TEST(Predictor, LooksAtImagesOfAnySize) {
    const auto path = std::filesystem::path(testing::TempDir()) / "predictor-test.safetensors";
    save_network(path, *make_detector({"yolov10n", 2, 64}, 1), {"yolov10n", {"cat", "dog"}, 64, false});
    Predictor predictor(path, std::nullopt);
    EXPECT_EQ(predictor.facts().classes.size(), 2u);
    for (const auto& [width, height] : {std::pair{1u, 1u}, {64u, 64u}, {50u, 90u}, {200u, 130u}}) {
        const auto image = sharding::Image::blank(width, height);
        for (const std::optional<std::uint32_t> tile :
             {std::optional<std::uint32_t>(), std::optional(0u), std::optional(64u)}) {
            for (const auto& found :
                 predictor.predict(image, {.min_score = 0, .max_detections = 20, .tile = tile, .overlap = {}})) {
                EXPECT_GE(found.x1, 0);
                EXPECT_LE(found.x2, width);
                EXPECT_GE(found.y1, 0);
                EXPECT_LE(found.y2, height);
            }
        }
    }
    EXPECT_THROW(Predictor(path, NetworkFacts{"yolov10s", {"cat", "dog"}, 64, false}), base::Error);
    EXPECT_THROW(Predictor(path, NetworkFacts{"yolov10n", {"cat"}, 64, false}), base::Error);
    EXPECT_THROW(Predictor("/nowhere.safetensors", std::nullopt), base::Error);
    std::filesystem::remove(path);
}

}  // namespace
}  // namespace lockstep::trainer
