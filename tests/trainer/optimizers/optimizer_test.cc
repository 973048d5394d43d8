#include "trainer/optimizers/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "trainer/optimizers/update_rules.h"

namespace lockstep::trainer {
namespace {

/// One of each group and a second bias, over two heads: whatever is the same for a group differs within a head, and the
/// other way round.
struct Tensor {
    const char* name;
    std::vector<std::int64_t> shape;
    std::int32_t head;
    ParameterGroup group;
};
const std::array<Tensor, 4> tensors = {{
    {"conv.weight", {2, 3, 3, 3}, 0, ParameterGroup::weight},
    {"bn.weight", {5}, 1, ParameterGroup::norm},
    {"bn.bias", {5}, 0, ParameterGroup::bias},
    {"last.bias", {3}, 1, ParameterGroup::bias},
}};

constexpr StepRates rates = {.learning_rate = 0.1, .bias_learning_rate = 0.7, .momentum = 0};
constexpr std::array divisors = {4.0, 0.5};
constexpr double weight_decay = 0.2;

std::vector<double> in_double(const at::Tensor& tensor) {
    const at::Tensor wide = tensor.to(at::kDouble).contiguous();
    return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

/// A network of these tensors with a gradient for each, and its optimizer.
class Training {
  public:
    Training(at::ScalarType type, OptimizerOptions options, std::unique_ptr<comm::UpdateRule> rule)
        : layout_(flat_tensors(type), 64), gradients_(layout_) {
        std::vector<ParameterGroup> groups;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            const auto of_seed = [&](double seed) {
                return at::linspace(1, 2, layout_.entries()[i].count, type).mul(seed).sin();
            };
            parameters.push_back(of_seed(7 + static_cast<double>(i)).view(tensors[i].shape));
            gradients_.flat(i).copy_(of_seed(70 + static_cast<double>(i)));
            groups.push_back(tensors[i].group);
            before.push_back(in_double(parameters[i]));
            gradients.push_back(in_double(gradients_.flat(i)));
        }
        optimizer.emplace(layout_, gradients_, parameters, groups, std::move(rule), options);
    }

    /// Of the gradients divided by their heads' divisors.
    double norm_by_hand() const {
        double squares = 0;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            for (const double gradient : gradients[i]) {
                squares += std::pow(gradient / divisors[static_cast<std::size_t>(tensors[i].head)], 2);
            }
        }
        return std::sqrt(squares);
    }

    std::vector<at::Tensor> parameters;                  // the network's own
    std::vector<std::vector<double>> before, gradients;  // by hand
    std::optional<Optimizer> optimizer;

  private:
    static std::vector<comm::FlatTensor> flat_tensors(at::ScalarType type) {
        std::vector<comm::FlatTensor> flat;
        for (const Tensor& tensor : tensors) {
            std::size_t count = 1;
            for (const std::int64_t size : tensor.shape) {
                count *= static_cast<std::size_t>(size);
            }
            flat.push_back({.name = tensor.name,
                            .count = count,
                            .head = tensor.head,
                            .type = type == at::kDouble ? comm::DataType::f64 : comm::DataType::f32});
        }
        return flat;
    }

    comm::FlatLayout layout_;
    comm::FlatTensors gradients_;
};

class OptimizerTest : public testing::TestWithParam<at::ScalarType> {
  protected:
    double tolerance() const { return GetParam() == at::kDouble ? 1e-14 : 2e-6; }

    /// One step of SGD without momentum, against the arithmetic written out, with the gradient times `clip`.
    void expect_step(Training& training, double clip) const {
        constexpr double average_decay = 0.75;
        const double norm = training.optimizer->step(rates, divisors, average_decay);
        EXPECT_NEAR(norm, training.norm_by_hand(), 100 * tolerance()) << "after the division, before clipping";
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            const bool is_bias = tensors[i].group == ParameterGroup::bias;
            const double rate = is_bias ? rates.bias_learning_rate : rates.learning_rate;
            const double decay = tensors[i].group == ParameterGroup::weight ? weight_decay : 0;
            const double divisor = divisors[static_cast<std::size_t>(tensors[i].head)];
            const auto after = in_double(training.parameters[i]);
            const auto average = in_double(training.optimizer->average().flat(i));
            for (std::size_t k = 0; k < after.size(); ++k) {
                const double p = training.before[i][k];
                const double expected = p - rate * (clip * training.gradients[i][k] / divisor + decay * p);
                const std::string where = base::str(tensors[i].name, "[", k, "]");
                ASSERT_NEAR(after[k], expected, tolerance()) << where;
                ASSERT_NEAR(average[k], average_decay * p + (1 - average_decay) * expected, tolerance())
                    << "average of " << where;
            }
        }
    }
};

INSTANTIATE_TEST_SUITE_P(Types, OptimizerTest, testing::Values(at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(info.param == at::kDouble ? "fp64" : "fp32"); });

TEST_P(OptimizerTest, WithoutClippingEachGroupHasItsRateAndDecayAndEachHeadItsDivisor) {
    Training training(GetParam(), {.weight_decay = weight_decay, .clip_norm = 0}, std::make_unique<SgdRule>());
    expect_step(training, 1);
}

TEST_P(OptimizerTest, ANormAboveTheLimitIsBroughtDownToIt) {
    Training training(GetParam(), {.weight_decay = weight_decay, .clip_norm = 1.5}, std::make_unique<SgdRule>());
    ASSERT_GT(training.norm_by_hand(), 3);
    expect_step(training, 1.5 / training.norm_by_hand());
}

TEST_P(OptimizerTest, ANormBelowTheLimitIsLeftAlone) {
    Training training(GetParam(), {.weight_decay = weight_decay, .clip_norm = 1000}, std::make_unique<SgdRule>());
    expect_step(training, 1);
}

TEST_P(OptimizerTest, WithoutAverageItStaysWhereItBegan) {
    Training training(GetParam(), {.keep_average = false}, std::make_unique<SgdRule>());
    training.optimizer->step(rates, divisors, 0.75);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_EQ(in_double(training.optimizer->average().flat(i)), training.before[i]) << tensors[i].name;
        EXPECT_NE(in_double(training.parameters[i]), training.before[i]) << tensors[i].name;
    }
}

/// Notes what it is told.
class RecordingRule final : public comm::UpdateRule {
  public:
    explicit RecordingRule(std::vector<comm::UpdateScalars>& calls) : calls_(calls) {}
    std::vector<std::string> state_names() const override { return {}; }
    void update(const comm::UpdateSpans<float>& /*spans*/, const comm::UpdateScalars& scalars) const override {
        calls_.push_back(scalars);
    }
    void update(const comm::UpdateSpans<double>& /*spans*/, const comm::UpdateScalars& scalars) const override {
        calls_.push_back(scalars);
    }

  private:
    std::vector<comm::UpdateScalars>& calls_;
};

TEST_P(OptimizerTest, StepsAreCountedFromOneAndGoOnAfterAResume) {
    std::vector<comm::UpdateScalars> calls;
    Training training(GetParam(), {}, std::make_unique<RecordingRule>(calls));
    training.optimizer->step({.learning_rate = 0.1, .bias_learning_rate = 0.1, .momentum = 0.8}, divisors, 0);
    training.optimizer->set_steps(40);
    training.optimizer->step({.learning_rate = 0.1, .bias_learning_rate = 0.1, .momentum = 0.9}, divisors, 0);
    EXPECT_EQ(training.optimizer->steps(), 41U);
    ASSERT_EQ(calls.size(), 2 * tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const auto &first = calls[i], &later = calls[tensors.size() + i];
        EXPECT_EQ(first.step, 1) << tensors[i].name;
        EXPECT_EQ(first.momentum, 0.8) << tensors[i].name;
        EXPECT_EQ(later.step, 41) << tensors[i].name;
        EXPECT_EQ(later.momentum, 0.9) << tensors[i].name;
    }
}

TEST_P(OptimizerTest, BytesAreOfParametersGradientsStateAndAverage) {
    Training training(GetParam(), {}, std::make_unique<AdamWRule>(0.999));
    std::uint64_t bytes = 0;
    for (auto* memory : {&training.optimizer->parameters(), &training.optimizer->average()}) {
        for (const at::Tensor& segment : memory->segments()) {
            bytes += segment.nbytes();
        }
    }
    EXPECT_EQ(training.optimizer->bytes(), bytes / 2 * 5);
}

}  // namespace
}  // namespace lockstep::trainer
