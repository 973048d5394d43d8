#include "trainer/optimizers/update_rules.h"

#include <cmath>

#include "base/error.h"

namespace lockstep::trainer {
namespace {

template <typename T>
void check_lengths(const comm::UpdateSpans<T>& spans, std::size_t states) {
    const std::size_t count = spans.parameters.size();
    LOCKSTEP_CHECK_EQ(spans.gradients.size(), count);
    LOCKSTEP_CHECK_EQ(spans.state.size(), states);
    for (const auto& state : spans.state) {
        LOCKSTEP_CHECK_EQ(state.size(), count);
    }
    LOCKSTEP_CHECK(spans.average.empty() || spans.average.size() == count);
}

/// The share that a new value gets. Taken from 1 before rounding: in FP32, 1 - 0.9999F is off by 1.7e-4 of itself.
template <typename T>
T share_of(double decay) {
    return static_cast<T>(1 - decay);
}

template <typename T>
void average_pass(const comm::UpdateSpans<T>& spans, double decay) {
    const T* parameters = spans.parameters.data();
    T* average = spans.average.data();
    const T share = share_of<T>(decay);
    const std::size_t count = spans.average.size();
    for (std::size_t i = 0; i < count; ++i) {
        average[i] += share * (parameters[i] - average[i]);
    }
}

template <typename T>
void sgd_pass(const comm::UpdateSpans<T>& spans, const comm::UpdateScalars& scalars) {
    check_lengths(spans, 1);
    const auto rate = static_cast<T>(scalars.learning_rate);
    const auto decay = static_cast<T>(scalars.weight_decay);
    const auto momentum = static_cast<T>(scalars.momentum);
    const auto factor = static_cast<T>(scalars.gradient_factor);
    T* __restrict parameters = spans.parameters.data();
    const T* __restrict gradients = spans.gradients.data();
    T* __restrict velocity = spans.state[0].data();
    const std::size_t count = spans.parameters.size();
    for (std::size_t i = 0; i < count; ++i) {
        const T gradient = factor * gradients[i] + decay * parameters[i];
        velocity[i] = momentum * velocity[i] + gradient;
        parameters[i] -= rate * (gradient + momentum * velocity[i]);
    }
    average_pass(spans, scalars.average_decay);
}

template <typename T>
void adamw_pass(const comm::UpdateSpans<T>& spans, const comm::UpdateScalars& scalars, double beta2, double epsilon) {
    check_lengths(spans, 2);
    const double first_correction = 1 - std::pow(scalars.momentum, static_cast<double>(scalars.step));
    const double second_correction = 1 - std::pow(beta2, static_cast<double>(scalars.step));
    const auto step_size = static_cast<T>(scalars.learning_rate / first_correction);
    const auto keep = static_cast<T>(1 - scalars.learning_rate * scalars.weight_decay);
    const auto root_correction = static_cast<T>(1 / std::sqrt(second_correction));
    const T first_share = share_of<T>(scalars.momentum);
    const T second_share = share_of<T>(beta2);
    const auto tiny = static_cast<T>(epsilon);
    const auto factor = static_cast<T>(scalars.gradient_factor);
    T* __restrict parameters = spans.parameters.data();
    const T* __restrict gradients = spans.gradients.data();
    T* __restrict first = spans.state[0].data();
    T* __restrict second = spans.state[1].data();
    const std::size_t count = spans.parameters.size();
    for (std::size_t i = 0; i < count; ++i) {
        const T gradient = factor * gradients[i];
        first[i] += first_share * (gradient - first[i]);
        second[i] += second_share * (gradient * gradient - second[i]);
        parameters[i] = keep * parameters[i] - step_size * first[i] / (std::sqrt(second[i]) * root_correction + tiny);
    }
    average_pass(spans, scalars.average_decay);
}

}  // namespace

void SgdRule::update(const comm::UpdateSpans<float>& spans, const comm::UpdateScalars& scalars) const {
    sgd_pass(spans, scalars);
}
void SgdRule::update(const comm::UpdateSpans<double>& spans, const comm::UpdateScalars& scalars) const {
    sgd_pass(spans, scalars);
}

void AdamWRule::update(const comm::UpdateSpans<float>& spans, const comm::UpdateScalars& scalars) const {
    adamw_pass(spans, scalars, beta2_, epsilon_);
}
void AdamWRule::update(const comm::UpdateSpans<double>& spans, const comm::UpdateScalars& scalars) const {
    adamw_pass(spans, scalars, beta2_, epsilon_);
}

std::unique_ptr<comm::UpdateRule> make_update_rule(const Recipe& recipe) {
    if (recipe.optimizer.name == "adamw") {
        return std::make_unique<AdamWRule>(recipe.optimizer.beta2);
    }
    return std::make_unique<SgdRule>();
}

}  // namespace lockstep::trainer
