#include "trainer/task.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>

#include "base/error.h"
#include "tests/trainer/small_training.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;

/// A data set whose images have three boxes at most.
class RoomForBoxes : public testing::Test {
  protected:
    void SetUp() override {
        fs::remove_all(folder_);
        tests::write_small_detection_data(folder_, 10);
        data_.emplace(sharding::Dataset::open(folder_));
        ASSERT_EQ(data_->max_boxes_per_image(), 3U);
    }
    void TearDown() override { fs::remove_all(folder_); }

    std::int64_t room(std::int64_t max_boxes, bool enabled, double mosaic, double mixup) const {
        Recipe recipe;
        recipe.max_boxes = max_boxes;
        recipe.augmentation.enabled = enabled;
        recipe.augmentation.mosaic = mosaic;
        recipe.augmentation.mixup = mixup;
        return room_for_boxes(recipe, *data_);
    }

    fs::path folder_ = fs::path(testing::TempDir()) / "room-for-boxes";
    std::optional<sharding::Dataset> data_;
};

TEST_F(RoomForBoxes, IsWhatMosaicAndMixupCanBringTogether) {
    EXPECT_EQ(room(0, true, 0, 0), 3);
    EXPECT_EQ(room(0, true, 0.1, 0), 4 * 3) << "four tiles";
    EXPECT_EQ(room(0, true, 0, 0.1), 2 * 3) << "two images";
    EXPECT_EQ(room(0, true, 1, 1), 2 * 4 * 3) << "two mosaics";
    EXPECT_EQ(room(0, false, 1, 1), 3) << "augmentation is off";
}

TEST_F(RoomForBoxes, IsTheRecipesNumberWhereItHasOne) {
    EXPECT_EQ(room(3, true, 1, 1), 3);
    EXPECT_EQ(room(100, false, 0, 0), 100);
}

TEST_F(RoomForBoxes, RefusesANumberThatOneImageExceeds) {
    try {
        room(2, false, 0, 0);
        FAIL() << "max_boxes = 2 was taken";
    } catch (const base::UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("max_boxes = 2, but an image of " + folder_.string() + " has 3 boxes"),
                  std::string::npos)
            << error.what();
    }
}

/// The loss needs a row for padding even where nothing is to be found.
TEST(RoomForNoBoxes, IsOne) {
    const fs::path folder = fs::path(testing::TempDir()) / "room-for-no-boxes";
    fs::remove_all(folder);
    tests::write_small_classification_data(folder, 3);
    EXPECT_EQ(room_for_boxes({}, sharding::Dataset::open(folder)), 1);
    fs::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::trainer
