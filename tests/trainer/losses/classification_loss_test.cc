#include "trainer/losses/classification_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace lockstep::trainer {
namespace {

at::Tensor example_logits(at::ScalarType type = at::kDouble) {
    return at::tensor({2.0, -1.0, 0.5, 0.0, 0.25, -3.0, 1.0, 1.0, 1.0, -2.0, 4.0, 0.0}, at::kDouble)
        .view({4, 3})
        .to(type);
}

at::Tensor example_labels() {
    return at::tensor({std::int64_t{0}, std::int64_t{2}, std::int64_t{1}, std::int64_t{1}}, at::kLong);
}

/// Sum over the samples of the cross-entropy against the smoothed distribution, term by term.
double plain_sum(const at::Tensor& logits, const at::Tensor& labels, double smoothing) {
    double sum = 0;
    const std::int64_t classes = logits.size(1);
    for (std::int64_t i = 0; i < logits.size(0); ++i) {
        double partition = 0;
        for (std::int64_t c = 0; c < classes; ++c) {
            partition += std::exp(logits[i][c].item<double>());
        }
        for (std::int64_t c = 0; c < classes; ++c) {
            const double wanted =
                smoothing / static_cast<double>(classes) + (labels[i].item<std::int64_t>() == c ? 1 - smoothing : 0.0);
            sum -= wanted * (logits[i][c].item<double>() - std::log(partition));
        }
    }
    return sum;
}

TEST(ClassificationLoss, IsTheUndividedSumOfThePlainFormula) {
    for (const double smoothing : {0.0, 0.1, 0.5}) {
        const comm::LossSums sums = ClassificationLoss(smoothing)(example_logits(), example_labels());
        ASSERT_EQ(sums.sums.size(), 1u);
        EXPECT_NEAR(sums.sums[0].item<double>(), plain_sum(example_logits(), example_labels(), smoothing), 1e-12)
            << "smoothing " << smoothing;
        EXPECT_EQ(sums.denominators[0].item<double>(), 4);
        EXPECT_EQ(sums.parts[0].sizes(), (std::vector<std::int64_t>{1}));
        EXPECT_EQ(sums.parts[0][0].item<double>(), sums.sums[0].item<double>());
        EXPECT_FALSE(sums.parts[0].requires_grad());
    }
}

TEST(ClassificationLoss, EqualLogitsCostTheLogarithmOfTheClasses) {
    const auto sums = ClassificationLoss(0.1)(at::zeros({4, 10}, at::kDouble), example_labels());
    EXPECT_NEAR(sums.sums[0].item<double>(), 4 * std::log(10.0), 1e-12);
}

TEST(ClassificationLoss, GradientIsThatOfCentralDifferences) {
    at::Tensor logits = example_logits().set_requires_grad(true);
    ClassificationLoss(0.1)(logits, example_labels()).sums[0].backward();
    constexpr double step = 1e-5;
    for (std::int64_t i = 0; i < logits.size(0); ++i) {
        for (std::int64_t c = 0; c < logits.size(1); ++c) {
            const auto moved = [&](double by) {
                at::Tensor copy = example_logits();
                copy[i][c] += by;
                return plain_sum(copy, example_labels(), 0.1);
            };
            EXPECT_NEAR(logits.grad()[i][c].item<double>(), (moved(step) - moved(-step)) / (2 * step), 1e-8)
                << "sample " << i << " class " << c;
        }
    }
}

TEST(ClassificationLoss, SumsOfPartsMakeTheWhole) {
    const ClassificationLoss loss(0.1);
    const auto sum = [&](std::int64_t begin, std::int64_t end) {
        return loss(example_logits().slice(0, begin, end), example_labels().slice(0, begin, end))
            .sums[0]
            .item<double>();
    };
    EXPECT_NEAR(sum(0, 4), sum(0, 3) + sum(3, 4), 1e-12);
}

TEST(ClassificationLoss, NoSamplesGiveZeroWithGraph) {
    at::Tensor logits = at::zeros({0, 3}, at::kFloat).set_requires_grad(true);
    const auto sums = ClassificationLoss(0.1)(logits, at::zeros({0}, at::kLong));
    EXPECT_EQ(sums.sums[0].item<double>(), 0);
    EXPECT_EQ(sums.denominators[0].item<double>(), 0);
    sums.sums[0].backward();
    EXPECT_TRUE(logits.grad().defined());
}

TEST(ClassificationLoss, SixteenBitLogitsAreComputedInSingle) {
    const auto sums = ClassificationLoss(0.1)(example_logits(at::kBFloat16), example_labels());
    EXPECT_EQ(sums.sums[0].scalar_type(), at::kFloat);
    EXPECT_NEAR(sums.sums[0].item<double>(), plain_sum(example_logits(), example_labels(), 0.1), 1e-5);
}

TEST(ClassificationLoss, RefusesASmoothingOutsideOfItsRange) {
    EXPECT_THROW(ClassificationLoss(-0.1), base::InternalError);
    EXPECT_THROW(ClassificationLoss(1.0), base::InternalError);
}

}  // namespace
}  // namespace lockstep::trainer
