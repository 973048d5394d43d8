#include "trainer/models/fused_batch_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include "trainer/models/element_type.h"

namespace lockstep::trainer {

namespace {

/// The tensor itself where its channels lie together and its cells at equal distances, as in channels_last or in a
/// slice of the channels of such a map; else a copy in channels_last.
at::Tensor as_rows(const at::Tensor& x) {
    std::int64_t expected = x.size(1);
    bool rows = x.size(1) == 1 || x.stride(1) == 1;
    bool first = true;
    for (const std::int64_t dimension : {3, 2, 0}) {
        if (x.size(dimension) == 1) {
            continue;
        }
        rows = rows && (first ? x.stride(dimension) >= expected : x.stride(dimension) == expected);
        expected = x.stride(dimension) * x.size(dimension);
        first = false;
    }
    return rows ? x : x.contiguous(at::MemoryFormat::ChannelsLast);
}

/// Of a tensor that as_rows gave.
std::int64_t row_stride(const at::Tensor& x) {
    for (const std::int64_t dimension : {3, 2, 0}) {
        if (x.size(dimension) > 1) {
            return x.stride(dimension);
        }
    }
    return x.size(1);
}

template <typename Element>
ChannelRows<const Element> rows_of(const at::Tensor& x) {
    return {x.const_data_ptr<Element>(), x.size(0) * x.size(2) * x.size(3), x.size(1), row_stride(x)};
}

template <typename Element>
ChannelRows<Element> writable_rows_of(at::Tensor& x) {
    return {x.mutable_data_ptr<Element>(), x.size(0) * x.size(2) * x.size(3), x.size(1), row_stride(x)};
}

template <typename Element>
ChannelAffine<ComputeType<Element>> affine_of(const at::Tensor& mean, const at::Tensor& scale, const at::Tensor& bias,
                                              Activation activation) {
    using Compute = ComputeType<Element>;
    return {mean.const_data_ptr<Compute>(), scale.const_data_ptr<Compute>(), bias.const_data_ptr<Compute>(),
            activation};
}

at::Tensor empty_map_like(const at::Tensor& x) {
    return at::empty(x.sizes(), x.options(), at::MemoryFormat::ChannelsLast);
}

/// Autograd keeps it from the forward to the backward pass.
struct KeptSum : torch::CustomClassHolder {
    explicit KeptSum(SumOverRanks sum) : call(std::move(sum)) {}
    SumOverRanks call;
};

class FusedBatchNorm : public torch::autograd::Function<FusedBatchNorm> {
  public:
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                              const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& mean,
                              const at::Tensor& inverse_deviation, double cells, std::int64_t activation,
                              const SumOverRanks& sum) {
        const at::Tensor x = as_rows(input);
        at::Tensor scale = at::empty_like(mean);
        at::Tensor y = empty_map_like(x);
        with_element_type(x.scalar_type(), [&]<typename Element>(Element) {
            using Compute = ComputeType<Element>;
            std::transform(weight.const_data_ptr<Compute>(), weight.const_data_ptr<Compute>() + weight.numel(),
                           inverse_deviation.const_data_ptr<Compute>(), scale.mutable_data_ptr<Compute>(),
                           std::multiplies<>());
            affine_activation(rows_of<Element>(x),
                              affine_of<Element>(mean, scale, bias, static_cast<Activation>(activation)),
                              writable_rows_of<Element>(y));
        });
        context->save_for_backward({x, mean, inverse_deviation, scale, bias});
        context->saved_data["cells"] = cells;
        context->saved_data["activation"] = activation;
        if (sum && cells > 0) {
            context->saved_data["sum"] = at::IValue::make_capsule(c10::make_intrusive<KeptSum>(sum));
        }
        return y;
    }

    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   const torch::autograd::variable_list& gradients) {
        const torch::autograd::variable_list saved = context->get_saved_variables();
        const at::Tensor &x = saved[0], &mean = saved[1], &inverse_deviation = saved[2], &scale = saved[3],
                         &bias = saved[4];
        const double cells = context->saved_data["cells"].toDouble();
        const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
        const at::Tensor grad_y = as_rows(gradients[0].to(x.scalar_type()));

        at::Tensor grad_weight = at::empty_like(mean), grad_bias = at::empty_like(mean);
        at::Tensor grad_x = empty_map_like(x);
        with_element_type(x.scalar_type(), [&]<typename Element>(Element) {
            using Compute = ComputeType<Element>;
            const ChannelRows<const Element> x_rows = rows_of<Element>(x), grad_rows = rows_of<Element>(grad_y);
            const auto affine = affine_of<Element>(mean, scale, bias, activation);
            const auto channels = static_cast<std::size_t>(x_rows.channels);
            std::vector<double> sum(channels), centred_sum(channels);
            activation_backward(x_rows, affine, grad_rows, writable_rows_of<Element>(grad_x), std::span(sum),
                                std::span(centred_sum));

            std::vector<double> sum_of_all = sum, centred_sum_of_all = centred_sum;
            add_over_ranks(*context, sum_of_all, centred_sum_of_all);
            const Compute* inverse = inverse_deviation.const_data_ptr<Compute>();
            auto* to_weight = grad_weight.mutable_data_ptr<Compute>();
            auto* to_bias = grad_bias.mutable_data_ptr<Compute>();
            // Mean and deviation of the batch move with x: two terms that are linear in the cell's own value.
            const double share = cells > 0 ? 1.0 / cells : 0.0;
            std::vector<Compute> mean_d(channels), slope(channels);
            for (std::size_t c = 0; c < channels; ++c) {
                to_weight[c] = static_cast<Compute>(centred_sum[c] * inverse[c]);
                to_bias[c] = static_cast<Compute>(sum[c]);
                mean_d[c] = static_cast<Compute>(sum_of_all[c] * share);
                slope[c] = static_cast<Compute>(centred_sum_of_all[c] * share * inverse[c] * inverse[c]);
            }
            affine_backward(x_rows, affine, mean_d.data(), slope.data(), writable_rows_of<Element>(grad_x));
        });
        return {grad_x, grad_weight, grad_bias, {}, {}, {}, {}, {}};
    }

  private:
    /// One reduction for both.
    static void add_over_ranks(torch::autograd::AutogradContext& context, std::vector<double>& sum,
                               std::vector<double>& centred_sum) {
        const auto kept = context.saved_data.find("sum");
        if (kept == context.saved_data.end()) {
            return;
        }
        std::vector<double> both = sum;
        both.insert(both.end(), centred_sum.begin(), centred_sum.end());
        c10::static_intrusive_pointer_cast<KeptSum>(kept->second.toCapsule())->call(both, BatchNormPass::backward);
        const auto middle = both.begin() + static_cast<std::ptrdiff_t>(sum.size());
        std::copy(both.begin(), middle, sum.begin());
        std::copy(middle, both.end(), centred_sum.begin());
    }
};

/// Per channel, of one rank's cells or of all ranks'.
struct CellStatistics {
    std::vector<double> mean, variance;
    double cells = 0;
};

/// One reduction. Sums of squares are taken around `centre`, which lies near the mean after a few steps: they lose
/// little to it then.
template <typename Compute>
void combine_over_ranks(CellStatistics& statistics, const Compute* centre, const SumOverRanks& sum) {
    const std::size_t channels = statistics.mean.size();
    std::vector<double> sums(2 * channels + 1);
    for (std::size_t c = 0; c < channels && statistics.cells > 0; ++c) {
        const double shift = statistics.mean[c] - static_cast<double>(centre[c]);
        sums[c] = statistics.cells * shift;
        sums[channels + c] = statistics.cells * (statistics.variance[c] + shift * shift);
    }
    sums.back() = statistics.cells;
    sum(sums, BatchNormPass::forward);
    statistics.cells = sums.back();
    for (std::size_t c = 0; c < channels && statistics.cells > 0; ++c) {
        const double shift = sums[c] / statistics.cells;
        statistics.mean[c] = static_cast<double>(centre[c]) + shift;
        statistics.variance[c] = std::max(0.0, sums[channels + c] / statistics.cells - shift * shift);
    }
}

}  // namespace

bool can_fuse_batch_norm(const at::Tensor& x, const at::Tensor& weight) {
    return has_channel_kernels(x, weight.scalar_type());
}

Moments batch_moments(const at::Tensor& x, at::Tensor& running_mean, at::Tensor& running_var, double momentum,
                      const SumOverRanks& sum) {
    const at::Tensor rows = as_rows(x);
    Moments moments{at::empty_like(running_mean), at::empty_like(running_var)};
    with_element_type(x.scalar_type(), [&]<typename Element>(Element) {
        using Compute = ComputeType<Element>;
        const ChannelRows<const Element> x_rows = rows_of<Element>(rows);
        const auto channels = static_cast<std::size_t>(x_rows.channels);
        CellStatistics batch{std::vector<double>(channels), std::vector<double>(channels),
                             static_cast<double>(x_rows.rows)};
        if (x_rows.rows > 0) {
            channel_statistics(x_rows, std::span(batch.mean), std::span(batch.variance));
        }
        if (sum) {
            combine_over_ranks(batch, running_mean.const_data_ptr<Compute>(), sum);
        }
        if (batch.cells == 0) {
            moments = {running_mean, running_var};
            return;
        }
        moments.cells = batch.cells;

        const double unbiased = batch.cells / std::max(batch.cells - 1.0, 1.0);
        const auto move = [&](at::Tensor& running, std::size_t c, double value) {
            Compute& to = running.mutable_data_ptr<Compute>()[c];
            to = static_cast<Compute>((1.0 - momentum) * to + momentum * value);
        };
        for (std::size_t c = 0; c < channels; ++c) {
            moments.mean.mutable_data_ptr<Compute>()[c] = static_cast<Compute>(batch.mean[c]);
            moments.variance.mutable_data_ptr<Compute>()[c] = static_cast<Compute>(batch.variance[c]);
            move(running_mean, c, batch.mean[c]);
            move(running_var, c, batch.variance[c] * unbiased);
        }
    });
    return moments;
}

at::Tensor fused_batch_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const Moments& moments, double epsilon, Activation activation, const SumOverRanks& sum) {
    // A running mean may change before the backward pass needs it.
    const at::Tensor mean = moments.cells > 0 ? moments.mean : moments.mean.clone();
    at::Tensor inverse_deviation = at::empty_like(mean);
    with_element_type(mean.scalar_type(), [&]<typename Compute>(Compute) {
        const Compute* variance = moments.variance.const_data_ptr<Compute>();
        std::transform(
            variance, variance + mean.numel(), inverse_deviation.mutable_data_ptr<Compute>(),
            [&](Compute v) { return static_cast<Compute>(1.0 / std::sqrt(static_cast<double>(v) + epsilon)); });
    });
    return FusedBatchNorm::apply(x, weight, bias, mean, inverse_deviation, moments.cells,
                                 static_cast<std::int64_t>(activation), sum);
}

}  // namespace lockstep::trainer
