#include "trainer/optimizers/update_rules.h"

#include <cmath>

#include "base/error.h"
#include "comm/sum_of_squares.h"

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

/// What an element of the Adam family does with its gradient, at one step.
template <typename T>
struct AdamStep {
    AdamStep(const comm::UpdateScalars& scalars, double beta2, double epsilon)
        : factor(static_cast<T>(scalars.gradient_factor)),
          first_share(share_of<T>(scalars.momentum)),
          second_share(share_of<T>(beta2)),
          first_correction(static_cast<T>(1 / (1 - std::pow(scalars.momentum, static_cast<double>(scalars.step))))),
          root_correction(static_cast<T>(1 / std::sqrt(1 - std::pow(beta2, static_cast<double>(scalars.step))))),
          tiny(static_cast<T>(epsilon)) {}

    /// The moments move on; their bias-corrected quotient is returned.
    T operator()(T gradient, T& first, T& second) const {
        first += first_share * (gradient - first);
        second += second_share * (gradient * gradient - second);
        return first_correction * first / (std::sqrt(second) * root_correction + tiny);
    }

    T factor, first_share, second_share, first_correction, root_correction, tiny;
};

template <typename T>
void adam_pass(const comm::UpdateSpans<T>& spans, const comm::UpdateScalars& scalars, double beta2, double epsilon,
               Decay decay) {
    check_lengths(spans, 2);
    const AdamStep<T> step(scalars, beta2, epsilon);
    const auto rate = static_cast<T>(scalars.learning_rate);
    const bool is_decoupled = decay == Decay::decoupled;
    const auto keep = static_cast<T>(is_decoupled ? 1 - scalars.learning_rate * scalars.weight_decay : 1);
    const auto in_gradient = static_cast<T>(is_decoupled ? 0 : scalars.weight_decay);
    T* __restrict parameters = spans.parameters.data();
    const T* __restrict gradients = spans.gradients.data();
    T* __restrict first = spans.state[0].data();
    T* __restrict second = spans.state[1].data();
    const std::size_t count = spans.parameters.size();
    for (std::size_t i = 0; i < count; ++i) {
        const T gradient = step.factor * gradients[i] + in_gradient * parameters[i];
        parameters[i] = keep * parameters[i] - rate * step(gradient, first[i], second[i]);
    }
    average_pass(spans, scalars.average_decay);
}

template <typename T>
comm::SquaredNorms lars_norms(const comm::UpdateSpans<T>& spans, const comm::UpdateScalars& scalars) {
    check_lengths(spans, 1);
    const auto factor = static_cast<T>(scalars.gradient_factor);
    const std::size_t count = spans.parameters.size();
    return {comm::sum_of_squares(count, [&](std::size_t i) { return spans.parameters[i]; }),
            comm::sum_of_squares(count, [&](std::size_t i) { return factor * spans.gradients[i]; })};
}

template <typename T>
void lars_pass(const comm::UpdateSpans<T>& spans, const comm::UpdateScalars& scalars) {
    check_lengths(spans, 1);
    const auto rate = static_cast<T>(scalars.learning_rate * scalars.trust_ratio);
    const auto decay = static_cast<T>(scalars.weight_decay);
    const auto momentum = static_cast<T>(scalars.momentum);
    const auto factor = static_cast<T>(scalars.gradient_factor);
    T* __restrict parameters = spans.parameters.data();
    const T* __restrict gradients = spans.gradients.data();
    T* __restrict velocity = spans.state[0].data();
    const std::size_t count = spans.parameters.size();
    for (std::size_t i = 0; i < count; ++i) {
        velocity[i] = momentum * velocity[i] + rate * (factor * gradients[i] + decay * parameters[i]);
        parameters[i] -= velocity[i];
    }
    average_pass(spans, scalars.average_decay);
}

template <typename T>
comm::SquaredNorms lamb_norms(const comm::UpdateSpans<T>& spans, const comm::UpdateScalars& scalars, double beta2,
                              double epsilon) {
    check_lengths(spans, 2);
    const AdamStep<T> step(scalars, beta2, epsilon);
    const auto decay = static_cast<T>(scalars.weight_decay);
    const std::size_t count = spans.parameters.size();
    return {comm::sum_of_squares(count, [&](std::size_t i) { return spans.parameters[i]; }),
            comm::sum_of_squares(count, [&](std::size_t i) {
                T first = spans.state[0][i];
                T second = spans.state[1][i];
                return step(step.factor * spans.gradients[i], first, second) + decay * spans.parameters[i];
            })};
}

template <typename T>
void lamb_pass(const comm::UpdateSpans<T>& spans, const comm::UpdateScalars& scalars, double beta2, double epsilon) {
    check_lengths(spans, 2);
    const AdamStep<T> step(scalars, beta2, epsilon);
    const auto rate = static_cast<T>(scalars.learning_rate * scalars.trust_ratio);
    const auto decay = static_cast<T>(scalars.weight_decay);
    T* __restrict parameters = spans.parameters.data();
    const T* __restrict gradients = spans.gradients.data();
    T* __restrict first = spans.state[0].data();
    T* __restrict second = spans.state[1].data();
    const std::size_t count = spans.parameters.size();
    for (std::size_t i = 0; i < count; ++i) {
        const T direction = step(step.factor * gradients[i], first[i], second[i]) + decay * parameters[i];
        parameters[i] -= rate * direction;
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

void AdamRule::update(const comm::UpdateSpans<float>& spans, const comm::UpdateScalars& scalars) const {
    adam_pass(spans, scalars, beta2_, epsilon_, decay_);
}
void AdamRule::update(const comm::UpdateSpans<double>& spans, const comm::UpdateScalars& scalars) const {
    adam_pass(spans, scalars, beta2_, epsilon_, decay_);
}

void LarsRule::update(const comm::UpdateSpans<float>& spans, const comm::UpdateScalars& scalars) const {
    lars_pass(spans, scalars);
}
void LarsRule::update(const comm::UpdateSpans<double>& spans, const comm::UpdateScalars& scalars) const {
    lars_pass(spans, scalars);
}
comm::SquaredNorms LarsRule::squared_norms(const comm::UpdateSpans<float>& spans,
                                           const comm::UpdateScalars& scalars) const {
    return lars_norms(spans, scalars);
}
comm::SquaredNorms LarsRule::squared_norms(const comm::UpdateSpans<double>& spans,
                                           const comm::UpdateScalars& scalars) const {
    return lars_norms(spans, scalars);
}
double LarsRule::trust_ratio(const comm::SquaredNorms& whole, const comm::UpdateScalars& scalars) const {
    const double parameters = std::sqrt(whole.parameters);
    const double direction = std::sqrt(whole.direction) + scalars.weight_decay * parameters;
    return parameters > 0 && direction > 0 ? coefficient_ * parameters / direction : 1;
}

void LambRule::update(const comm::UpdateSpans<float>& spans, const comm::UpdateScalars& scalars) const {
    lamb_pass(spans, scalars, beta2_, epsilon_);
}
void LambRule::update(const comm::UpdateSpans<double>& spans, const comm::UpdateScalars& scalars) const {
    lamb_pass(spans, scalars, beta2_, epsilon_);
}
comm::SquaredNorms LambRule::squared_norms(const comm::UpdateSpans<float>& spans,
                                           const comm::UpdateScalars& scalars) const {
    return lamb_norms(spans, scalars, beta2_, epsilon_);
}
comm::SquaredNorms LambRule::squared_norms(const comm::UpdateSpans<double>& spans,
                                           const comm::UpdateScalars& scalars) const {
    return lamb_norms(spans, scalars, beta2_, epsilon_);
}
double LambRule::trust_ratio(const comm::SquaredNorms& whole, const comm::UpdateScalars& /*scalars*/) const {
    return whole.parameters > 0 && whole.direction > 0 ? std::sqrt(whole.parameters / whole.direction) : 1;
}

std::unique_ptr<comm::UpdateRule> make_update_rule(const Recipe& recipe) {
    const auto& options = recipe.optimizer;
    if (options.name == "adam" || options.name == "adamw") {
        return std::make_unique<AdamRule>(options.name == "adam" ? Decay::in_gradient : Decay::decoupled,
                                          options.beta2);
    }
    if (options.name == "lars") {
        return std::make_unique<LarsRule>(options.trust_coefficient);
    }
    if (options.name == "lamb") {
        return std::make_unique<LambRule>(options.beta2);
    }
    return std::make_unique<SgdRule>();
}

}  // namespace lockstep::trainer
