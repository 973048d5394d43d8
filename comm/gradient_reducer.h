#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm {

/// One trainable tensor, and the head whose loss it hears. No parameter hears two heads, so one divisor per head is exact.
struct ReducedParameter {
    std::string name;
    at::Tensor tensor;
    std::int32_t head = 0;
};

/// Undivided sums of one micro-step: for each head a scalar to send backward and its denominator (a count or a target-score
/// sum, on this rank, for this micro-step), plus detached parts for the log.
struct LossSums {
    std::vector<at::Tensor> sums;          ///< one scalar with graph per head; connected to the head's parameters even when zero
    std::vector<at::Tensor> denominators;  ///< one detached scalar per head
    std::vector<at::Tensor> parts;         ///< per head a detached vector of loss parts, as sums, same order as part_names
};

/// Totals over ranks and micro-steps, in FP64.
struct Denominators {
    std::vector<double> per_head;
    std::vector<std::vector<double>> parts;  ///< per head
};

/// Keeps gradients as views into flat buckets (never mixing heads), sends sums backward, and reduces over the ranks after the
/// effective batch's last micro-step. Collective: every rank makes the same calls, also with an empty micro-batch.
class GradientReducer {
  public:
    /// Parameters in model order; buckets go in reverse, as the backward pass does. Sets each parameter's grad to a view with
    /// the parameter's own strides.
    GradientReducer(Communicator& communicator, std::vector<ReducedParameter> parameters, double bucket_mib);
    ~GradientReducer();

    void backward(const LossSums& sums, bool is_last_micro_step);
    /// Waits for every bucket; afterwards gradients hold sums over all ranks and micro-steps. Resets the denominators.
    Denominators finish();
    /// Zeroes the buckets for the next effective batch.
    void zero();

    /// Seconds of the last finish() in which nothing was left to compute.
    double exposed_seconds() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace lockstep::comm
