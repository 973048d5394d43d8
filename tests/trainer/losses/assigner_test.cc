#include "trainer/losses/assigner.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/random.h"
#include "tests/trainer/losses/scene.h"

namespace lockstep::trainer {
namespace {

/// Both implementations have to pass every test.
using Implementation = Assignment (TaskAlignedAssigner::*)(const at::Tensor&, const at::Tensor&, const AnchorPoints&,
                                                           const DetectionTargets&) const;

struct Named {
    const char* name;
    Implementation assign;
};

class TaskAlignedAssignerTest : public testing::TestWithParam<Named> {
  protected:
    Assignment assign(std::int64_t topk, const at::Tensor& probabilities, const at::Tensor& boxes,
                      const AnchorPoints& anchors, const DetectionTargets& targets, double alpha = 0.5) const {
        const TaskAlignedAssigner assigner(topk, alpha);
        return (assigner.*GetParam().assign)(probabilities, boxes, anchors, targets);
    }
};

INSTANTIATE_TEST_SUITE_P(Both, TaskAlignedAssignerTest,
                         testing::Values(Named{"loops", &TaskAlignedAssigner::with_loops},
                                         Named{"tensor_operations", &TaskAlignedAssigner::with_tensor_operations}),
                         [](const auto& info) { return info.param.name; });

constexpr std::int64_t side = 4;  // anchors a row and a column, 8 pixels apart
constexpr std::int64_t anchor_count = side * side;

/// One image, one level of 4 x 4 anchors of stride 8, two classes. Until told otherwise every anchor predicts a
/// far-away box, and every probability is 0.5.
struct SmallScene {
    AnchorPoints anchors;
    at::Tensor probabilities = at::full({1, anchor_count, 2}, 0.5, at::kDouble);
    at::Tensor boxes = at::full({1, anchor_count, 4}, 1000.0, at::kDouble);
    DetectionTargets targets;

    explicit SmallScene(const std::vector<std::array<double, 4>>& target_boxes) {
        const SpatialSize size{side, side};
        const std::int64_t stride = 8;
        anchors = make_anchor_points({&size, 1}, {&stride, 1}, at::kDouble);
        const auto count = static_cast<std::int64_t>(target_boxes.size());
        targets = {.boxes = at::zeros({1, count, 4}, at::kDouble),
                   .classes = at::zeros({1, count}, at::kLong),
                   .real = at::full({1, count}, true, at::kBool)};
        boxes.select(2, 2).add_(5), boxes.select(2, 3).add_(5);
        for (std::int64_t m = 0; m < count; ++m) {
            set(targets.boxes, m, target_boxes[m]);
        }
    }

    void predict(std::int64_t anchor, const std::array<double, 4>& box) { set(boxes, anchor, box); }
    void predict_everywhere(const std::array<double, 4>& box) {
        for (std::int64_t anchor = 0; anchor < anchor_count; ++anchor) {
            predict(anchor, box);
        }
    }

  private:
    static void set(at::Tensor& boxes, std::int64_t row, const std::array<double, 4>& box) {
        for (std::int64_t i = 0; i < 4; ++i) {
            boxes[0][row][i] = box[i];
        }
    }
};

/// "anchor:box" of each anchor that has one.
std::string positives_of(const Assignment& assignment, std::int64_t image = 0) {
    std::string text;
    for (std::int64_t anchor = 0; anchor < assignment.score.size(1); ++anchor) {
        if (assignment.score[image][anchor].item<double>() > 0) {
            text += base::str(text.empty() ? "" : " ", anchor, ":", assignment.box[image][anchor].item<std::int64_t>());
        }
    }
    return text;
}

double score_at(const Assignment& assignment, std::int64_t anchor) {
    return assignment.score[0][anchor].item<double>();
}

constexpr std::array<double, 4> whole = {0, 0, 32, 32};

TEST_P(TaskAlignedAssignerTest, ScoreOfAnExactPredictionIsOne) {
    SmallScene scene({{8, 8, 16, 16}});  // only the centre (12, 12) of anchor 5
    scene.predict(5, {8, 8, 16, 16});
    const auto result = assign(10, scene.probabilities, scene.boxes, scene.anchors, scene.targets);
    EXPECT_EQ(positives_of(result), "5:0");
    EXPECT_NEAR(score_at(result, 5), 1, 1e-6);
}

TEST_P(TaskAlignedAssignerTest, ScoresFollowTheMetricAndTheGreatestOverlap) {
    SmallScene scene({{8, 8, 24, 16}});  // anchors 5 and 6
    scene.predict(5, {8, 8, 24, 16});    // CIoU 1
    scene.predict(6, {8, 8, 16, 16});    // IoU 1/2, centre 4 off, diagonal^2 16^2 + 8^2, aspect 1 instead of 2
    scene.probabilities[0][5][0] = 0.25;
    scene.probabilities[0][6][0] = 0.81;
    const double v = 4 / std::pow(std::acos(-1.0), 2) * std::pow(std::atan(2.0) - std::atan(1.0), 2);
    const double overlap = 0.5 - (16.0 / 320 + v * v / (v + 0.5));
    const auto result = assign(10, scene.probabilities, scene.boxes, scene.anchors, scene.targets);
    EXPECT_EQ(positives_of(result), "5:0 6:0");
    EXPECT_NEAR(score_at(result, 5), 1, 1e-6);
    EXPECT_NEAR(score_at(result, 6), 0.9 * std::pow(overlap, 6) / 0.5, 1e-6);
}

TEST_P(TaskAlignedAssignerTest, EqualMetricsGoToTheLowerAnchor) {
    SmallScene scene({whole});
    scene.predict_everywhere(whole);
    EXPECT_EQ(positives_of(assign(3, scene.probabilities, scene.boxes, scene.anchors, scene.targets)), "0:0 1:0 2:0");
    scene.probabilities[0][9][0] = 0.6;
    EXPECT_EQ(positives_of(assign(3, scene.probabilities, scene.boxes, scene.anchors, scene.targets)), "0:0 1:0 9:0");
}

TEST_P(TaskAlignedAssignerTest, EqualOverlapsGoToTheLowerBox) {
    SmallScene scene({{500, 500, 600, 600}, whole, whole});
    scene.predict_everywhere(whole);
    const auto result = assign(2, scene.probabilities, scene.boxes, scene.anchors, scene.targets);
    EXPECT_EQ(positives_of(result), "0:1 1:1");
}

TEST_P(TaskAlignedAssignerTest, ADisputedAnchorGoesToTheGreatestOverlap) {
    SmallScene scene({{0, 0, 30, 32}, whole});
    scene.predict_everywhere(whole);
    scene.targets.classes[0][1] = 1;
    scene.probabilities.select(2, 0).fill_(0.99);  // the metric of box 0 is greater, its overlap is not
    scene.probabilities.select(2, 1).fill_(0.10);
    const auto result = assign(1, scene.probabilities, scene.boxes, scene.anchors, scene.targets);
    EXPECT_EQ(positives_of(result), "0:1");  // and box 0 is left with nothing
}

TEST_P(TaskAlignedAssignerTest, ADisputedAnchorMayGoToABoxThatDidNotClaimIt) {
    // Boxes 0 and 1 claim anchor 0. Box 2 claims anchor 1, where its class is likely, but overlaps anchor 0's
    // prediction most.
    SmallScene scene({{0, 0, 30, 32}, {0, 0, 32, 30}, whole});
    scene.targets.classes[0][2] = 1;
    scene.predict(0, whole);
    scene.predict(1, {0, 0, 31, 32});
    scene.probabilities[0][0][0] = 0.9;
    scene.probabilities[0][0][1] = 0.01;
    scene.probabilities[0][1][0] = 0.0;
    scene.probabilities[0][1][1] = 0.9;
    EXPECT_EQ(positives_of(assign(1, scene.probabilities, scene.boxes, scene.anchors, scene.targets)), "0:2 1:2");
}

TEST_P(TaskAlignedAssignerTest, ABoxBetweenTheCentresGetsNoAnchor) {
    SmallScene scene({{5, 5, 11, 11}});
    scene.predict_everywhere({5, 5, 11, 11});
    EXPECT_EQ(positives_of(assign(10, scene.probabilities, scene.boxes, scene.anchors, scene.targets)), "");
}

TEST_P(TaskAlignedAssignerTest, ACentreOnTheBorderIsOutside) {
    SmallScene scene({{4, 4, 12, 12}});  // corners on the centres of anchors 0 and 5
    scene.predict_everywhere({4, 4, 12, 12});
    EXPECT_EQ(positives_of(assign(10, scene.probabilities, scene.boxes, scene.anchors, scene.targets)), "");
}

TEST_P(TaskAlignedAssignerTest, FewerCandidatesThanPlaces) {
    SmallScene scene({{0, 0, 16, 16}});  // anchors 0, 1, 4, 5
    scene.predict_everywhere({0, 0, 16, 16});
    EXPECT_EQ(positives_of(assign(10, scene.probabilities, scene.boxes, scene.anchors, scene.targets)),
              "0:0 1:0 4:0 5:0");
    EXPECT_EQ(positives_of(assign(100, scene.probabilities, scene.boxes, scene.anchors, scene.targets)),
              "0:0 1:0 4:0 5:0");
}

TEST_P(TaskAlignedAssignerTest, PredictionsThatMissGiveNothing) {
    SmallScene scene({whole});
    EXPECT_EQ(positives_of(assign(10, scene.probabilities, scene.boxes, scene.anchors, scene.targets)), "");
}

TEST_P(TaskAlignedAssignerTest, PaddingDoesNotMatter) {
    SmallScene scene({whole, {0, 0, 16, 16}, whole});
    scene.predict_everywhere(whole);
    scene.targets.real[0][0] = false;
    scene.targets.real[0][2] = false;
    scene.targets.classes[0][0] = -1;
    scene.targets.boxes[0][2].fill_(std::numeric_limits<double>::quiet_NaN());
    EXPECT_EQ(positives_of(assign(10, scene.probabilities, scene.boxes, scene.anchors, scene.targets)),
              "0:1 1:1 4:1 5:1");
}

TEST_P(TaskAlignedAssignerTest, ADivergedNetworkGetsNoAnchorsInsteadOfACrash) {
    SmallScene scene({whole});
    scene.predict_everywhere(whole);
    scene.probabilities.fill_(std::numeric_limits<double>::quiet_NaN());
    EXPECT_EQ(positives_of(assign(3, scene.probabilities, scene.boxes, scene.anchors, scene.targets)), "");
    scene.probabilities.fill_(0.5);
    scene.boxes.fill_(std::numeric_limits<double>::quiet_NaN());
    EXPECT_EQ(positives_of(assign(3, scene.probabilities, scene.boxes, scene.anchors, scene.targets)), "");
}

/// Random probabilities and boxes around the targets, so that many anchors are disputed and many metrics zero.
struct Crowd {
    AnchorPoints anchors;
    at::Tensor probabilities, boxes;
    DetectionTargets targets;

    Crowd(std::int64_t images, std::int64_t box_count, std::int64_t classes, std::uint64_t seed) {
        const Scene scene =
            random_scene({.images = images, .classes = classes, .max_boxes = box_count + 3, .boxes = box_count}, seed);
        const std::vector<std::int64_t> strides = {8, 16, 32};
        anchors = make_anchor_points(spatial_sizes(scene.levels), strides, at::kDouble);
        targets = scene.targets;
        base::Random random(seed, base::RandomPurpose::test, 1, 0);
        const std::int64_t count = anchors.points.size(0);
        probabilities = at::empty({images, count, classes}, at::kDouble);
        boxes = at::empty({images, count, 4}, at::kDouble);
        auto p = probabilities.accessor<double, 3>(), box = boxes.accessor<double, 3>();
        const auto target = targets.boxes.accessor<double, 3>();
        for (std::int64_t image = 0; image < images; ++image) {
            for (std::int64_t anchor = 0; anchor < count; ++anchor) {
                for (std::int64_t c = 0; c < classes; ++c) {
                    p[image][anchor][c] = random.uniform();
                }
                const auto near =
                    target[image][static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(target.size(1))))];
                for (std::int64_t i = 0; i < 4; ++i) {
                    box[image][anchor][i] = near[i] + (i < 2 ? -1 : 1) * random.uniform(0, 4);
                }
            }
        }
    }
};

TEST_P(TaskAlignedAssignerTest, EqualsThePlainVersionOnRandomCrowds) {
    int disputed = 0, zero_candidates = 0, positives = 0;
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
        for (const auto& [topk, alpha] : {std::pair<std::int64_t, double>{1, 0.5}, {1, 2.0}, {4, 1.0}, {10, 0.5}}) {
            const Crowd crowd(2, 3 + static_cast<std::int64_t>(seed), 2, seed);
            const auto result = assign(topk, crowd.probabilities, crowd.boxes, crowd.anchors, crowd.targets, alpha);
            for (std::int64_t image = 0; image < 2; ++image) {
                std::vector<std::vector<double>> probabilities;
                std::vector<slow::Corners> boxes;
                std::vector<slow::Anchor> anchors;
                const auto p = crowd.probabilities.accessor<double, 3>(), box = crowd.boxes.accessor<double, 3>();
                for (std::int64_t a = 0; a < p.size(1); ++a) {
                    probabilities.push_back({p[image][a][0], p[image][a][1]});
                    boxes.push_back({box[image][a][0], box[image][a][1], box[image][a][2], box[image][a][3]});
                    anchors.push_back({crowd.anchors.points[a][0].item<double>(),
                                       crowd.anchors.points[a][1].item<double>(),
                                       crowd.anchors.strides[a][0].item<double>()});
                }
                const auto targets = slow_targets({.levels = {}, .targets = crowd.targets}, image);
                const auto expected =
                    slow::assign(probabilities, boxes, anchors, targets, static_cast<int>(topk), alpha);
                disputed += expected.disputed;
                zero_candidates += expected.zero_candidates;
                for (std::int64_t a = 0; a < p.size(1); ++a) {
                    const auto [target, score] = expected.anchors[static_cast<std::size_t>(a)];
                    const std::string where =
                        base::str("seed ", seed, " topk ", topk, " alpha ", alpha, " image ", image, " anchor ", a);
                    ASSERT_NEAR(result.score[image][a].item<double>(), score, 1e-12) << where;
                    if (score > 0) {
                        ++positives;
                        ASSERT_EQ(result.box[image][a].item<std::int64_t>(), target) << where;
                        const slow::Target& won = targets[static_cast<std::size_t>(target)];
                        const auto at = static_cast<std::size_t>(a);
                        const double overlap = std::max(0.0, slow::complete_iou(boxes[at], won.box));
                        const double metric = std::pow(probabilities[at][static_cast<std::size_t>(won.label)], alpha) *
                                              std::pow(overlap, 6);
                        ASSERT_NEAR(result.metric[image][a].item<double>(), metric, 1e-12) << where;
                    }
                }
            }
        }
    }
    // What makes the comparison worth something.
    EXPECT_GT(positives, 1000);
    EXPECT_GT(disputed, 200);
    EXPECT_GT(zero_candidates, 200);
}

TEST_P(TaskAlignedAssignerTest, AnImageDoesNotHearItsNeighbours) {
    const Crowd crowd(3, 8, 2, 5);
    const auto all = assign(10, crowd.probabilities, crowd.boxes, crowd.anchors, crowd.targets);
    for (std::int64_t image = 0; image < 3; ++image) {
        const auto one = [&](const at::Tensor& tensor) { return tensor.slice(0, image, image + 1); };
        const auto alone = assign(10, one(crowd.probabilities), one(crowd.boxes), crowd.anchors,
                                  {one(crowd.targets.boxes), one(crowd.targets.classes), one(crowd.targets.real)});
        EXPECT_TRUE(alone.box.equal(one(all.box))) << "image " << image;
        EXPECT_TRUE(alone.score.equal(one(all.score))) << "image " << image;
    }
}

TEST_P(TaskAlignedAssignerTest, NoImages) {
    const Crowd crowd(1, 4, 2, 5);
    const auto none = [](const at::Tensor& tensor) { return tensor.slice(0, 0, 0); };
    const auto result = assign(10, none(crowd.probabilities), none(crowd.boxes), crowd.anchors,
                               {none(crowd.targets.boxes), none(crowd.targets.classes), none(crowd.targets.real)});
    EXPECT_EQ(result.score.sizes(), (std::vector<std::int64_t>{0, crowd.anchors.points.size(0)}));
}

TEST(TaskAlignedAssigner, RefusesAClassThatTheNetworkDoesNotHave) {
    SmallScene scene({whole});
    scene.targets.classes[0][0] = 2;
    EXPECT_THROW(TaskAlignedAssigner(10)(scene.probabilities, scene.boxes, scene.anchors, scene.targets),
                 base::InternalError);
}

TEST(TaskAlignedAssigner, RefusesToClaimNothing) {
    EXPECT_THROW(TaskAlignedAssigner(0), base::InternalError);
}

}  // namespace
}  // namespace lockstep::trainer
