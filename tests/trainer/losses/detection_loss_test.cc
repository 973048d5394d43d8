#include "trainer/losses/detection_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "base/error.h"
#include "tests/trainer/losses/scene.h"
#include "trainer/losses/head_loss.h"
#include "trainer/models/decode.h"

namespace lockstep::trainer {
namespace {

constexpr slow::Gains published_gains = {.box = 7.5, .classification = 0.5, .distribution = 1.5};
constexpr std::array<std::int64_t, 3> strides = {8, 16, 32};

/// The loss of a network whose two heads give the same output.
comm::LossSums loss_of(const std::vector<at::Tensor>& levels, const DetectionTargets& targets,
                       std::int64_t classes = 3) {
    return DetectionLoss({.classes = classes})({.one_to_many = levels, .one_to_one = levels}, targets);
}

HeadSums head_of(const comm::LossSums& sums, std::size_t head) {
    return {.sum = sums.sums[head], .denominator = sums.denominators[head], .parts = sums.parts[head]};
}

/// The strides of the first levels, as many as there are.
std::vector<std::int64_t> strides_of(const std::vector<at::Tensor>& levels) {
    return {strides.begin(), strides.begin() + static_cast<std::ptrdiff_t>(levels.size())};
}

/// One head's loss by the loops: the way that the class goes on the CPU.
HeadSums loss_with_loops(const std::vector<at::Tensor>& levels, const DetectionTargets& targets, std::int64_t topk,
                         const DetectionGains& gains) {
    const DetectionLoss loss({.classes = levels[0].size(1) - distance_channels,
                              .strides = strides_of(levels),
                              .gains = gains,
                              .one_to_many_topk = topk});
    return head_of(loss({.one_to_many = levels, .one_to_one = levels}, targets), DetectionLoss::one_to_many);
}

/// The same by tensor operations: the way that the class goes on a device.
HeadSums loss_with_tensor_operations(const std::vector<at::Tensor>& levels, const DetectionTargets& given,
                                     std::int64_t topk, const DetectionGains& gains) {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& level : levels) {
        rows.push_back(level.flatten(2).transpose(1, 2));
    }
    const at::Tensor all = at::cat(rows, 1);
    const HeadPredictions predictions{.distances = all.narrow(2, 0, distance_channels),
                                      .classes = all.narrow(2, distance_channels, all.size(2) - distance_channels)};
    const DetectionTargets targets{given.boxes.to(all.scalar_type()), given.classes, given.real};
    const auto anchors = make_anchor_points(spatial_sizes(levels), strides_of(levels), targets.boxes.options());
    const auto boxes = decode_boxes(predictions.distances, anchors) * anchors.strides;
    const auto assignment =
        TaskAlignedAssigner(topk).with_tensor_operations(at::sigmoid(predictions.classes), boxes, anchors, targets);
    return head_loss_with_tensor_operations(predictions, anchors, targets, assignment, gains);
}

/// What both implementations have to pass.
struct Implementation {
    const char* name;
    HeadSums (*loss)(const std::vector<at::Tensor>& levels, const DetectionTargets& targets, std::int64_t topk,
                     const DetectionGains& gains);
};

class HeadLossTest : public testing::TestWithParam<Implementation> {
  protected:
    static HeadSums loss(const std::vector<at::Tensor>& levels, const DetectionTargets& targets, std::int64_t topk = 10,
                         const DetectionGains& gains = {}) {
        return GetParam().loss(levels, targets, topk, gains);
    }
};

INSTANTIATE_TEST_SUITE_P(Both, HeadLossTest,
                         testing::Values(Implementation{"loops", loss_with_loops},
                                         Implementation{"tensor_operations", loss_with_tensor_operations}),
                         [](const auto& info) { return info.param.name; });

/// Sums over the images of a scene, by the plain version.
slow::Loss plain_loss(const Scene& scene, int topk) {
    slow::Loss total;
    const auto anchors = slow_anchors(scene);
    for (std::int64_t image = 0; image < scene.targets.boxes.size(0); ++image) {
        const auto predictions = slow_predictions(scene, image);
        const auto targets = slow_targets(scene, image);
        const auto assignment = slow::assign(predictions, anchors, targets, topk);
        const auto one = slow::loss(predictions, anchors, targets, assignment,
                                    slow::aspect_weights(predictions, anchors, targets, assignment));
        total.box += one.box, total.classification += one.classification, total.distribution += one.distribution;
        total.target_score_sum += one.target_score_sum;
    }
    return total;
}

void expect_near_relative(double value, double expected, double tolerance, const std::string& what) {
    EXPECT_NEAR(value, expected, tolerance * std::max(1.0, std::abs(expected))) << what;
}

void expect_equals_plain(const HeadSums& head, const slow::Loss& expected, double tolerance, const std::string& what) {
    expect_near_relative(head.sum.item<double>(), expected.weighted(published_gains), tolerance, what + ": sum");
    expect_near_relative(head.denominator.item<double>(), expected.target_score_sum, tolerance, what + ": denominator");
    expect_near_relative(head.parts[0].item<double>(), 7.5 * expected.box, tolerance, what + ": box");
    expect_near_relative(head.parts[1].item<double>(), 0.5 * expected.classification, tolerance,
                         what + ": classification");
    expect_near_relative(head.parts[2].item<double>(), 1.5 * expected.distribution, tolerance, what + ": distribution");
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& levels) {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& level : levels) {
        gradients.push_back(level.grad());
    }
    return gradients;
}

void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, double tolerance) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_TRUE(a[i].defined() && b[i].defined()) << "level " << i;
        EXPECT_LE((a[i].to(at::kDouble) - b[i].to(at::kDouble)).abs().max().item<double>(), tolerance) << "level " << i;
    }
}

// By hand.
// -------------------------------------------------------------------------------------------------------------

/// One image of 8 x 8 pixels with one anchor, whose logits are zero: the distances are uniform over 0 ... 15, so it
/// predicts 7.5 strides to every side, in pixels (-56, -56, 64, 64), and a probability of 1/2.
struct OneAnchor {
    at::Tensor level = at::zeros({1, 65, 1, 1}, at::kDouble);
    DetectionTargets targets{.boxes = at::zeros({1, 1, 4}, at::kDouble),
                             .classes = at::zeros({1, 1}, at::kLong),
                             .real = at::full({1, 1}, true, at::kBool)};

    explicit OneAnchor(const std::array<double, 4>& box) {
        for (std::int64_t i = 0; i < 4; ++i) {
            targets.boxes[0][0][i] = box[i];
        }
    }
};

TEST_P(HeadLossTest, AnExactBoxCostsItsDistributionAndItsClass) {
    const OneAnchor one({-56, -56, 64, 64});
    const HeadSums head = loss({one.level}, one.targets);
    EXPECT_NEAR(head.denominator.item<double>(), 1, 1e-7);
    EXPECT_NEAR(head.parts[0].item<double>(), 0, 1e-6);
    EXPECT_NEAR(head.parts[1].item<double>(), 0.5 * std::log(2), 1e-6);  // whatever the target, at probability 1/2
    EXPECT_NEAR(head.parts[2].item<double>(), 1.5 * std::log(16), 1e-6);
    EXPECT_NEAR(head.sum.item<double>(), 0.5 * std::log(2) + 1.5 * std::log(16), 1e-6);
}

TEST_P(HeadLossTest, AWrongBoxIsWeighedByItsScore) {
    // In strides (-7, -7, 5, 8): IoU 12/15, centre 1.5 off, diagonal^2 450.
    const double v = 4 / std::pow(std::numbers::pi, 2) * std::pow(std::atan(12.0 / 15) - std::atan(1.0), 2);
    const double ciou = 0.8 - (2.25 / 450 + v * v / (v - 0.8 + 1));
    const OneAnchor one({-56, -56, 40, 64});
    const HeadSums head = loss({one.level}, one.targets);
    EXPECT_NEAR(head.denominator.item<double>(), ciou, 1e-7);  // the only anchor: its overlap is its score
    EXPECT_NEAR(head.parts[0].item<double>(), 7.5 * ciou * (1 - ciou), 1e-6);
    EXPECT_NEAR(head.parts[2].item<double>(), 1.5 * ciou * std::log(16), 1e-6);
}

TEST_P(HeadLossTest, DistancesBetweenTwoBinsShareThem) {
    OneAnchor one({-30, -56, 64, 64});  // left: (4 + 30) / 8 = 4.25
    one.level[0][4] = std::log(2);      // p(4) = 2/17, all others of that side 1/17
    const HeadSums head = loss({one.level}, one.targets);
    const double left = 0.75 * std::log(17.0 / 2) + 0.25 * std::log(17);
    EXPECT_NEAR(head.parts[2].item<double>() / head.denominator.item<double>(), 1.5 * (left + 3 * std::log(16)) / 4,
                1e-9);
}

TEST_P(HeadLossTest, ADistanceBeyondTheLastBinCountsAsJustBelowIt) {
    OneAnchor one({-124, -56, 64, 64});  // left: (4 + 124) / 8 = 16
    one.level[0][15] = std::log(16);     // p(15) = 16/31, p(14) = 1/31
    const HeadSums head = loss({one.level}, one.targets);
    ASSERT_GT(head.denominator.item<double>(), 0);
    const double left = 0.01 * std::log(31) + 0.99 * std::log(31.0 / 16);
    EXPECT_NEAR(head.parts[2].item<double>() / head.denominator.item<double>(), 1.5 * (left + 3 * std::log(16)) / 4,
                1e-9);
}

TEST_P(HeadLossTest, GainsAreFactorsOfTheParts) {
    const OneAnchor one({-56, -56, 40, 64});
    const HeadSums published = loss({one.level}, one.targets),
                   other = loss({one.level}, one.targets, 10, {.box = 1, .classification = 2, .distribution = 3});
    EXPECT_NEAR(other.parts[0].item<double>() * 7.5, published.parts[0].item<double>(), 1e-12);
    EXPECT_NEAR(other.parts[1].item<double>() / 4, published.parts[1].item<double>(), 1e-12);
    EXPECT_NEAR(other.parts[2].item<double>() / 2, published.parts[2].item<double>(), 1e-12);
    EXPECT_NEAR(other.sum.item<double>(), other.parts.sum().item<double>(), 1e-12);
}

// Against the plain version.
// --------------------------------------------------------------------------------------------

TEST_P(HeadLossTest, EqualsThePlainVersionOnRandomScenes) {
    double positives = 0;
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
        const Scene scene = random_scene({}, seed);
        for (const int topk : {10, 1}) {
            const slow::Loss expected = plain_loss(scene, topk);
            positives += expected.target_score_sum;
            expect_equals_plain(loss(scene.levels, scene.targets, topk), expected, 1e-11,
                                base::str("seed ", seed, " topk ", topk));
        }
    }
    EXPECT_GT(positives, 100);  // what makes the comparison worth something
}

TEST_P(HeadLossTest, SinglePrecisionStaysNearThePlainVersion) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
        const Scene scene = random_scene({}, seed);
        const HeadSums head = loss(leaves(scene.levels, at::kFloat), scene.targets);
        EXPECT_EQ(head.sum.scalar_type(), at::kFloat);
        expect_equals_plain(head, plain_loss(scene, 10), 1e-4, base::str("seed ", seed));
    }
}

TEST(DetectionLoss, HeadsClaimTenAnchorsAndOne) {
    const Scene scene = random_scene({.images = 1, .boxes = 4}, 3);
    const DetectionLoss loss({.classes = 3});
    const DetectorOutput output{.one_to_many = scene.levels, .one_to_one = scene.levels};
    for (const auto& [head, topk] : {std::pair{DetectionLoss::one_to_many, 10}, {DetectionLoss::one_to_one, 1}}) {
        const Assignment ours = loss.assign(head, output, scene.targets);
        const auto expected =
            slow::assign(slow_predictions(scene, 0), slow_anchors(scene), slow_targets(scene, 0), topk);
        int positives = 0;
        for (std::size_t a = 0; a < expected.anchors.size(); ++a) {
            EXPECT_NEAR(ours.score[0][static_cast<std::int64_t>(a)].item<double>(), expected.anchors[a].score, 1e-12);
            positives += expected.anchors[a].score > 0;
        }
        EXPECT_GT(positives, 0);
        EXPECT_LE(positives, 4 * topk);
    }
}

// The gradient.
// ---------------------------------------------------------------------------------------------------------

TEST(DetectionLoss, GradientIsThatOfCentralDifferencesOfThePlainVersion) {
    // By every raw output of the head; assignment and alpha of CIoU are held, as no gradient goes through them.
    const Scene scene = random_scene({.images = 1, .height = 32, .width = 64, .max_boxes = 5, .boxes = 4}, 2);
    const auto anchors = slow_anchors(scene);
    const auto targets = slow_targets(scene, 0);
    auto predictions = slow_predictions(scene, 0);
    for (const int topk : {10, 1}) {
        const auto assignment = slow::assign(predictions, anchors, targets, topk);
        const auto alphas = slow::aspect_weights(predictions, anchors, targets, assignment);
        const auto levels = leaves(scene.levels), dense_levels = leaves(scene.levels);
        const comm::LossSums sums = loss_of(levels, scene.targets);
        ASSERT_GT(sums.denominators[topk == 10 ? 0 : 1].item<double>(), 0.1);
        sums.sums[topk == 10 ? 0 : 1].backward();
        loss_with_tensor_operations(dense_levels, scene.targets, topk, {}).sum.backward();

        std::size_t a = 0;
        for (std::size_t i = 0; i < levels.size(); ++i) {
            const auto ours = levels[i].grad().accessor<double, 4>(),
                       dense = dense_levels[i].grad().accessor<double, 4>();
            for (std::int64_t row = 0; row < ours.size(2); ++row) {
                for (std::int64_t column = 0; column < ours.size(3); ++column, ++a) {
                    for (std::int64_t channel = 0; channel < ours.size(1); ++channel) {
                        double& logit = channel < 64 ? predictions[a].distance_logits[channel / 16][channel % 16]
                                                     : predictions[a].class_logits[channel - 64];
                        const auto moved = [&](double by) {
                            const double before = std::exchange(logit, logit + by);
                            const auto loss = slow::loss(predictions, anchors, targets, assignment, alphas);
                            logit = before;
                            return loss.weighted(published_gains);
                        };
                        constexpr double step = 1e-5;
                        const double expected = (moved(step) - moved(-step)) / (2 * step);
                        const std::string where = base::str("topk ", topk, " level ", i, " row ", row, " column ",
                                                            column, " channel ", channel);
                        ASSERT_NEAR(ours[0][channel][row][column], expected, 1e-6) << where;
                        ASSERT_NEAR(dense[0][channel][row][column], expected, 1e-6) << where;
                    }
                }
            }
        }
    }
}

TEST(DetectionLoss, BothImplementationsGiveOneGradient) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
        const Scene scene = random_scene({}, seed);
        const auto loops = leaves(scene.levels), dense = leaves(scene.levels);
        loss_of(loops, scene.targets).sums[0].backward();
        loss_with_tensor_operations(dense, scene.targets, 10, {}).sum.backward();
        expect_close(gradients_of(loops), gradients_of(dense), 1e-11);
    }
}

TEST(DetectionLoss, AFactorAfterTheSumReachesTheGradient) {
    const Scene scene = random_scene({}, 1);
    const auto once = leaves(scene.levels), thrice = leaves(scene.levels);
    loss_of(once, scene.targets).sums[0].backward();
    (loss_of(thrice, scene.targets).sums[0] * 3).backward();
    std::vector<at::Tensor> expected;
    for (const at::Tensor& gradient : gradients_of(once)) {
        expected.push_back(gradient * 3);
    }
    expect_close(gradients_of(thrice), expected, 1e-12);
}

TEST(DetectionLoss, AHeadsSumReachesThatHeadOnly) {
    const Scene scene = random_scene({}, 1);
    const auto many = leaves(scene.levels), one = leaves(scene.levels);
    const auto sums = DetectionLoss({.classes = 3})({.one_to_many = many, .one_to_one = one}, scene.targets);
    sums.sums[DetectionLoss::one_to_one].backward();
    for (std::size_t i = 0; i < many.size(); ++i) {
        EXPECT_FALSE(many[i].grad().defined()) << "level " << i;
        EXPECT_TRUE(one[i].grad().defined()) << "level " << i;
    }
    EXPECT_FALSE(sums.denominators[0].requires_grad());
    EXPECT_FALSE(sums.parts[0].requires_grad());
}

// What must not matter.
// -------------------------------------------------------------------------------------------------

TEST(DetectionLoss, SumsOverAnySplitOfTheBatchAreThoseOfTheWhole) {
    const Scene scene = random_scene({.images = 5}, 4);
    const auto whole = leaves(scene.levels);
    const auto all = loss_of(whole, scene.targets);
    all.sums[0].backward();

    double sum = 0, denominator = 0;
    at::Tensor parts = at::zeros({3}, at::kDouble);
    std::vector<std::vector<at::Tensor>> gradients(3);
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {1, 1}, {1, 4}, {4, 5}}) {
        const Scene share = images_of(scene, begin, end);
        const auto levels = leaves(share.levels);
        const auto some = loss_of(levels, share.targets);
        some.sums[0].backward();
        sum += some.sums[0].item<double>(), denominator += some.denominators[0].item<double>();
        parts += some.parts[0];
        for (std::size_t i = 0; i < 3; ++i) {
            gradients[i].push_back(levels[i].grad());
        }
    }
    expect_near_relative(sum, all.sums[0].item<double>(), 1e-13, "sum");
    expect_near_relative(denominator, all.denominators[0].item<double>(), 1e-13, "denominator");
    EXPECT_LE((parts - all.parts[0]).abs().max().item<double>(), 1e-10);
    expect_close(gradients_of(whole), {at::cat(gradients[0]), at::cat(gradients[1]), at::cat(gradients[2])}, 1e-14);
}

TEST_P(HeadLossTest, OrderOfBoxesAndAmountOfPaddingDoNotMatter) {
    const Scene scene = random_scene({}, 6);
    const double expected = loss(scene.levels, scene.targets).sum.item<double>();
    const DetectionTargets reversed{scene.targets.boxes.flip(1), scene.targets.classes.flip(1),
                                    scene.targets.real.flip(1)};
    expect_near_relative(loss(scene.levels, reversed).sum.item<double>(), expected, 1e-13, "reversed");
    const DetectionTargets padded{at::cat({scene.targets.boxes, at::zeros({2, 50, 4}, at::kDouble)}, 1),
                                  at::cat({scene.targets.classes, at::zeros({2, 50}, at::kLong)}, 1),
                                  at::cat({scene.targets.real, at::zeros({2, 50}, at::kBool)}, 1)};
    expect_near_relative(loss(scene.levels, padded).sum.item<double>(), expected, 1e-13, "padded");
}

TEST_P(HeadLossTest, WhatPaddingHoldsReachesNeitherLossNorGradient) {
    const Scene scene = random_scene({}, 6);
    // The first box, at which the anchors without one point, is padding.
    DetectionTargets targets = scene.targets;
    for (at::Tensor* values : {&targets.boxes, &targets.classes, &targets.real}) {
        *values = at::cat({at::zeros_like(values->slice(1, 0, 1)), *values}, 1);
    }
    const auto result_of = [&] {
        const auto levels = leaves(scene.levels, at::kFloat);
        const HeadSums head = loss(levels, targets);
        head.sum.backward();
        return std::pair(head, gradients_of(levels));
    };
    const auto [expected, expected_gradients] = result_of();
    ASSERT_GT(expected.denominator.item<double>(), 1);
    constexpr double infinity = std::numeric_limits<double>::infinity();
    for (const double value : {1e30, -1e30, infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
        targets.boxes.masked_fill_(~targets.real.unsqueeze(-1), value);
        targets.classes.masked_fill_(~targets.real, std::numeric_limits<std::int64_t>::max());
        const auto [head, gradients] = result_of();
        EXPECT_EQ(head.sum.item<double>(), expected.sum.item<double>()) << "boxes of " << value;
        EXPECT_TRUE(head.parts.equal(expected.parts)) << "boxes of " << value;
        expect_close(gradients, expected_gradients, 0);
    }
}

TEST(DetectionLoss, MemoryFormatDoesNotMatter) {
    const Scene scene = random_scene({}, 6);
    const auto planar = leaves(scene.levels);
    std::vector<at::Tensor> interleaved;
    for (const at::Tensor& level : scene.levels) {
        interleaved.push_back(level.contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true));
    }
    const auto expected = loss_of(planar, scene.targets), sums = loss_of(interleaved, scene.targets);
    EXPECT_EQ(sums.sums[0].item<double>(), expected.sums[0].item<double>());
    expected.sums[0].backward(), sums.sums[0].backward();
    expect_close(gradients_of(interleaved), gradients_of(planar), 0);
}

TEST(DetectionLoss, SixteenBitOutputIsComputedInSingle) {
    const Scene scene = random_scene({}, 8);
    const auto half = leaves(scene.levels, at::kBFloat16), single = leaves(half, at::kFloat);
    const auto sums = loss_of(half, scene.targets), expected = loss_of(single, scene.targets);
    EXPECT_EQ(sums.sums[0].scalar_type(), at::kFloat);
    EXPECT_EQ(sums.sums[0].item<float>(), expected.sums[0].item<float>());
    sums.sums[0].backward(), expected.sums[0].backward();
    for (std::size_t i = 0; i < half.size(); ++i) {
        EXPECT_TRUE(half[i].grad().equal(single[i].grad().to(at::kBFloat16))) << "level " << i;
    }
}

// The edges.
// ------------------------------------------------------------------------------------------------------------

TEST_P(HeadLossTest, WithoutBoxesOnlyTheClassesLearn) {
    const Scene scene = random_scene({.boxes = 0}, 9);
    const auto levels = leaves(scene.levels);
    const HeadSums head = loss(levels, scene.targets);
    expect_equals_plain(head, plain_loss(scene, 10), 1e-12, "no boxes");
    EXPECT_EQ(head.denominator.item<double>(), 0);
    EXPECT_EQ(head.parts[0].item<double>(), 0);
    EXPECT_EQ(head.parts[2].item<double>(), 0);
    head.sum.backward();
    for (const at::Tensor& gradient : gradients_of(levels)) {
        EXPECT_EQ(gradient.narrow(1, 0, 64).abs().max().item<double>(), 0);
        EXPECT_GT(gradient.narrow(1, 64, 3).min().item<double>(), 0);
    }
}

TEST_P(HeadLossTest, WithoutImagesItIsZeroWithGraph) {
    const Scene scene = images_of(random_scene({}, 9), 0, 0);
    const auto levels = leaves(scene.levels);
    const HeadSums head = loss(levels, scene.targets);
    EXPECT_EQ(head.sum.item<double>(), 0);
    EXPECT_EQ(head.denominator.item<double>(), 0);
    EXPECT_EQ(head.parts.abs().max().item<double>(), 0);
    head.sum.backward();
    for (const at::Tensor& level : levels) {
        EXPECT_TRUE(level.grad().defined());
    }
}

TEST_P(HeadLossTest, ExtremeLogitsStayFinite) {
    const Scene scene = random_scene({}, 10);
    for (const double factor : {1e3, 1e30}) {
        std::vector<at::Tensor> levels;
        for (const at::Tensor& level : scene.levels) {
            levels.push_back((level * factor).to(at::kFloat).set_requires_grad(true));
        }
        const HeadSums head = loss(levels, scene.targets);
        EXPECT_TRUE(std::isfinite(head.sum.item<double>())) << "factor " << factor << ": " << head.sum.item<double>();
        head.sum.backward();
        for (const at::Tensor& gradient : gradients_of(levels)) {
            EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << "factor " << factor;
        }
    }
}

TEST_P(HeadLossTest, ALogitThatIsNotFiniteShowsInTheSum) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const Scene scene = random_scene({.images = 1}, 10), empty = random_scene({.images = 1, .boxes = 0}, 10);
    for (const Scene* whole : {&scene, &empty}) {
        const HeadSums finite = loss(whole->levels, whole->targets);
        ASSERT_TRUE(std::isfinite(finite.sum.item<double>()));
        const at::Tensor& level = whole->levels[1];
        for (const double value : {std::numeric_limits<double>::quiet_NaN(), infinity, -infinity}) {
            for (const bool in_boxes : {true, false}) {
                const at::Tensor branch = in_boxes
                                              ? level.narrow(1, 0, distance_channels)
                                              : level.narrow(1, distance_channels, level.size(1) - distance_channels);
                const at::Tensor one = branch.select(1, branch.size(1) - 1).select(1, 1).select(1, 2);
                for (const at::Tensor& reached : {branch, one}) {
                    const at::Tensor before = level.clone();
                    reached.fill_(value);
                    const HeadSums head = loss(whole->levels, whole->targets);
                    level.copy_(before);
                    const std::string what =
                        base::str(whole == &scene ? "with" : "without", " boxes, ", value, " in ", reached.numel(),
                                  in_boxes ? " distances: " : " classes: ", head.sum.item<double>());
                    EXPECT_TRUE(std::isnan(head.sum.item<double>())) << what;
                    // The message of a diverged training names the parts.
                    EXPECT_TRUE(std::isnan(head.parts[in_boxes ? 0 : 1].item<double>())) << what;
                }
            }
        }
    }
}

TEST(DetectionLoss, OnADeviceNothingIsReadOnTheHostAndShapesAreKnownBefore) {
    // Tensors of the meta device have shapes but no values: reading one, or a shape that depends on one, throws.
    // Forward only, since LibTorch without Python has no meta kernels for all that its own derivatives use.
    const at::NoGradGuard no_grad;
    const auto meta = at::TensorOptions().device(at::kMeta);
    std::vector<at::Tensor> levels;
    for (const std::int64_t size : {8, 4, 2}) {
        levels.push_back(at::empty({2, 67, size, size}, meta.dtype(at::kFloat)));
    }
    const DetectionTargets targets{.boxes = at::empty({2, 12, 4}, meta.dtype(at::kFloat)),
                                   .classes = at::empty({2, 12}, meta.dtype(at::kLong)),
                                   .real = at::empty({2, 12}, meta.dtype(at::kBool))};
    const auto sums = loss_of(levels, targets);
    for (std::size_t head = 0; head < 2; ++head) {
        EXPECT_TRUE(sums.sums[head].is_meta());
        EXPECT_EQ(sums.sums[head].dim(), 0);
        EXPECT_EQ(sums.denominators[head].dim(), 0);
        EXPECT_EQ(sums.parts[head].sizes(), (std::vector<std::int64_t>{3}));
    }
    EXPECT_ANY_THROW(sums.sums[0].item<double>());
}

TEST(DetectionLoss, RefusesOutputOfAnotherNetwork) {
    const Scene scene = random_scene({.classes = 3}, 0);
    EXPECT_THROW(loss_of(scene.levels, scene.targets, 4), base::InternalError);
    EXPECT_THROW(loss_of({scene.levels[0], scene.levels[1]}, scene.targets), base::InternalError);
    EXPECT_THROW(loss_of(scene.levels, images_of(scene, 0, 1).targets), base::InternalError);
}

}  // namespace
}  // namespace lockstep::trainer
