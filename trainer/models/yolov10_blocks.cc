#include "trainer/models/yolov10_blocks.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

namespace lockstep::trainer {

namespace {

std::shared_ptr<ConvBN> depthwise(std::int64_t channels, std::int64_t kernel,
                                  Activation activation = Activation::silu) {
    return std::make_shared<ConvBN>(channels, channels, ConvolutionOptions{.kernel = kernel, .groups = channels},
                                    activation);
}

std::shared_ptr<ConvBN> pointwise(std::int64_t in_channels, std::int64_t out_channels,
                                  Activation activation = Activation::silu) {
    return std::make_shared<ConvBN>(in_channels, out_channels, ConvolutionOptions{}, activation);
}

std::shared_ptr<ConvBN> convolution3x3(std::int64_t channels) {
    return std::make_shared<ConvBN>(channels, channels, ConvolutionOptions{.kernel = 3});
}

std::shared_ptr<Layer> make_inner_block(InnerBlock inner, std::int64_t channels, bool shortcut) {
    if (inner == InnerBlock::bottleneck) {
        return std::make_shared<Bottleneck>(channels, shortcut);
    }
    return std::make_shared<CompactInvertedBlock>(channels, shortcut, inner == InnerBlock::inverted_large_kernel);
}

}  // namespace

Bottleneck::Bottleneck(std::int64_t channels, bool shortcut) : shortcut_(shortcut) {
    cv1_ = register_module("cv1", convolution3x3(channels));
    cv2_ = register_module("cv2", convolution3x3(channels));
}

at::Tensor Bottleneck::forward(const at::Tensor& x) {
    const at::Tensor y = cv2_->forward(cv1_->forward(x));
    return shortcut_ ? x + y : y;
}

RepVggDepthwise::RepVggDepthwise(std::int64_t channels) {
    conv_ = register_module("conv", depthwise(channels, 7, Activation::none));
    conv1_ = register_module("conv1", depthwise(channels, 3, Activation::none));
}

at::Tensor RepVggDepthwise::forward(const at::Tensor& x) {
    return activate(conv1_ ? conv_->forward(x) + conv1_->forward(x) : conv_->forward(x), Activation::silu);
}

void RepVggDepthwise::fuse() {
    if (!conv1_) {
        return;
    }
    const at::NoGradGuard no_grad;
    conv_->fuse();
    conv1_->fuse();
    const Conv2d& large = conv_->convolution();
    const Conv2d& small = conv1_->convolution();
    conv_->convolution().replace(large.weight + at::constant_pad_nd(small.weight, {2, 2, 2, 2}),
                                 large.bias + small.bias);
    unregister_module("conv1");
    conv1_ = nullptr;
}

CompactInvertedBlock::CompactInvertedBlock(std::int64_t channels, bool shortcut, bool large_kernel)
    : shortcut_(shortcut) {
    const std::int64_t inner = 2 * channels;
    std::shared_ptr<Layer> middle = depthwise(inner, 3);
    if (large_kernel) {
        middle = std::make_shared<RepVggDepthwise>(inner);
    }
    cv1_ = register_module("cv1", std::make_shared<Sequence>(std::vector<std::shared_ptr<Layer>>{
                                      depthwise(channels, 3), pointwise(channels, inner), middle,
                                      pointwise(inner, channels), depthwise(channels, 3)}));
}

at::Tensor CompactInvertedBlock::forward(const at::Tensor& x) {
    const at::Tensor y = cv1_->forward(x);
    return shortcut_ ? x + y : y;
}

C2f::C2f(std::int64_t in_channels, std::int64_t out_channels, std::int64_t repeats, InnerBlock inner, bool shortcut) {
    const std::int64_t half = out_channels / 2;
    std::vector<std::shared_ptr<Layer>> blocks;
    for (std::int64_t i = 0; i < repeats; ++i) {
        blocks.push_back(make_inner_block(inner, half, shortcut));
    }
    cv1_ = register_module("cv1", pointwise(in_channels, 2 * half));
    m_ = register_module("m", std::make_shared<LayerList>(std::move(blocks)));
    cv2_ = register_module("cv2", pointwise((2 + repeats) * half, out_channels));
}

at::Tensor C2f::forward(const at::Tensor& x) {
    std::vector<at::Tensor> parts = cv1_->forward(x).chunk(2, 1);
    for (const auto& block : *m_) {
        parts.push_back(block->forward(parts.back()));
    }
    return cv2_->forward(at::cat(parts, 1));
}

SCDown::SCDown(std::int64_t in_channels, std::int64_t out_channels) {
    cv1_ = register_module("cv1", pointwise(in_channels, out_channels));
    cv2_ = register_module(
        "cv2", std::make_shared<ConvBN>(out_channels, out_channels,
                                        ConvolutionOptions{.kernel = 3, .stride = 2, .groups = out_channels},
                                        Activation::none));
}

at::Tensor SCDown::forward(const at::Tensor& x) {
    return cv2_->forward(cv1_->forward(x));
}

SPPF::SPPF(std::int64_t channels) {
    cv1_ = register_module("cv1", pointwise(channels, channels / 2));
    cv2_ = register_module("cv2", pointwise(2 * channels, channels));
}

at::Tensor SPPF::forward(const at::Tensor& x) {
    std::vector<at::Tensor> parts = {cv1_->forward(x)};
    for (int i = 0; i < 3; ++i) {
        parts.push_back(at::max_pool2d(parts.back(), /*kernel_size=*/5, /*stride=*/1, /*padding=*/2));
    }
    return cv2_->forward(at::cat(parts, 1));
}

Attention::Attention(std::int64_t channels)
    : heads_(std::max<std::int64_t>(channels / 64, 1)), key_dim_(channels / heads_ / 2), value_dim_(channels / heads_) {
    qkv_ = register_module("qkv", pointwise(channels, heads_ * (2 * key_dim_ + value_dim_), Activation::none));
    pe_ = register_module("pe", depthwise(channels, 3, Activation::none));
    proj_ = register_module("proj", pointwise(channels, channels, Activation::none));
}

at::Tensor Attention::forward(const at::Tensor& x) {
    const std::int64_t batch = x.size(0), channels = x.size(1), height = x.size(2), width = x.size(3);
    const std::int64_t cells = height * width;
    product_flops_ = 2 * batch * heads_ * cells * cells * (key_dim_ + value_dim_);

    // In channels_last a cell's channels lie together, so that cells become rows without a copy.
    const auto as_map = [&](const at::Tensor& rows) {  // B x heads x cells x value_dim to B x channels x H x W
        return rows.transpose(1, 2).reshape({batch, height, width, channels}).permute({0, 3, 1, 2});
    };
    const std::vector<at::Tensor> parts = qkv_->forward(x)
                                              .permute({0, 2, 3, 1})
                                              .reshape({batch, cells, heads_, 2 * key_dim_ + value_dim_})
                                              .transpose(1, 2)
                                              .split_with_sizes({key_dim_, key_dim_, value_dim_}, -1);
    const at::Tensor& values = parts[2];
    const at::Tensor queries = parts[0] * (1.0 / std::sqrt(static_cast<double>(key_dim_)));
    const at::Tensor attention = at::softmax(at::matmul(queries, parts[1].transpose(-2, -1)), -1);
    return proj_->forward(as_map(at::matmul(attention, values)) + pe_->forward(as_map(values)));
}

PSA::PSA(std::int64_t channels) {
    const std::int64_t half = channels / 2;
    cv1_ = register_module("cv1", pointwise(channels, 2 * half));
    attn_ = register_module("attn", std::make_shared<Attention>(half));
    ffn_ = register_module("ffn", std::make_shared<Sequence>(std::vector<std::shared_ptr<Layer>>{
                                      pointwise(half, 2 * half), pointwise(2 * half, half, Activation::none)}));
    cv2_ = register_module("cv2", pointwise(2 * half, channels));
}

at::Tensor PSA::forward(const at::Tensor& x) {
    const std::vector<at::Tensor> halves = cv1_->forward(x).chunk(2, 1);
    at::Tensor b = halves[1];
    b = b + attn_->forward(b);
    b = b + ffn_->forward(b);
    return cv2_->forward(at::cat({halves[0], b}, 1));
}

}  // namespace lockstep::trainer
