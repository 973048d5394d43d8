#include "comm/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/resources.h"
#include "base/text.h"

namespace lockstep::comm {

namespace {

FlatLayout layout_of(const std::vector<ReducedParameter>& parameters, double bucket_mib) {
    std::vector<FlatTensor> tensors;
    std::set<std::string> names;
    std::map<const void*, std::string> names_by_memory;
    for (const ReducedParameter& parameter : parameters) {
        const at::Tensor& tensor = parameter.tensor;
        const bool is_floating = tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
        if (!tensor.is_leaf() || !tensor.requires_grad() || !is_floating || !tensor.is_cpu() ||
            !tensor.is_non_overlapping_and_dense()) {
            throw base::Error(base::str("parameter ", parameter.name,
                                        " can't be reduced: it must be a dense FP32 or FP64 leaf on ",
                                        "the CPU that requires a gradient; leave frozen parameters out"));
        }
        if (!names.insert(parameter.name).second) {
            throw base::Error(base::str("two parameters are called ", parameter.name));
        }
        const auto [other, is_new] = names_by_memory.try_emplace(tensor.data_ptr(), parameter.name);
        if (tensor.numel() > 0 && !is_new) {
            throw base::Error(base::str("parameters ", other->second, " and ", parameter.name,
                                        " share memory; a shared parameter is given once"));
        }
        tensors.push_back(
            {parameter.name, static_cast<std::size_t>(tensor.numel()), parameter.head, data_type_of(tensor)});
    }
    LOCKSTEP_CHECK(bucket_mib > 0, bucket_mib, " MiB");
    return {tensors, static_cast<std::size_t>(bucket_mib * (1 << 20))};
}

/// Adds in FP64, on the value's own device, so that nothing is read to the host before finish().
void accumulate(at::Tensor& total, const at::Tensor& value) {
    if (total.defined()) {
        LOCKSTEP_CHECK_EQ(total.sizes(), value.sizes(), "losses change shape between micro-steps");
        total.add_(value);
    } else {
        total = value.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    }
}

}  // namespace

struct GradientReducer::State {
    Communicator& communicator;
    std::vector<ReducedParameter> parameters;
    FlatLayout layout;
    FlatTensors gradients;
    std::vector<at::Tensor> views;  ///< by parameter

    bool is_complete = false;  ///< the last micro-step was sent backward
    std::vector<at::Tensor> denominators;
    std::vector<at::Tensor> parts;
    double exposed_seconds = 0;

    State(Communicator& ranks, std::vector<ReducedParameter> given, double bucket_mib)
        : communicator(ranks),
          parameters(std::move(given)),
          layout(layout_of(parameters, bucket_mib)),
          gradients(layout) {
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            views.push_back(gradients.view(i, parameters[i].tensor));
            parameters[i].tensor.mutable_grad() = views[i];
        }
    }

    /// Autograd adds in place, but a program may have replaced or dropped a gradient (zero_grad, a hook, a graph of the
    /// gradient); then ours is stale.
    void take_back_gradients() {
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            at::Tensor& gradient = parameters[i].tensor.mutable_grad();
            if (!gradient.defined()) {
                views[i].zero_();
            } else if (gradient.data_ptr() != views[i].data_ptr() || gradient.strides() != views[i].strides()) {
                views[i].copy_(gradient);
            }
            gradient = views[i];
        }
    }

    /// One small reduction: every head's denominator and parts.
    Denominators reduce_totals() {
        std::vector<double> totals;
        for (std::size_t head = 0; head < denominators.size(); ++head) {
            totals.push_back(denominators[head].item<double>());
            const at::Tensor on_host = parts[head].cpu().contiguous();
            totals.insert(totals.end(), on_host.const_data_ptr<double>(),
                          on_host.const_data_ptr<double>() + on_host.numel());
        }
        communicator.all_reduce(Buffer::of(std::span(totals)), ReduceOp::sum, "denominators");

        Denominators result;
        auto next = totals.begin();
        for (const at::Tensor& head_parts : parts) {
            result.per_head.push_back(*next++);
            result.parts.emplace_back(next, next + head_parts.numel());
            next += head_parts.numel();
        }
        return result;
    }
};

GradientReducer::GradientReducer(Communicator& communicator, std::vector<ReducedParameter> parameters,
                                 double bucket_mib)
    : state_(std::make_unique<State>(communicator, std::move(parameters), bucket_mib)) {}

GradientReducer::~GradientReducer() = default;

void GradientReducer::backward(const LossSums& sums, bool is_last_micro_step) {
    LOCKSTEP_CHECK(!state_->is_complete, "finish() comes after the last micro-step");
    const std::size_t heads = sums.sums.size();
    LOCKSTEP_CHECK_EQ(sums.denominators.size(), heads);
    LOCKSTEP_CHECK_EQ(sums.parts.size(), heads);
    LOCKSTEP_CHECK(state_->denominators.empty() || state_->denominators.size() == heads, heads, " heads");

    std::vector<at::Tensor> roots;
    std::ranges::copy_if(sums.sums, std::back_inserter(roots),
                         [](const at::Tensor& sum) { return sum.defined() && sum.requires_grad(); });
    if (!roots.empty()) {
        torch::autograd::backward(roots);
    }

    const at::NoGradGuard no_grad;
    state_->denominators.resize(heads);
    state_->parts.resize(heads);
    for (std::size_t head = 0; head < heads; ++head) {
        accumulate(state_->denominators[head], sums.denominators[head]);
        accumulate(state_->parts[head], sums.parts[head]);
    }
    state_->is_complete = is_last_micro_step;
}

Denominators GradientReducer::finish() {
    LOCKSTEP_CHECK(state_->is_complete, "finish() before the last micro-step");
    const at::NoGradGuard no_grad;
    state_->take_back_gradients();

    const double start = base::monotonic_seconds();
    for (std::size_t i = 0; i < state_->layout.buckets().size(); ++i) {
        state_->communicator.all_reduce(state_->gradients.buffer(state_->layout.buckets()[i]), ReduceOp::sum,
                                        base::str("bucket ", i));
    }
    Denominators totals = state_->reduce_totals();
    state_->exposed_seconds = base::monotonic_seconds() - start;

    state_->denominators.clear();
    state_->parts.clear();
    state_->is_complete = false;
    return totals;
}

void GradientReducer::zero() {
    state_->gradients.zero();
}

const FlatLayout& GradientReducer::layout() const {
    return state_->layout;
}

const FlatTensors& GradientReducer::gradients() const {
    return state_->gradients;
}

double GradientReducer::exposed_seconds() const {
    return state_->exposed_seconds;
}

}  // namespace lockstep::comm
