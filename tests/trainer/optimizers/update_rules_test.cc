#include "trainer/optimizers/update_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace lockstep::trainer {
namespace {

struct Memory {
    std::vector<double> parameters, gradients, first, second, average;
    explicit Memory(std::size_t count) {
        base::Random random(7, base::RandomPurpose::test, 0, 0);
        for (std::size_t i = 0; i < count; ++i) {
            parameters.push_back(random.normal());
            gradients.push_back(random.normal());
        }
        first.resize(count);
        second.resize(count);
        average = parameters;
    }
    comm::UpdateSpans<double> spans(std::size_t states, std::size_t begin, std::size_t end) {
        const auto cut = [&](std::vector<double>& values) {
            return std::span<double>(values).subspan(begin, end - begin);
        };
        comm::UpdateSpans<double> result{cut(parameters), cut(gradients), {}, cut(average)};
        for (auto* state : {&first, &second}) {
            if (result.state.size() < states) {
                result.state.push_back(cut(*state));
            }
        }
        return result;
    }
};

constexpr std::size_t count = 103;

/// Textbook form: v = m v + g, p -= lr (g + m v).
TEST(SgdRule, FollowsNesterovByHand) {
    Memory memory(count);
    std::vector<double> expected = memory.parameters, velocity(count), average = memory.parameters;
    const SgdRule rule;
    for (int step = 1; step <= 4; ++step) {
        const comm::UpdateScalars scalars{0.1, 0.01, 0.9, 0.5, step, 0.7};
        rule.update(memory.spans(1, 0, count), scalars);
        for (std::size_t i = 0; i < count; ++i) {
            const double g = 0.5 * memory.gradients[i] + 0.01 * expected[i];
            velocity[i] = 0.9 * velocity[i] + g;
            expected[i] -= 0.1 * (g + 0.9 * velocity[i]);
            average[i] = 0.7 * average[i] + 0.3 * expected[i];
            EXPECT_NEAR(memory.parameters[i], expected[i], 1e-13) << "step " << step << " element " << i;
            EXPECT_NEAR(memory.average[i], average[i], 1e-13) << "step " << step << " element " << i;
        }
    }
}

/// Algorithm 2 of Loshchilov and Hutter, with explicit bias-corrected moments.
TEST(AdamWRule, FollowsThePaperByHand) {
    Memory memory(count);
    std::vector<double> expected = memory.parameters, m(count), v(count);
    const AdamWRule rule(0.999);
    for (int step = 1; step <= 4; ++step) {
        const comm::UpdateScalars scalars{0.01, 0.1, 0.9, 2.0, step, 0};
        rule.update(memory.spans(2, 0, count), scalars);
        for (std::size_t i = 0; i < count; ++i) {
            const double g = 2.0 * memory.gradients[i];
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.999 * v[i] + 0.001 * g * g;
            const double m_hat = m[i] / (1 - std::pow(0.9, step));
            const double v_hat = v[i] / (1 - std::pow(0.999, step));
            expected[i] -= 0.01 * (m_hat / (std::sqrt(v_hat) + 1e-8) + 0.1 * expected[i]);
            EXPECT_NEAR(memory.parameters[i], expected[i], 1e-12) << "step " << step << " element " << i;
            EXPECT_DOUBLE_EQ(memory.average[i], memory.parameters[i]) << "decay 0 follows the parameters";
        }
    }
}

/// What partitioned optimizers rely on: a range updated by itself gets the same bits as within the whole.
TEST(UpdateRules, RangesAreUpdatedAsInTheWhole) {
    const SgdRule sgd;
    const AdamWRule adamw(0.999);
    for (const comm::UpdateRule* rule :
         {static_cast<const comm::UpdateRule*>(&sgd), static_cast<const comm::UpdateRule*>(&adamw)}) {
        Memory whole(count), parts(count);
        const std::size_t states = rule->state_names().size();
        for (int step = 1; step <= 3; ++step) {
            const comm::UpdateScalars scalars{0.01, 0.1, 0.9, 1.0, step, 0.5};
            rule->update(whole.spans(states, 0, count), scalars);
            for (auto [begin, end] : {std::pair<std::size_t, std::size_t>{0, 1}, {1, 50}, {50, 50}, {50, count}}) {
                rule->update(parts.spans(states, begin, end), scalars);
            }
        }
        EXPECT_EQ(whole.parameters, parts.parameters);
        EXPECT_EQ(whole.average, parts.average);
        EXPECT_EQ(whole.first, parts.first);
    }
}

TEST(UpdateRules, WithoutAverageNothingElseChanges) {
    Memory with(count), without(count);
    const SgdRule rule;
    const comm::UpdateScalars scalars{0.1, 0, 0.9, 1.0, 1, 0.9};
    rule.update(with.spans(1, 0, count), scalars);
    auto spans = without.spans(1, 0, count);
    spans.average = {};
    rule.update(spans, scalars);
    EXPECT_EQ(with.parameters, without.parameters);
}

}  // namespace
}  // namespace lockstep::trainer
