#include "sharding/tiling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/sharding/scratch.h"

namespace lockstep::sharding {
namespace {

Box box(float x1, float y1, float x2, float y2) {
    return {.x1 = x1,
            .y1 = y1,
            .x2 = x2,
            .y2 = y2,
            .area = (x2 - x1) * (y2 - y1),
            .class_index = 3,
            .flags = box_difficult,
            .annotation_id = 5};
}

TEST(Tiling, LastRowAndColumnAlignToTheEdge) {
    const std::vector<Rectangle> tiles = tiles_of({600, 256}, {.side = 256, .overlap = 128});
    EXPECT_EQ(tiles,
              (std::vector<Rectangle>{{0, 0, 256, 256}, {128, 0, 256, 256}, {256, 0, 256, 256}, {344, 0, 256, 256}}));
}

TEST(Tiling, NoSecondTileWhereTheFirstReachesTheEdge) {
    EXPECT_EQ(tiles_of({256, 256}, {.side = 256, .overlap = 128}).size(), 1u);
    EXPECT_EQ(tiles_of({384, 256}, {.side = 256, .overlap = 128}).size(), 2u);
    EXPECT_EQ(tiles_of({385, 256}, {.side = 256, .overlap = 128}).size(), 3u);
}

TEST(Tiling, SmallImagesAreOneTileOfTheirOwnSize) {
    EXPECT_EQ(tiles_of({100, 700}, {.side = 256, .overlap = 0}),
              (std::vector<Rectangle>{{0, 0, 100, 256}, {0, 256, 100, 256}, {0, 444, 100, 256}}));
}

// The photos of deepforest 2.1.0, whose tiles the reference facts count.
TEST(Tiling, TilesOfTheAerialPhotos) {
    EXPECT_EQ(tiles_of({2299, 2472}, {.side = 256, .overlap = 128}).size(), 17u * 19u);
    EXPECT_EQ(tiles_of({1249, 1035}, {.side = 256, .overlap = 128}).size(), 9u * 8u);
}

TEST(Tiling, EveryPixelIsCoveredAndEveryTileIsInside) {
    for (const ImageSize size : {ImageSize{97, 53}, ImageSize{64, 64}, ImageSize{33, 200}}) {
        for (const std::uint32_t overlap : {0u, 1u, 16u, 31u}) {
            std::vector<int> covered(std::size_t{size.width} * size.height);
            for (const Rectangle& tile : tiles_of(size, {.side = 32, .overlap = overlap})) {
                ASSERT_LE(tile.right(), size.width);
                ASSERT_LE(tile.bottom(), size.height);
                for (std::uint32_t y = tile.y; y < tile.bottom(); ++y) {
                    for (std::uint32_t x = tile.x; x < tile.right(); ++x) {
                        ++covered[std::size_t{y} * size.width + x];
                    }
                }
            }
            EXPECT_EQ(std::count(covered.begin(), covered.end(), 0), 0) << size.width << " x " << size.height;
        }
    }
}

TEST(Tiling, ContradictoryOptionsAreUsageErrors) {
    EXPECT_THROW(tiles_of({64, 64}, {.side = 0, .overlap = 0}), base::UsageError);
    EXPECT_THROW(tiles_of({64, 64}, {.side = 32, .overlap = 32}), base::UsageError);
    EXPECT_THROW(tiles_of({64, 64}, {.side = 32, .overlap = 0, .min_visible = 0}), base::UsageError);
    EXPECT_THROW(tiles_of({64, 64}, {.side = 32, .overlap = 0, .min_visible = 1.5}), base::UsageError);
}

TEST(Tiling, ABoxBelongsToTilesThatHoldEnoughOfIt) {
    // Tile 100..200 x 0..100: 40 of the first box's 100 columns are inside, 39 of the second's, none of the third's.
    const std::vector<Box> boxes{box(40, 10, 140, 20), box(39, 10, 139, 20), box(0, 0, 100, 10), box(120, 30, 160, 70)};
    const CutBoxes cut = cut_boxes(boxes, {100, 0, 100, 100}, 0.4);
    ASSERT_EQ(cut.kept.size(), 2u);
    EXPECT_EQ(cut.dropped, 1u);
    EXPECT_EQ(cut.kept[0].x1, 0);
    EXPECT_EQ(cut.kept[0].x2, 40);
    EXPECT_EQ(cut.kept[0].y1, 10);
    EXPECT_EQ(cut.kept[0].y2, 20);
    EXPECT_FLOAT_EQ(cut.kept[0].area, 400);
    EXPECT_EQ(cut.kept[1].x1, 20);
    EXPECT_EQ(cut.kept[1].x2, 60);
    EXPECT_EQ(cut.kept[1].y1, 30);
    EXPECT_EQ(cut.kept[1].class_index, 3);
    EXPECT_EQ(cut.kept[1].flags, box_difficult);
}

TEST(Tiling, AnAnnotatedAreaShrinksInProportion) {
    Box masked = box(0, 0, 100, 10);
    masked.area = 500;  // a mask that fills half of its box
    EXPECT_FLOAT_EQ(cut_boxes({masked}, {0, 0, 60, 60}, 0.4).kept.at(0).area, 300);
}

TEST(Tiling, BoxesAreClippedToTheImageOrDroppedForAReason) {
    const ImageSize image{100, 50};
    const auto reason = [&](Box b) {
        const Reason* dropped = clip_to_image(b, image);
        return std::string(dropped ? dropped->name : "kept");
    };
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(reason(box(0, 0, 100, 50)), "kept");
    EXPECT_EQ(reason(box(20, 10, 10, 20)), "inverted");
    EXPECT_EQ(reason(box(10, 20, 20, 10)), "inverted");
    EXPECT_EQ(reason(box(10, 10, 10, 20)), "no_area");
    EXPECT_EQ(reason(box(10, 10, 20, 10)), "no_area");
    EXPECT_EQ(reason(box(100, 0, 120, 10)), "outside");
    EXPECT_EQ(reason(box(-20, 0, 0, 10)), "outside");
    EXPECT_EQ(reason(box(0, 50, 10, 60)), "outside");
    EXPECT_EQ(reason(box(nan, 0, 10, 10)), "not_finite");
    EXPECT_EQ(reason(box(0, 0, std::numeric_limits<float>::infinity(), 10)), "not_finite");

    Box partly = box(-10, 40, 10, 60);
    EXPECT_EQ(clip_to_image(partly, image), nullptr);
    EXPECT_EQ(partly.x1, 0);
    EXPECT_EQ(partly.y1, 40);
    EXPECT_EQ(partly.x2, 10);
    EXPECT_EQ(partly.y2, 50);
    EXPECT_FLOAT_EQ(partly.area, 100);
}

}  // namespace
}  // namespace lockstep::sharding
