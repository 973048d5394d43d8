#include "trainer/optimizers/update_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace lockstep::trainer {
namespace {

constexpr std::size_t count = 103;

/// Flat memory of type T; what is expected of it is worked out in double.
template <typename T>
struct Memory {
    std::vector<T> parameters, gradients, first, second, average;

    Memory() : first(count), second(count) {
        base::Random random(7, base::RandomPurpose::test, 0, 0);
        for (std::size_t i = 0; i < count; ++i) {
            parameters.push_back(static_cast<T>(random.normal()));
            gradients.push_back(static_cast<T>(random.normal()));
        }
        average = parameters;
    }
    comm::UpdateSpans<T> spans(std::size_t states, std::size_t begin = 0, std::size_t end = count) {
        const auto cut = [&](std::vector<T>& values) { return std::span<T>(values).subspan(begin, end - begin); };
        comm::UpdateSpans<T> result{cut(parameters), cut(gradients), {}, cut(average)};
        for (auto* state : {&first, &second}) {
            if (result.state.size() < states) {
                result.state.push_back(cut(*state));
            }
        }
        return result;
    }
};

std::vector<double> in_double(const auto& values) {
    return {values.begin(), values.end()};
}

template <typename T>
class UpdateRuleTest : public testing::Test {
  protected:
    /// Of values near 1 after a few operations.
    static constexpr double tolerance = 50 * static_cast<double>(std::numeric_limits<T>::epsilon());
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(UpdateRuleTest, Types);

/// Textbook form: v = m v + g, p -= lr (g + m v).
TYPED_TEST(UpdateRuleTest, SgdFollowsNesterovByHand) {
    Memory<TypeParam> memory;
    const auto gradients = in_double(memory.gradients);
    auto expected = in_double(memory.parameters), average = expected;
    std::vector<double> velocity(count);
    const SgdRule rule;
    for (int step = 1; step <= 4; ++step) {
        const comm::UpdateScalars scalars{0.1, 0.01, 0.9, 0.5, step, 0.7};
        rule.update(memory.spans(1), scalars);
        for (std::size_t i = 0; i < count; ++i) {
            const double g = 0.5 * gradients[i] + 0.01 * expected[i];
            velocity[i] = 0.9 * velocity[i] + g;
            expected[i] -= 0.1 * (g + 0.9 * velocity[i]);
            average[i] = 0.7 * average[i] + 0.3 * expected[i];
            EXPECT_NEAR(memory.parameters[i], expected[i], this->tolerance) << "step " << step << " element " << i;
            EXPECT_NEAR(memory.average[i], average[i], this->tolerance) << "step " << step << " element " << i;
        }
    }
}

/// Algorithm 2 of Loshchilov and Hutter, with explicit bias-corrected moments.
TYPED_TEST(UpdateRuleTest, AdamWFollowsThePaperByHand) {
    for (const double beta2 : {0.999, 0.999999}) {
        Memory<TypeParam> memory;
        const auto gradients = in_double(memory.gradients);
        auto expected = in_double(memory.parameters);
        std::vector<double> m(count), v(count);
        const AdamRule rule(Decay::decoupled, beta2);
        for (int step = 1; step <= 4; ++step) {
            const comm::UpdateScalars scalars{0.01, 0.1, 0.9, 2.0, step, 0};
            rule.update(memory.spans(2), scalars);
            for (std::size_t i = 0; i < count; ++i) {
                const double g = 2.0 * gradients[i];
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = beta2 * v[i] + (1 - beta2) * g * g;
                const double m_hat = m[i] / (1 - std::pow(0.9, step));
                const double v_hat = v[i] / (1 - std::pow(beta2, step));
                expected[i] -= 0.01 * (m_hat / (std::sqrt(v_hat) + 1e-8) + 0.1 * expected[i]);
                EXPECT_NEAR(memory.parameters[i], expected[i], this->tolerance)
                    << "beta2 " << beta2 << " step " << step << " element " << i;
                EXPECT_NEAR(memory.average[i], memory.parameters[i], this->tolerance)
                    << "decay 0 follows the parameters";
            }
        }
    }
}

/// Kingma and Ba's algorithm 1, with the decay as L2 regularisation.
TYPED_TEST(UpdateRuleTest, AdamPutsTheDecayIntoTheGradient) {
    Memory<TypeParam> memory;
    const auto gradients = in_double(memory.gradients);
    auto expected = in_double(memory.parameters);
    std::vector<double> m(count), v(count);
    const AdamRule rule(Decay::in_gradient, 0.99);
    for (int step = 1; step <= 4; ++step) {
        rule.update(memory.spans(2), {0.01, 0.1, 0.9, 2.0, step, 0});
        for (std::size_t i = 0; i < count; ++i) {
            const double g = 2.0 * gradients[i] + 0.1 * expected[i];
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.99 * v[i] + 0.01 * g * g;
            expected[i] -=
                0.01 * (m[i] / (1 - std::pow(0.9, step))) / (std::sqrt(v[i] / (1 - std::pow(0.99, step))) + 1e-8);
            EXPECT_NEAR(memory.parameters[i], expected[i], this->tolerance) << "step " << step << " element " << i;
        }
    }
}

double norm(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) {
        sum += value * value;
    }
    return std::sqrt(sum);
}

/// As PartitionedOptimizer does it: norms over the whole tensor first, from two stretches.
template <typename T>
void adapt_and_update(const comm::UpdateRule& rule, Memory<T>& memory, comm::UpdateScalars scalars) {
    const std::size_t states = rule.state_names().size();
    const auto left = rule.squared_norms(memory.spans(states, 0, 41), scalars);
    const auto right = rule.squared_norms(memory.spans(states, 41), scalars);
    scalars.trust_ratio =
        rule.trust_ratio({left.parameters + right.parameters, left.direction + right.direction}, scalars);
    rule.update(memory.spans(states), scalars);
}

/// Algorithm 1 of You, Gitman and Ginsburg.
TYPED_TEST(UpdateRuleTest, LarsFollowsThePaperByHand) {
    Memory<TypeParam> memory;
    auto gradients = in_double(memory.gradients);
    for (double& gradient : gradients) {
        gradient *= 0.5;
    }
    auto expected = in_double(memory.parameters);
    std::vector<double> velocity(count);
    const LarsRule rule(0.02);
    for (int step = 1; step <= 4; ++step) {
        adapt_and_update(rule, memory, {0.5, 0.01, 0.9, 0.5, step, 0});
        const double local = 0.02 * norm(expected) / (norm(gradients) + 0.01 * norm(expected));
        for (std::size_t i = 0; i < count; ++i) {
            velocity[i] = 0.9 * velocity[i] + 0.5 * local * (gradients[i] + 0.01 * expected[i]);
            expected[i] -= velocity[i];
            EXPECT_NEAR(memory.parameters[i], expected[i], this->tolerance) << "step " << step << " element " << i;
        }
    }
}

/// Algorithm 2 of You et al.
TYPED_TEST(UpdateRuleTest, LambFollowsThePaperByHand) {
    Memory<TypeParam> memory;
    const auto gradients = in_double(memory.gradients);
    auto expected = in_double(memory.parameters);
    std::vector<double> m(count), v(count), direction(count);
    const LambRule rule(0.99);
    for (int step = 1; step <= 4; ++step) {
        adapt_and_update(rule, memory, {0.1, 0.01, 0.9, 2.0, step, 0});
        for (std::size_t i = 0; i < count; ++i) {
            const double g = 2.0 * gradients[i];
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.99 * v[i] + 0.01 * g * g;
            direction[i] = (m[i] / (1 - std::pow(0.9, step))) / (std::sqrt(v[i] / (1 - std::pow(0.99, step))) + 1e-6) +
                           0.01 * expected[i];
        }
        const double ratio = norm(expected) / norm(direction);
        for (std::size_t i = 0; i < count; ++i) {
            expected[i] -= 0.1 * ratio * direction[i];
            EXPECT_NEAR(memory.parameters[i], expected[i], this->tolerance) << "step " << step << " element " << i;
        }
    }
}

TYPED_TEST(UpdateRuleTest, TensorsOfZeroesTakeTheGlobalRate) {
    const comm::UpdateScalars scalars{0.1, 0.01, 0.9, 1.0, 1, 0};
    EXPECT_EQ(LarsRule(0.001).trust_ratio({0, 1}, scalars), 1);
    EXPECT_EQ(LarsRule(0.001).trust_ratio({0, 0}, scalars), 1);
    EXPECT_EQ(LambRule(0.99).trust_ratio({0, 1}, scalars), 1);
    EXPECT_EQ(LambRule(0.99).trust_ratio({1, 0}, scalars), 1);
}

/// From zero, one step leaves just the shares that are taken of the new values. Where a decay is rounded to FP32 before
/// it is taken from 1, the share is off by 1.7e-4 of itself at 0.9999, and by a fifth at 1 - 1e-7.
TYPED_TEST(UpdateRuleTest, SharesAreExactForDecaysNearOne) {
    const double relative = 4 * static_cast<double>(std::numeric_limits<TypeParam>::epsilon());
    for (const double decay : {0.0, 0.5, 0.999, 0.9999, 0.999999, 1 - 1e-7}) {
        const double share = 1 - decay;
        Memory<TypeParam> memory;
        memory.average.assign(count, 0);
        const auto gradients = in_double(memory.gradients);
        AdamRule(Decay::decoupled, decay)
            .update(memory.spans(2), {.learning_rate = 0.01, .momentum = decay, .average_decay = decay});
        for (std::size_t i = 0; i < count; ++i) {
            const std::string where = "decay " + std::to_string(decay) + " element " + std::to_string(i);
            const double g = gradients[i], p = memory.parameters[i];
            EXPECT_NEAR(memory.first[i] / (share * g), 1, relative) << where;
            EXPECT_NEAR(memory.second[i] / (share * g * g), 1, relative) << where;
            EXPECT_NEAR(memory.average[i] / (share * p), 1, relative) << where;
        }
    }
}

/// What partitioned optimizers rely on: a range updated by itself gets the same bits as within the whole.
TYPED_TEST(UpdateRuleTest, RangesAreUpdatedAsInTheWhole) {
    const SgdRule sgd;
    const AdamRule adamw(Decay::decoupled, 0.999);
    for (const comm::UpdateRule* rule :
         {static_cast<const comm::UpdateRule*>(&sgd), static_cast<const comm::UpdateRule*>(&adamw)}) {
        Memory<TypeParam> whole, parts;
        const std::size_t states = rule->state_names().size();
        for (int step = 1; step <= 3; ++step) {
            const comm::UpdateScalars scalars{0.01, 0.1, 0.9, 1.0, step, 0.5};
            rule->update(whole.spans(states), scalars);
            for (auto [begin, end] : {std::pair<std::size_t, std::size_t>{0, 1}, {1, 50}, {50, 50}, {50, count}}) {
                rule->update(parts.spans(states, begin, end), scalars);
            }
        }
        EXPECT_EQ(whole.parameters, parts.parameters);
        EXPECT_EQ(whole.average, parts.average);
        EXPECT_EQ(whole.first, parts.first);
        EXPECT_EQ(whole.second, parts.second);
    }
}

TYPED_TEST(UpdateRuleTest, WithoutAverageNothingElseChanges) {
    Memory<TypeParam> with, without;
    const SgdRule rule;
    const comm::UpdateScalars scalars{0.1, 0, 0.9, 1.0, 1, 0.9};
    rule.update(with.spans(1), scalars);
    auto spans = without.spans(1);
    spans.average = {};
    rule.update(spans, scalars);
    EXPECT_EQ(with.parameters, without.parameters);
}

}  // namespace
}  // namespace lockstep::trainer
