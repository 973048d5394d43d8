#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "trainer/models/yolov10_blocks.h"

namespace lockstep::trainer {
namespace {

at::Tensor test_map(std::int64_t batch, std::int64_t channels, std::int64_t height, std::int64_t width) {
    const at::Tensor ramp = at::arange(batch * channels * height * width, at::kDouble);
    return ((ramp * 0.7).sin() + 0.3 * (ramp * 0.13).cos())
        .view({batch, channels, height, width})
        .contiguous(at::MemoryFormat::ChannelsLast);
}

template <typename Block, typename... Arguments>
std::shared_ptr<Block> make_block(Arguments... arguments) {
    auto block = std::make_shared<Block>(arguments...);
    initialise(*block, 5, ConvolutionInitialisation::kaiming_uniform);
    const at::NoGradGuard no_grad;
    block->apply([](torch::nn::Module& module) {
        if (auto* batch_norm = dynamic_cast<BatchNorm2d*>(&module)) {
            const at::Tensor ramp = at::linspace(-1, 1, batch_norm->weight.numel());
            batch_norm->weight.copy_(1.0 + 0.5 * ramp);
            batch_norm->bias.copy_(0.1 - 0.3 * ramp);
            batch_norm->running_mean.copy_(0.2 * ramp);
            batch_norm->running_var.copy_(0.4 + 0.2 * ramp);
        }
    });
    block->to(at::kDouble);
    block->eval();
    return block;
}

at::Tensor parameter(const torch::nn::Module& module, const std::string& name) {
    return module.named_parameters()[name].detach();
}

/// A ConvBN in evaluation, by its definition, in plain loops; the activation is left to the caller.
at::Tensor plain_conv_bn(const torch::nn::Module& block, const std::string& name, const at::Tensor& x,
                         std::int64_t stride = 1) {
    const at::Tensor weight = parameter(block, name + "conv.weight").contiguous();
    const auto buffers = block.named_buffers();
    const at::Tensor gamma = parameter(block, name + "bn.weight"), beta = parameter(block, name + "bn.bias");
    const at::Tensor mean = buffers[name + "bn.running_mean"], variance = buffers[name + "bn.running_var"];
    const std::int64_t out_channels = weight.size(0), group_width = weight.size(1), kernel = weight.size(2);
    const std::int64_t groups = x.size(1) / group_width, outputs_per_group = out_channels / groups;
    const std::int64_t height = (x.size(2) - 1) / stride + 1, width = (x.size(3) - 1) / stride + 1;
    const at::Tensor plain = x.contiguous();
    at::Tensor y = at::zeros({x.size(0), out_channels, height, width}, at::kDouble);
    auto in = plain.accessor<double, 4>();
    auto w = weight.accessor<double, 4>();
    auto out = y.accessor<double, 4>();
    for (std::int64_t b = 0; b < y.size(0); ++b) {
        for (std::int64_t o = 0; o < out_channels; ++o) {
            const double scale = gamma[o].item<double>() / std::sqrt(variance[o].item<double>() + 1e-3);
            const double shift = beta[o].item<double>() - mean[o].item<double>() * scale;
            for (std::int64_t row = 0; row < height; ++row) {
                for (std::int64_t column = 0; column < width; ++column) {
                    double sum = 0.0;
                    for (std::int64_t i = 0; i < group_width; ++i) {
                        for (std::int64_t ky = 0; ky < kernel; ++ky) {
                            for (std::int64_t kx = 0; kx < kernel; ++kx) {
                                const std::int64_t iy = row * stride + ky - kernel / 2,
                                                   ix = column * stride + kx - kernel / 2;
                                if (iy >= 0 && iy < x.size(2) && ix >= 0 && ix < x.size(3)) {
                                    sum += w[o][i][ky][kx] * in[b][o / outputs_per_group * group_width + i][iy][ix];
                                }
                            }
                        }
                    }
                    out[b][o][row][column] = sum * scale + shift;
                }
            }
        }
    }
    return y;
}

at::Tensor plain_silu(const at::Tensor& x) {
    return x / (1.0 + (-x).exp());
}

double difference(const at::Tensor& a, const at::Tensor& b) {
    EXPECT_EQ(a.sizes(), b.sizes());
    return (a - b).abs().max().item<double>();
}

TEST(Blocks, ConvBNFollowsItsDefinition) {
    const at::Tensor x = test_map(2, 6, 5, 4);
    for (const ConvolutionOptions options :
         {ConvolutionOptions{.kernel = 3, .stride = 2}, {.kernel = 1}, {.kernel = 3, .groups = 3}}) {
        const auto block = make_block<ConvBN>(6, 9, options);
        EXPECT_LT(difference(block->forward(x), plain_silu(plain_conv_bn(*block, "", x, options.stride))), 1e-12)
            << "kernel " << options.kernel << " groups " << options.groups;
    }
}

TEST(Blocks, BatchStatisticsMoveTheRunningOnes) {
    BatchNorm2d batch_norm(2, {.epsilon = 1e-3, .momentum = 0.03});
    // Channel 0: 1, 2, 3, 6 (mean 3, variance 3.5, unbiased 14/3); channel 1: all 5.
    const at::Tensor x = at::tensor({1.F, 2.F, 5.F, 5.F, 3.F, 6.F, 5.F, 5.F}).view({2, 2, 1, 2});
    const at::Tensor y = batch_norm.forward(x);
    EXPECT_NEAR(y[0][0][0][0].item<double>(), (1 - 3) / std::sqrt(3.5 + 1e-3), 1e-6);
    EXPECT_NEAR(y[1][1][0][0].item<double>(), 0.0, 1e-5);
    EXPECT_NEAR(batch_norm.running_mean[0].item<double>(), 0.03 * 3, 1e-6);
    EXPECT_NEAR(batch_norm.running_var[0].item<double>(), 0.97 + 0.03 * 14 / 3, 1e-6);
    EXPECT_NEAR(batch_norm.running_var[1].item<double>(), 0.97, 1e-6);
    EXPECT_EQ(batch_norm.num_batches_tracked.item<std::int64_t>(), 1);
}

TEST(Blocks, BottleneckAddsItsInputOnlyWithShortcut) {
    const at::Tensor x = test_map(1, 4, 4, 3);
    const auto with = make_block<Bottleneck>(4, true);
    const auto without = make_block<Bottleneck>(4, false);
    const at::Tensor inner = plain_silu(plain_conv_bn(*with, "cv2.", plain_silu(plain_conv_bn(*with, "cv1.", x))));
    EXPECT_LT(difference(with->forward(x), x + inner), 1e-12);
    EXPECT_LT(difference(without->forward(x), inner), 1e-12);
}

TEST(Blocks, C2fConcatenatesBothHalvesAndEveryBlock) {
    const at::Tensor x = test_map(1, 6, 4, 4);
    const auto block = make_block<C2f>(6, 8, 2, InnerBlock::bottleneck, true);
    const at::Tensor y = plain_silu(plain_conv_bn(*block, "cv1.", x));
    std::vector<at::Tensor> parts = {y.slice(1, 0, 4), y.slice(1, 4, 8)};
    for (const std::string prefix : {"m.0.", "m.1."}) {
        const at::Tensor input = parts.back();
        const at::Tensor inner = plain_silu(plain_conv_bn(*block, prefix + "cv1.", input));
        parts.push_back(input + plain_silu(plain_conv_bn(*block, prefix + "cv2.", inner)));
    }
    EXPECT_LT(difference(block->forward(x), plain_silu(plain_conv_bn(*block, "cv2.", at::cat(parts, 1)))), 1e-12);
}

TEST(Blocks, CompactInvertedBlockHasFiveStages) {
    const at::Tensor x = test_map(1, 4, 5, 5);
    for (const bool large_kernel : {false, true}) {
        const auto block = make_block<CompactInvertedBlock>(4, true, large_kernel);
        const auto stage = [&](const std::string& name, const at::Tensor& y) {
            return plain_conv_bn(*block, "cv1." + name, y);
        };
        const at::Tensor wide = plain_silu(stage("1.", plain_silu(stage("0.", x))));
        const at::Tensor middle = large_kernel ? stage("2.conv.", wide) + stage("2.conv1.", wide) : stage("2.", wide);
        const at::Tensor y = plain_silu(stage("4.", plain_silu(stage("3.", plain_silu(middle)))));
        EXPECT_LT(difference(block->forward(x), x + y), 1e-12) << "large kernel " << large_kernel;
    }
}

TEST(Blocks, RepVggDepthwiseFusesToOneConvolution) {
    const auto block = make_block<RepVggDepthwise>(3);
    const at::Tensor x = test_map(2, 3, 9, 8);
    const at::Tensor expected = plain_silu(plain_conv_bn(*block, "conv.", x) + plain_conv_bn(*block, "conv1.", x));
    EXPECT_LT(difference(block->forward(x), expected), 1e-12);
    block->fuse();
    EXPECT_LT(difference(block->forward(x), expected), 1e-10);
    EXPECT_EQ(block->named_parameters().keys(), (std::vector<std::string>{"conv.conv.weight", "conv.conv.bias"}));
    EXPECT_EQ(parameter(*block, "conv.conv.weight").sizes().vec(), (std::vector<std::int64_t>{3, 1, 7, 7}));
}

TEST(Blocks, SCDownHalvesWithoutActivation) {
    const at::Tensor x = test_map(1, 4, 6, 6);
    const auto block = make_block<SCDown>(4, 5);
    const at::Tensor expected = plain_conv_bn(*block, "cv2.", plain_silu(plain_conv_bn(*block, "cv1.", x)), 2);
    EXPECT_EQ(expected.sizes().vec(), (std::vector<std::int64_t>{1, 5, 3, 3}));
    EXPECT_LT(difference(block->forward(x), expected), 1e-12);
}

TEST(Blocks, SPPFPoolsOverFiveNineAndThirteenCells) {
    const at::Tensor x = test_map(1, 4, 9, 8);
    const auto block = make_block<SPPF>(4);
    const at::Tensor y = plain_silu(plain_conv_bn(*block, "cv1.", x));
    std::vector<at::Tensor> parts = {y};
    for (const std::int64_t reach : {2, 4, 6}) {  // a row of 5x5 pools has the reach of a larger one
        at::Tensor pooled = at::empty_like(y);
        for (std::int64_t row = 0; row < 9; ++row) {
            for (std::int64_t column = 0; column < 8; ++column) {
                const at::Tensor window = y.slice(2, std::max<std::int64_t>(row - reach, 0), row + reach + 1)
                                              .slice(3, std::max<std::int64_t>(column - reach, 0), column + reach + 1);
                pooled.select(2, row).select(2, column).copy_(window.amax({2, 3}));
            }
        }
        parts.push_back(pooled);
    }
    EXPECT_LT(difference(block->forward(x), plain_silu(plain_conv_bn(*block, "cv2.", at::cat(parts, 1)))), 1e-12);
}

TEST(Blocks, AttentionFollowsItsDefinition) {
    constexpr std::int64_t channels = 128, heads = 2, key_dim = 32, value_dim = 64, height = 3, width = 2, cells = 6;
    const auto block = make_block<Attention>(channels);
    const at::Tensor x = test_map(2, channels, height, width);
    const at::Tensor qkv = plain_conv_bn(*block, "qkv.", x).view({2, heads, 2 * key_dim + value_dim, cells});
    at::Tensor mixed = at::zeros({2, channels, cells}, at::kDouble);
    at::Tensor values = at::zeros({2, channels, cells}, at::kDouble);
    auto in = qkv.accessor<double, 4>();
    auto out = mixed.accessor<double, 3>();
    auto v = values.accessor<double, 3>();
    for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t h = 0; h < heads; ++h) {
            for (std::int64_t n = 0; n < cells; ++n) {
                std::vector<double> weights(cells, 0.0);
                double sum = 0.0;
                for (std::int64_t m = 0; m < cells; ++m) {
                    for (std::int64_t d = 0; d < key_dim; ++d) {
                        weights[m] += in[b][h][d][n] * in[b][h][key_dim + d][m];
                    }
                    weights[m] = std::exp(weights[m] / std::sqrt(32.0));
                    sum += weights[m];
                }
                for (std::int64_t d = 0; d < value_dim; ++d) {
                    v[b][h * value_dim + d][n] = in[b][h][2 * key_dim + d][n];
                    for (std::int64_t m = 0; m < cells; ++m) {
                        out[b][h * value_dim + d][n] += weights[m] / sum * in[b][h][2 * key_dim + d][m];
                    }
                }
            }
        }
    }
    const at::Tensor position = plain_conv_bn(*block, "pe.", values.view({2, channels, height, width}));
    const at::Tensor expected = plain_conv_bn(*block, "proj.", mixed.view({2, channels, height, width}) + position);
    EXPECT_LT(difference(block->forward(x), expected), 1e-11);
    EXPECT_EQ(block->product_flops(), 2 * 2 * 2 * (6 * 6 * 32 + 6 * 6 * 64));
    EXPECT_TRUE(block->forward(x).is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST(Blocks, PSAPassesHalfTheChannelsThroughAttention) {
    const auto block = make_block<PSA>(128);
    const at::Tensor x = test_map(1, 128, 2, 3);
    const at::Tensor y = plain_silu(plain_conv_bn(*block, "cv1.", x));
    at::Tensor b = y.slice(1, 64, 128);
    const auto attention = std::dynamic_pointer_cast<Attention>(block->named_children()["attn"]);
    b = b + attention->forward(b.contiguous(at::MemoryFormat::ChannelsLast));
    b = b + plain_conv_bn(*block, "ffn.1.", plain_silu(plain_conv_bn(*block, "ffn.0.", b)));
    const at::Tensor expected = plain_silu(plain_conv_bn(*block, "cv2.", at::cat({y.slice(1, 0, 64), b}, 1)));
    EXPECT_LT(difference(block->forward(x), expected), 1e-11);
}

}  // namespace
}  // namespace lockstep::trainer
