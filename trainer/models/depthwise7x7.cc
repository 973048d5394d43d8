#include "trainer/models/depthwise7x7.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>

#include "trainer/models/channel_kernels.h"
#include "trainer/models/element_type.h"

namespace lockstep::trainer {

namespace {

constexpr std::int64_t kernel = 7;
constexpr std::int64_t padding = 3;

template <typename Element>
ChannelsLastMap<Element> map_of(const at::Tensor& x) {
    return {x.const_data_ptr<Element>(), x.size(0), x.size(2), x.size(3), x.size(1)};
}

class Depthwise7x7 : public torch::autograd::Function<Depthwise7x7> {
  public:
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                              const at::Tensor& weight) {
        context->save_for_backward({x, weight});
        return at::conv2d(x, weight.to(x.scalar_type()), {}, /*stride=*/1, padding, /*dilation=*/1,
                          /*groups=*/x.size(1));
    }

    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   const torch::autograd::variable_list& gradients) {
        const torch::autograd::variable_list saved = context->get_saved_variables();
        const at::Tensor &x = saved[0], &weight = saved[1];
        const std::int64_t channels = x.size(1);
        // Under autocast the result may be narrower than x.
        const at::Tensor grad_y = gradients[0].to(x.scalar_type()).contiguous(at::MemoryFormat::ChannelsLast);
        const at::Tensor grad_x = std::get<0>(at::convolution_backward(
            grad_y, x, weight.to(x.scalar_type()), /*bias_sizes=*/std::nullopt, /*stride=*/1, padding, /*dilation=*/1,
            /*transposed=*/false, /*output_padding=*/0, /*groups=*/channels, {true, false, false}));

        const at::Tensor padded =
            at::constant_pad_nd(x, {padding, padding, padding, padding}).contiguous(at::MemoryFormat::ChannelsLast);
        at::Tensor grad_weight = at::empty({kernel * kernel, channels}, weight.options());
        with_element_type(x.scalar_type(), [&]<typename Element>(Element) {
            using Compute = ComputeType<Element>;
            depthwise7x7_weight_gradient(
                map_of<Element>(padded), map_of<Element>(grad_y),
                std::span(grad_weight.mutable_data_ptr<Compute>(), static_cast<std::size_t>(grad_weight.numel())));
        });
        return {grad_x, grad_weight.t().reshape(weight.sizes())};
    }
};

}  // namespace

bool can_use_depthwise7x7(const at::Tensor& x, const at::Tensor& weight) {
    return weight.size(2) == kernel && has_channel_kernels(x, weight.scalar_type());
}

at::Tensor depthwise7x7(const at::Tensor& x, const at::Tensor& weight) {
    return Depthwise7x7::apply(x, weight);
}

}  // namespace lockstep::trainer
