#include "trainer/optimizers/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"

namespace lockstep::trainer {
namespace {

template <typename T>
std::span<T> elements(const at::Tensor& tensor) {
    return {tensor.mutable_data_ptr<T>(), static_cast<std::size_t>(tensor.numel())};
}

/// In FP64, in a fixed order that fills the vector unit.
template <typename T>
double sum_of_squares(std::span<const T> values) {
    std::array<double, 16> lanes{};
    std::size_t i = 0;
    for (; i + lanes.size() <= values.size(); i += lanes.size()) {
        for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
            const auto value = static_cast<double>(values[i + lane]);
            lanes[lane] += value * value;
        }
    }
    double sum = 0;
    for (double lane : lanes) {
        sum += lane;
    }
    for (; i < values.size(); ++i) {
        sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    return sum;
}

}  // namespace

Optimizer::Optimizer(const comm::FlatLayout& layout, const comm::FlatTensors& gradients,
                     std::span<const at::Tensor> parameters, std::vector<ParameterGroup> groups,
                     std::unique_ptr<comm::UpdateRule> rule, OptimizerOptions options)
    : layout_(layout),
      gradients_(gradients),
      groups_(std::move(groups)),
      rule_(std::move(rule)),
      options_(options),
      parameters_(layout),
      average_(layout) {
    LOCKSTEP_CHECK_EQ(parameters.size(), layout_.entries().size());
    LOCKSTEP_CHECK_EQ(groups_.size(), layout_.entries().size());
    parameters_.adopt(parameters);
    for (std::size_t i = 0; i < layout_.segments().size(); ++i) {
        average_.segment(i).copy_(parameters_.segment(i));
    }
    for (std::size_t i = 0; i < rule_->state_names().size(); ++i) {
        state_.emplace_back(layout_);
    }
}

double Optimizer::squared_norm(std::span<const double> divisor_of_head) const {
    double sum = 0;
    for (std::size_t i = 0; i < layout_.segments().size(); ++i) {
        const auto& segment = layout_.segments()[i];
        const double squares = segment.type == comm::DataType::f64
                                   ? sum_of_squares<double>(elements<double>(gradients_.segment(i)))
                                   : sum_of_squares<float>(elements<float>(gradients_.segment(i)));
        const double divisor = divisor_of_head[static_cast<std::size_t>(segment.head)];
        sum += squares / (divisor * divisor);
    }
    return sum;
}

template <typename T>
void Optimizer::update_entry(std::size_t entry, const comm::UpdateScalars& scalars) {
    comm::UpdateSpans<T> spans{elements<T>(parameters_.flat(entry)), elements<T>(gradients_.flat(entry)), {}, {}};
    for (const auto& state : state_) {
        spans.state.push_back(elements<T>(state.flat(entry)));
    }
    if (options_.keep_average) {
        spans.average = elements<T>(average_.flat(entry));
    }
    rule_->update(spans, scalars);
}

double Optimizer::step(const StepRates& rates, std::span<const double> divisor_of_head, double average_decay) {
    const double norm = std::sqrt(squared_norm(divisor_of_head));
    const double clip = options_.clip_norm > 0 && norm > options_.clip_norm ? options_.clip_norm / norm : 1;
    ++steps_;
    for (std::size_t i = 0; i < layout_.entries().size(); ++i) {
        const auto& segment = layout_.segments()[layout_.entries()[i].segment];
        const comm::UpdateScalars scalars{
            .learning_rate = groups_[i] == ParameterGroup::bias ? rates.bias_learning_rate : rates.learning_rate,
            .weight_decay = groups_[i] == ParameterGroup::weight ? options_.weight_decay : 0,
            .momentum = rates.momentum,
            .gradient_factor = clip / divisor_of_head[static_cast<std::size_t>(segment.head)],
            .step = static_cast<std::int64_t>(steps_),
            .average_decay = average_decay};
        if (segment.type == comm::DataType::f64) {
            update_entry<double>(i, scalars);
        } else {
            update_entry<float>(i, scalars);
        }
    }
    return norm;
}

std::uint64_t Optimizer::bytes() const {
    std::uint64_t one = 0;
    for (const auto& segment : layout_.segments()) {
        one += segment.count * comm::size_of(segment.type);
    }
    return one * (3 + state_.size());
}

}  // namespace lockstep::trainer
