#include "trainer/models/layers.h"

#include <ATen/Functions.h>

#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/random.h"
#include "trainer/models/depthwise7x7.h"
#include "trainer/models/fused_batch_norm.h"
#include "trainer/models/small_map_convolution.h"

namespace lockstep::trainer {

namespace {

void register_numbered(torch::nn::Module& parent, const std::vector<std::shared_ptr<Layer>>& layers) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
        parent.register_module(std::to_string(i), layers[i]);
    }
}

}  // namespace

LayerList::LayerList(std::vector<std::shared_ptr<Layer>> layers) : layers_(std::move(layers)) {
    register_numbered(*this, layers_);
}

Sequence::Sequence(std::vector<std::shared_ptr<Layer>> layers) : layers_(std::move(layers)) {
    register_numbered(*this, layers_);
}

at::Tensor Sequence::forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (const auto& layer : layers_) {
        y = layer->forward(y);
    }
    return y;
}

Conv2d::Conv2d(std::int64_t in_channels, std::int64_t out_channels, ConvolutionOptions options, bool with_bias)
    : options_(options) {
    weight = register_parameter("weight",
                                at::empty({out_channels, in_channels / options.groups, options.kernel, options.kernel},
                                          at::MemoryFormat::ChannelsLast));
    if (with_bias) {
        bias = register_parameter("bias", at::empty({out_channels}));
    }
}

at::Tensor Conv2d::forward(const at::Tensor& x) {
    const auto& [kernel, stride, groups] = options_;
    const std::int64_t padding = kernel / 2;
    if (x.is_meta()) {
        const std::int64_t height = (x.size(2) + 2 * padding - kernel) / stride + 1;
        const std::int64_t width = (x.size(3) + 2 * padding - kernel) / stride + 1;
        return remember_shape(at::empty({x.size(0), weight.size(0), height, width}, x.options()));
    }
    if (kernel == 1 && stride == 1 && groups == 1 && x.is_cpu()) {
        // As a matrix product over the cells, which in channels_last are rows already; on one thread LibTorch's
        // convolution would take a slower way.
        return remember_shape(at::linear(x.permute({0, 2, 3, 1}), weight.flatten(1), bias).permute({0, 3, 1, 2}));
    }
    if (can_use_depthwise7x7(x, weight) && stride == 1 && groups == x.size(1) && !bias.defined()) {
        return remember_shape(depthwise7x7(x, weight));
    }
    if (!bias.defined() && can_use_small_map_convolution(x, weight, options_)) {
        return remember_shape(small_map_convolution(x, weight, options_));
    }
    return remember_shape(at::conv2d(x, weight, bias, stride, padding, /*dilation=*/1, groups));
}

void Conv2d::replace(const at::Tensor& new_weight, const at::Tensor& new_bias) {
    options_.kernel = new_weight.size(2);
    weight.set_data(new_weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    if (bias.defined()) {
        bias.set_data(new_bias.detach());
    } else {
        bias = register_parameter("bias", new_bias.detach());
    }
}

Linear::Linear(std::int64_t in_features, std::int64_t out_features) {
    weight = register_parameter("weight", at::empty({out_features, in_features}));
    bias = register_parameter("bias", at::empty({out_features}));
}

at::Tensor Linear::forward(const at::Tensor& x) {
    return remember_shape(x.is_meta() ? at::empty({x.size(0), weight.size(0)}, x.options())
                                      : at::linear(x, weight, bias));
}

BatchNorm2d::BatchNorm2d(std::int64_t channels, BatchNormOptions options) : options_(options) {
    weight = register_parameter("weight", at::ones({channels}));
    bias = register_parameter("bias", at::zeros({channels}));
    running_mean = register_buffer("running_mean", at::zeros({channels}));
    running_var = register_buffer("running_var", at::ones({channels}));
    num_batches_tracked = register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
}

at::Tensor BatchNorm2d::forward(const at::Tensor& x, Activation activation) {
    if (x.is_meta()) {
        return remember_shape(x);
    }
    // A rank may have no images in a data set's last batch: nothing to learn statistics from, but from the others'.
    const bool batch_statistics =
        is_training() && (mode_ == BatchNormMode::sync || (mode_ == BatchNormMode::local && x.numel() > 0));
    if (can_fuse_batch_norm(x, weight)) {
        const Moments moments = batch_statistics
                                    ? batch_moments(x, running_mean, running_var, options_.momentum, sum_over_ranks_)
                                    : Moments{running_mean, running_var};
        if (moments.cells > 0) {
            num_batches_tracked.add_(1);
        }
        return remember_shape(
            fused_batch_norm(x, weight, bias, moments, options_.epsilon, activation, sum_over_ranks_));
    }
    LOCKSTEP_CHECK(mode_ != BatchNormMode::sync, "synchronised statistics of ", x.scalar_type(), " on ", x.device());
    if (batch_statistics) {
        num_batches_tracked.add_(1);
    }
    return remember_shape(activate(at::batch_norm(x, weight, bias, running_mean, running_var, batch_statistics,
                                                  options_.momentum, options_.epsilon, /*cudnn_enabled=*/true),
                                   activation));
}

void BatchNorm2d::set_mode(BatchNormMode mode, SumOverRanks sum) {
    LOCKSTEP_CHECK((mode == BatchNormMode::sync) == static_cast<bool>(sum));
    mode_ = mode;
    sum_over_ranks_ = std::move(sum);
}

std::pair<at::Tensor, at::Tensor> BatchNorm2d::scale_and_shift() const {
    const at::NoGradGuard no_grad;
    const at::Tensor scale = weight / (running_var + options_.epsilon).sqrt();
    return {scale, bias - running_mean * scale};
}

void set_batch_norm_mode(torch::nn::Module& model, BatchNormMode mode) {
    model.apply([mode](torch::nn::Module& module) {
        if (auto* batch_norm = dynamic_cast<BatchNorm2d*>(&module)) {
            batch_norm->set_mode(mode);
        }
    });
}

void synchronise_batch_norms(
    torch::nn::Module& model,
    const std::function<void(std::span<double>, const std::string& layer, BatchNormPass)>& sum) {
    for (const auto& item : model.named_modules()) {
        if (auto* batch_norm = dynamic_cast<BatchNorm2d*>(item.value().get())) {
            batch_norm->set_mode(
                BatchNormMode::sync,
                [sum, layer = item.key()](std::span<double> values, BatchNormPass pass) { sum(values, layer, pass); });
        }
    }
}

ConvBN::ConvBN(std::int64_t in_channels, std::int64_t out_channels, ConvolutionOptions options, Activation activation)
    : activation_(activation) {
    conv_ = register_module("conv", std::make_shared<Conv2d>(in_channels, out_channels, options, /*with_bias=*/false));
    bn_ = register_module(
        "bn", std::make_shared<BatchNorm2d>(out_channels, BatchNormOptions{.epsilon = 1e-3, .momentum = 0.03}));
}

at::Tensor ConvBN::forward(const at::Tensor& x) {
    at::Tensor y = conv_->forward(x);
    return bn_ ? bn_->forward(y, activation_) : activate(std::move(y), activation_);
}

void ConvBN::fuse() {
    if (!bn_) {
        return;
    }
    const at::NoGradGuard no_grad;
    const auto [scale, shift] = bn_->scale_and_shift();
    conv_->replace(conv_->weight * scale.view({-1, 1, 1, 1}), shift);
    unregister_module("bn");
    bn_ = nullptr;
}

at::Tensor activate(at::Tensor x, Activation activation) {
    switch (activation) {
        case Activation::none:
            return x;
        case Activation::relu:
            return x.relu_();
        case Activation::silu:
            // With a graph the in-place form would first copy its input for the backward pass.
            return at::GradMode::is_enabled() && x.requires_grad() ? at::silu(x) : at::silu_(x);
    }
    LOCKSTEP_CHECK(false);
}

namespace {

/// Elements in logical (row-major) order, whatever the tensor's layout.
void fill(at::Tensor& tensor, const std::function<double()>& draw) {
    const at::NoGradGuard no_grad;
    at::Tensor values = at::empty(tensor.sizes(), at::kDouble);
    double* out = values.mutable_data_ptr<double>();
    for (std::int64_t i = 0; i < values.numel(); ++i) {
        out[i] = draw();
    }
    tensor.copy_(values);
}

void fill_uniform(at::Tensor& tensor, double bound, base::Random& random) {
    fill(tensor, [&] { return random.uniform(-bound, bound); });
}

}  // namespace

void initialise(torch::nn::Module& model, std::uint64_t seed, ConvolutionInitialisation convolutions) {
    std::uint64_t place = 0;
    model.apply([&](torch::nn::Module& module) {
        base::Random random(seed, base::RandomPurpose::initialisation, /*epoch=*/0, place++);
        if (auto* convolution = dynamic_cast<Conv2d*>(&module)) {
            at::Tensor& weight = convolution->weight;
            const double bound = 1.0 / std::sqrt(static_cast<double>(weight[0].numel()));
            if (convolutions == ConvolutionInitialisation::kaiming_uniform) {
                fill_uniform(weight, bound, random);
            } else {
                const double deviation = std::sqrt(2.0 / static_cast<double>(weight.numel() / weight.size(1)));
                fill(weight, [&] { return deviation * random.normal(); });
            }
            if (convolution->bias.defined()) {
                fill_uniform(convolution->bias, bound, random);
            }
        } else if (auto* linear = dynamic_cast<Linear*>(&module)) {
            const double bound = 1.0 / std::sqrt(static_cast<double>(linear->weight.size(1)));
            fill_uniform(linear->weight, bound, random);
            fill_uniform(linear->bias, bound, random);
        }
    });
}

}  // namespace lockstep::trainer
