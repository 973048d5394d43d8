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
    bool adapts = true;          ///< whether trust_ratio may differ from 1; convention: not of biases and norms
    double trust_ratio = 1;      ///< factor of the whole tensor's step
};

/// Sums over a whole tensor, or over a stretch of it.
struct SquaredNorms {
    double parameters = 0;
    double direction = 0;  ///< of the step, before any rate; what it is, the rule says
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
/// that whoever owns a range of the flat memory can update just this range; a rule that adapts by tensor is given, in
/// its scalars' trust_ratio, what follows from the whole tensor, however it was cut.
class UpdateRule {
  public:
    virtual ~UpdateRule() = default;
    virtual std::vector<std::string> state_names() const = 0;
    virtual void update(const UpdateSpans<float>& spans, const UpdateScalars& scalars) const = 0;
    virtual void update(const UpdateSpans<double>& spans, const UpdateScalars& scalars) const = 0;

    /// Whether the next three are to be called before update(), with the same spans and scalars.
    virtual bool adapts_by_tensor() const { return false; }
    /// Changes nothing.
    virtual SquaredNorms squared_norms(const UpdateSpans<float>& spans, const UpdateScalars& scalars) const;
    virtual SquaredNorms squared_norms(const UpdateSpans<double>& spans, const UpdateScalars& scalars) const;
    /// From the sums over the whole tensor.
    virtual double trust_ratio(const SquaredNorms& whole, const UpdateScalars& scalars) const;
};

}  // namespace lockstep::comm
