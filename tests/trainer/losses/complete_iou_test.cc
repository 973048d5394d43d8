#include "trainer/losses/complete_iou.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <numbers>

#include "base/random.h"
#include "tests/trainer/losses/slow_detection_loss.h"

namespace lockstep::trainer {
namespace {

constexpr double pi = std::numbers::pi;

slow::Corners slow_box(const Box<double>& box) {
    return {box.x1, box.y1, box.x2, box.y2};
}

std::vector<std::pair<Box<double>, Box<double>>> random_pairs() {
    base::Random random(7, base::RandomPurpose::test, 0, 0);
    const auto box = [&] {
        const double x = random.uniform(-5, 5), y = random.uniform(-5, 5);
        return Box<double>{x, y, x + random.uniform(0.1, 8), y + random.uniform(0.1, 8)};
    };
    std::vector<std::pair<Box<double>, Box<double>>> pairs;
    for (int i = 0; i < 500; ++i) {
        pairs.emplace_back(box(), box());
    }
    return pairs;
}

at::Tensor rows_of(const std::vector<std::pair<Box<double>, Box<double>>>& pairs, bool second) {
    at::Tensor rows = at::empty({static_cast<std::int64_t>(pairs.size()), 4}, at::kDouble);
    auto row = rows.accessor<double, 2>();
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        const Box<double>& box = second ? pairs[i].second : pairs[i].first;
        const auto n = static_cast<std::int64_t>(i);
        row[n][0] = box.x1, row[n][1] = box.y1, row[n][2] = box.x2, row[n][3] = box.y2;
    }
    return rows;
}

TEST(CompleteIou, EqualsValuesWorkedOutByHand) {
    struct Case {
        Box<double> a, b;
        double expected;
    };
    const double v = 4 / (pi * pi) * std::pow(std::atan(2.0) - std::atan(0.5), 2);
    const Case cases[] = {
        {{0, 0, 3, 5}, {0, 0, 3, 5}, 1},
        {{0, 0, 2, 2}, {1, 1, 3, 3}, 1.0 / 7 - 2.0 / 18},                                // centres 1 apart on both axes
        {{0, 0, 1, 1}, {3, 0, 4, 1}, -9.0 / 17},                                         // apart: IoU 0
        {{1, 1, 2, 2}, {0, 0, 4, 4}, 1.0 / 16 - 0.5 / 32},                               // inside
        {{0, 0, 4, 2}, {0, 0, 2, 4}, 1.0 / 3 - (2.0 / 32 + v * v / (v - 1.0 / 3 + 1))},  // other shape
    };
    for (const Case& c : cases) {
        EXPECT_NEAR(complete_iou(c.a, c.b), c.expected, 1e-6)
            << c.a.x1 << " " << c.a.x2 << " and " << c.b.x1 << " " << c.b.x2;
    }
}

TEST(CompleteIou, BothVersionsEqualThePlainOne) {
    const auto pairs = random_pairs();
    const at::Tensor by_tensors = complete_iou(rows_of(pairs, false), rows_of(pairs, true));
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        const double expected = slow::complete_iou(slow_box(pairs[i].first), slow_box(pairs[i].second));
        EXPECT_NEAR(complete_iou(pairs[i].first, pairs[i].second), expected, 1e-12) << "pair " << i;
        EXPECT_NEAR(by_tensors[static_cast<std::int64_t>(i)].item<double>(), expected, 1e-12) << "pair " << i;
    }
}

TEST(CompleteIou, TensorsBroadcast) {
    const auto pairs = random_pairs();
    const at::Tensor a = rows_of(pairs, false).slice(0, 0, 5), b = rows_of(pairs, true).slice(0, 0, 7);
    const at::Tensor all = complete_iou(a.unsqueeze(1), b.unsqueeze(0));
    ASSERT_EQ(all.sizes(), (std::vector<std::int64_t>{5, 7}));
    EXPECT_NEAR(all[4][6].item<double>(), complete_iou(pairs[4].first, pairs[6].second), 1e-12);
}

TEST(CompleteIou, GradientIsThatOfCentralDifferencesWithAlphaHeld) {
    const auto pairs = random_pairs();
    at::Tensor a = rows_of(pairs, false).set_requires_grad(true);
    complete_iou(a, rows_of(pairs, true)).sum().backward();
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        const auto& [box, target] = pairs[i];
        Box<double> gradient;
        complete_iou(box, target, &gradient);
        const std::array<double, 4> ours = {gradient.x1, gradient.y1, gradient.x2, gradient.y2};
        const double alpha = slow::aspect_weight(slow_box(box), slow_box(target));
        double slow::Corners::*const corners[] = {&slow::Corners::x1, &slow::Corners::y1, &slow::Corners::x2,
                                                  &slow::Corners::y2};
        for (std::size_t corner = 0; corner < 4; ++corner) {
            constexpr double step = 1e-6;
            slow::Corners below = slow_box(box), above = below;
            below.*corners[corner] -= step, above.*corners[corner] += step;
            const double expected = (slow::complete_iou(above, slow_box(target), alpha) -
                                     slow::complete_iou(below, slow_box(target), alpha)) /
                                    (2 * step);
            EXPECT_NEAR(ours[corner], expected, 1e-7) << "pair " << i << " corner " << corner;
            EXPECT_NEAR(a.grad()[static_cast<std::int64_t>(i)][static_cast<std::int64_t>(corner)].item<double>(),
                        expected, 1e-7)
                << "pair " << i << " corner " << corner;
        }
    }
}

}  // namespace
}  // namespace lockstep::trainer
