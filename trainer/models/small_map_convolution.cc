#include "trainer/models/small_map_convolution.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

namespace lockstep::trainer {

namespace {

constexpr std::int64_t most_cells_a_side = 2;

std::int64_t output_side(std::int64_t side, const ConvolutionOptions& options) {
    return (side + 2 * (options.kernel / 2) - options.kernel) / options.stride + 1;
}

/// The outputs of one axis that a tap takes part in, [first, end), and the input that it meets at the first of them.
struct Reach {
    std::int64_t first, end, input;
};

Reach reach_of(std::int64_t tap, std::int64_t side, const ConvolutionOptions& options) {
    // Output o meets input o * stride + offset.
    const std::int64_t offset = tap - options.kernel / 2;
    const std::int64_t first = offset < 0 ? (-offset + options.stride - 1) / options.stride : 0;
    const std::int64_t end = side > offset ? (side - offset - 1) / options.stride + 1 : 0;
    return {first, std::min(end, output_side(side, options)), first * options.stride + offset};
}

struct Tap {
    std::int64_t row, column;  ///< of the kernel
    Reach vertical, horizontal;
};

/// The taps that meet the map at all: one of nine on a single cell.
std::vector<Tap> taps_on(std::int64_t height, std::int64_t width, const ConvolutionOptions& options) {
    std::vector<Tap> taps;
    for (std::int64_t row = 0; row < options.kernel; ++row) {
        for (std::int64_t column = 0; column < options.kernel; ++column) {
            const Tap tap{row, column, reach_of(row, height, options), reach_of(column, width, options)};
            if (tap.vertical.first < tap.vertical.end && tap.horizontal.first < tap.horizontal.end) {
                taps.push_back(tap);
            }
        }
    }
    return taps;
}

at::Tensor cells_last(const at::Tensor& map) {
    return map.permute({0, 2, 3, 1});
}

/// Views of the cells that a tap joins, B x rows x columns x channels.
at::Tensor inputs_of(const Tap& tap, const at::Tensor& x, std::int64_t stride) {
    const auto part = [&](const at::Tensor& of, std::int64_t dimension, const Reach& reach) {
        const std::int64_t last = reach.input + (reach.end - reach.first - 1) * stride;
        return of.slice(dimension, reach.input, last + 1, stride);
    };
    return part(part(cells_last(x), 1, tap.vertical), 2, tap.horizontal);
}

at::Tensor outputs_of(const Tap& tap, const at::Tensor& y) {
    return cells_last(y)
        .slice(1, tap.vertical.first, tap.vertical.end)
        .slice(2, tap.horizontal.first, tap.horizontal.end);
}

at::Tensor rows(const at::Tensor& cells) {
    return cells.reshape({-1, cells.size(3)});
}

at::Tensor weight_of(const Tap& tap, const at::Tensor& weight) {
    return weight.select(3, tap.column).select(2, tap.row);
}

at::Tensor zero_map(at::IntArrayRef sizes, const at::TensorOptions& options) {
    return at::zeros({sizes[0], sizes[2], sizes[3], sizes[1]}, options).permute({0, 3, 1, 2});
}

class SmallMapConvolution : public torch::autograd::Function<SmallMapConvolution> {
  public:
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                              std::int64_t kernel, std::int64_t stride) {
        context->save_for_backward({x, weight});
        context->saved_data["kernel"] = kernel;
        context->saved_data["stride"] = stride;
        const ConvolutionOptions options{.kernel = kernel, .stride = stride};
        at::Tensor y = zero_map(
            {x.size(0), weight.size(0), output_side(x.size(2), options), output_side(x.size(3), options)}, x.options());
        for (const Tap& tap : taps_on(x.size(2), x.size(3), options)) {
            at::Tensor to = outputs_of(tap, y);
            to.add_(at::mm(rows(inputs_of(tap, x, stride)), weight_of(tap, weight).t()).view(to.sizes()));
        }
        return y;
    }

    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   const torch::autograd::variable_list& gradients) {
        const torch::autograd::variable_list saved = context->get_saved_variables();
        const at::Tensor &x = saved[0], &weight = saved[1];
        const ConvolutionOptions options{.kernel = context->saved_data["kernel"].toInt(),
                                         .stride = context->saved_data["stride"].toInt()};
        const at::Tensor& grad_y = gradients[0];
        at::Tensor grad_x = zero_map(x.sizes(), x.options());
        at::Tensor grad_weight = zero_map(weight.sizes(), weight.options());
        for (const Tap& tap : taps_on(x.size(2), x.size(3), options)) {
            const at::Tensor grad_rows = rows(outputs_of(tap, grad_y));
            at::Tensor grad_tap = weight_of(tap, grad_weight);
            at::mm_out(grad_tap, grad_rows.t(), rows(inputs_of(tap, x, options.stride)));
            at::Tensor to = inputs_of(tap, grad_x, options.stride);
            to.add_(at::mm(grad_rows, weight_of(tap, weight)).view(to.sizes()));
        }
        return {grad_x, grad_weight, {}, {}};
    }
};

}  // namespace

bool can_use_small_map_convolution(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options) {
    const bool is_wide = x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble;
    return x.is_cpu() && is_wide && weight.scalar_type() == x.scalar_type() && options.groups == 1 &&
           output_side(x.size(2), options) <= most_cells_a_side && output_side(x.size(3), options) <= most_cells_a_side;
}

at::Tensor small_map_convolution(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options) {
    return SmallMapConvolution::apply(x, weight, options.kernel, options.stride);
}

}  // namespace lockstep::trainer
