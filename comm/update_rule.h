#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::comm {

/// The numbers of one step that an update rule needs, for a stretch of parameters of one group.
struct UpdateScalars {
    double learning_rate = 0;
    double weight_decay = 0;
    double momentum = 0;         ///< beta1 for the Adam family
    double gradient_factor = 1;  ///< clipping coefficient / divisor: gradients arrive as undivided sums
    std::int64_t step = 1;       ///< counted from 1
    double average_decay = 0;    ///< of the exponential moving average
};

/// One stretch of flat memory: parameters, their gradients, the rule's state and (possibly empty) the moving average,
/// all of one length and in one order.
template <typename T>
struct UpdateSpans {
    std::span<T> parameters;
    std::span<const T> gradients;
    std::vector<std::span<T>> state;  ///< one for each of UpdateRule::state_names()
    std::span<T> average;             ///< empty: no moving average is kept
};

/// The arithmetic of an optimizer without its memory: divide, clip, update and average in one pass. Element-wise, so
/// that whoever owns a range of the flat memory can update just this range.
class UpdateRule {
  public:
    virtual ~UpdateRule() = default;
    virtual std::vector<std::string> state_names() const = 0;
    virtual void update(const UpdateSpans<float>& spans, const UpdateScalars& scalars) const = 0;
    virtual void update(const UpdateSpans<double>& spans, const UpdateScalars& scalars) const = 0;
};

}  // namespace lockstep::comm
