#include "trainer/models/decode.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "trainer/models/anchor_points.h"

namespace lockstep::trainer {
namespace {

TEST(AnchorPoints, AreCellCentresLevelByLevel) {
    const std::vector<SpatialSize> sizes = {{2, 3}, {1, 2}};
    const std::vector<std::int64_t> strides = {8, 16};
    const AnchorPoints anchors = make_anchor_points(sizes, strides, at::kDouble);
    const at::Tensor expected =
        at::tensor({0.5, 0.5, 1.5, 0.5, 2.5, 0.5, 0.5, 1.5, 1.5, 1.5, 2.5, 1.5, 0.5, 0.5, 1.5, 0.5}, at::kDouble)
            .view({8, 2});
    EXPECT_TRUE(at::equal(anchors.points, expected)) << anchors.points;
    EXPECT_TRUE(at::equal(anchors.strides.flatten(), at::tensor({8., 8., 8., 8., 8., 8., 16., 16.}, at::kDouble)));
    EXPECT_EQ(anchors.strides.dim(), 2);
}

TEST(Decode, BoxesAreExpectedDistancesFromTheAnchor) {
    constexpr std::int64_t classes = 3;
    const std::vector<std::int64_t> strides = {8, 16};
    base::Random random(11, base::RandomPurpose::test, 0, 0);
    std::vector<at::Tensor> maps;
    for (const auto& [height, width] : {std::pair(3, 2), {1, 2}}) {
        at::Tensor map = at::empty({2, 64 + classes, height, width}, at::kDouble);
        double* values = map.mutable_data_ptr<double>();
        for (std::int64_t i = 0; i < map.numel(); ++i) {
            values[i] = 2.0 * random.normal();
        }
        maps.push_back(map);
    }
    const DecodedMaps decoded = decode_maps(maps, strides);
    ASSERT_EQ(decoded.boxes.sizes().vec(), (std::vector<std::int64_t>{2, 8, 4}));
    ASSERT_EQ(decoded.scores.sizes().vec(), (std::vector<std::int64_t>{2, 8, classes}));
    for (std::int64_t b = 0; b < 2; ++b) {
        std::int64_t anchor = 0;
        for (std::size_t level = 0; level < maps.size(); ++level) {
            for (std::int64_t row = 0; row < maps[level].size(2); ++row) {
                for (std::int64_t column = 0; column < maps[level].size(3); ++column, ++anchor) {
                    const auto logit = [&](std::int64_t channel) {
                        return maps[level][b][channel][row][column].item<double>();
                    };
                    double distance[4];
                    for (std::int64_t side = 0; side < 4; ++side) {
                        double sum = 0.0, weighted = 0.0;
                        for (std::int64_t bin = 0; bin < 16; ++bin) {
                            const double weight = std::exp(logit(side * 16 + bin));
                            sum += weight;
                            weighted += static_cast<double>(bin) * weight;
                        }
                        distance[side] = weighted / sum;
                    }
                    const double stride = static_cast<double>(strides[level]);
                    const double x = static_cast<double>(column) + 0.5, y = static_cast<double>(row) + 0.5;
                    const double expected[4] = {(x - distance[0]) * stride, (y - distance[1]) * stride,
                                                (x + distance[2]) * stride, (y + distance[3]) * stride};
                    for (std::int64_t i = 0; i < 4; ++i) {
                        EXPECT_NEAR(decoded.boxes[b][anchor][i].item<double>(), expected[i], 1e-10)
                            << "anchor " << anchor;
                    }
                    for (std::int64_t c = 0; c < classes; ++c) {
                        EXPECT_NEAR(decoded.scores[b][anchor][c].item<double>(), 1.0 / (1.0 + std::exp(-logit(64 + c))),
                                    1e-12);
                    }
                }
            }
        }
    }
    // 16-bit maps are decoded in FP32.
    std::vector<at::Tensor> narrow, wide;
    for (const at::Tensor& map : maps) {
        narrow.push_back(map.to(at::kBFloat16));
        wide.push_back(narrow.back().to(at::kFloat));
    }
    EXPECT_TRUE(at::equal(decode_maps(narrow, strides).boxes, decode_maps(wide, strides).boxes));
}

TEST(Decode, SelectionEqualsTheSlowOne) {
    constexpr std::int64_t anchors = 40, classes = 3;
    base::Random random(3, base::RandomPurpose::test, 0, 0);
    for (const std::int64_t limit : {1, 5, 40, 300}) {
        at::Tensor scores = at::empty({2, anchors, classes});
        float* values = scores.mutable_data_ptr<float>();
        for (std::int64_t i = 0; i < scores.numel(); ++i) {
            values[i] = static_cast<float>(random.below(20)) / 20.0F;  // with many equal ones
        }
        const at::Tensor boxes = at::arange(2 * anchors * 4, at::kFloat).view({2, anchors, 4});
        const auto detections = select_detections({boxes, scores}, 0.3, limit);
        ASSERT_EQ(detections.size(), 2U);
        for (std::int64_t image = 0; image < 2; ++image) {
            using Row = std::tuple<float, std::int64_t, std::int64_t>;  // negative score, anchor, class
            std::vector<std::pair<float, std::int64_t>> by_best;
            for (std::int64_t a = 0; a < anchors; ++a) {
                by_best.emplace_back(-scores[image][a].max().item<float>(), a);
            }
            std::sort(by_best.begin(), by_best.end());
            by_best.resize(std::min(limit, anchors));
            std::vector<Row> rows;
            for (const auto& [score, a] : by_best) {
                for (std::int64_t c = 0; c < classes; ++c) {
                    rows.emplace_back(-scores[image][a][c].item<float>(), a, c);
                }
            }
            std::sort(rows.begin(), rows.end());
            rows.resize(std::min<std::size_t>(limit, rows.size()));
            std::erase_if(rows, [](const Row& row) { return -std::get<0>(row) < 0.3F; });

            const std::vector<Detection>& found = detections[image];
            ASSERT_EQ(found.size(), rows.size()) << "limit " << limit;
            for (std::size_t i = 0; i < rows.size(); ++i) {
                const auto& [negative_score, a, c] = rows[i];
                EXPECT_EQ(found[i].score, -negative_score) << "row " << i;
                EXPECT_EQ(found[i].class_index, c) << "row " << i;
                EXPECT_EQ(found[i].box[0], boxes[image][a][0].item<float>()) << "row " << i;
                EXPECT_EQ(found[i].box[3], boxes[image][a][3].item<float>()) << "row " << i;
            }
        }
    }
}

TEST(Decode, AnAnchorMayAppearWithSeveralClasses) {
    const at::Tensor scores = at::tensor({0.9F, 0.8F, 0.1F, 0.7F}).view({1, 2, 2});
    const auto detections = select_detections({at::zeros({1, 2, 4}), scores}, 0.5)[0];
    ASSERT_EQ(detections.size(), 3U);
    EXPECT_EQ(detections[0].class_index, 0);
    EXPECT_EQ(detections[1].class_index, 1);
    EXPECT_EQ(detections[1].score, 0.8F);
    EXPECT_EQ(detections[2].score, 0.7F);
}

TEST(Decode, NoImagesAndNoDetections) {
    EXPECT_TRUE(select_detections({at::zeros({0, 5, 4}), at::zeros({0, 5, 2})}, 0.1).empty());
    EXPECT_TRUE(select_detections({at::zeros({1, 5, 4}), at::zeros({1, 5, 2})}, 0.1)[0].empty());
}

TEST(Decode, ScoresAndBoxesThatAreNotFiniteAreAnError) {
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
        DecodedMaps decoded{at::zeros({1, 5, 4}), at::zeros({1, 5, 2})};
        EXPECT_NO_THROW(select_detections(decoded, 0.1));
        decoded.boxes[0][4][2] = value;
        EXPECT_THROW(select_detections(decoded, 0.1), base::Error) << "a box of " << value;
        decoded.boxes.zero_();
        decoded.scores[0][3][1] = value;
        EXPECT_THROW(select_detections(decoded, 0.1), base::Error) << "a score of " << value;
    }
}

}  // namespace
}  // namespace lockstep::trainer
