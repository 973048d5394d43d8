#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "trainer/models/depthwise7x7.h"
#include "trainer/models/fused_batch_norm.h"
#include "trainer/models/layers.h"
#include "trainer/models/loop_version.h"
#include "trainer/models/small_map_convolution.h"

namespace lockstep::trainer {
namespace {

constexpr double epsilon = 1e-3;

at::Tensor wave(at::IntArrayRef shape, double frequency) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) {
        count *= size;
    }
    return ((at::arange(count, at::kDouble) * frequency).sin() * 2.0 + 0.3).view(shape);
}

at::Tensor channels_last(const at::Tensor& x) {
    return x.contiguous(at::MemoryFormat::ChannelsLast);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
    EXPECT_EQ(a.sizes(), b.sizes());
    return a.numel() == 0 ? 0.0 : (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

std::string name_of(Activation activation) {
    return activation == Activation::none ? "none" : activation == Activation::relu ? "relu" : "silu";
}

/// Result and gradients of one way to compute y from (x, weight, bias), for the given gradient of y.
struct Outcome {
    at::Tensor y, grad_x, grad_weight, grad_bias;
};

template <typename Compute>
Outcome outcome(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& grad_y,
                const Compute& compute) {
    const at::Tensor x_leaf = x.detach().requires_grad_(true);
    const at::Tensor weight_leaf = weight.clone().requires_grad_(true);
    const at::Tensor bias_leaf = bias.clone().requires_grad_(true);
    const at::Tensor y = compute(x_leaf, weight_leaf, bias_leaf);
    y.backward(grad_y);
    return {y.detach(), x_leaf.grad(), weight_leaf.grad(), bias_leaf.grad()};
}

/// By the definition, in LibTorch's elementary operations.
at::Tensor plain_batch_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const Moments* given,
                            Activation activation) {
    const auto per_channel = [](const at::Tensor& values) { return values.view({1, -1, 1, 1}); };
    const at::Tensor mean = given != nullptr ? per_channel(given->mean) : x.mean({0, 2, 3}, true);
    const at::Tensor variance =
        given != nullptr ? per_channel(given->variance) : (x - mean).square().mean({0, 2, 3}, true);
    const at::Tensor z = (x - mean) / (variance + epsilon).sqrt() * per_channel(weight) + per_channel(bias);
    switch (activation) {
        case Activation::none:
            return z;
        case Activation::relu:
            return z.clamp_min(0);
        case Activation::silu:
            return z / (1.0 + (-z).exp());
    }
    return {};
}

at::Tensor fused_of_batch(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          Activation activation) {
    at::Tensor running_mean = at::zeros_like(bias.detach()), running_var = at::ones_like(bias.detach());
    return fused_batch_norm(x, weight, bias, batch_moments(x.detach(), running_mean, running_var, 0.1), epsilon,
                            activation);
}

std::string name_of(LoopVersion version) {
    switch (version) {
        case LoopVersion::any_cpu:
            return "any_cpu";
        case LoopVersion::x86_64_v3:
            return "x86_64_v3";
        case LoopVersion::x86_64_v4:
            return "x86_64_v4";
    }
    return {};
}

/// A test runs once for each version of the loops, and is skipped, with a message, for those beyond this CPU.
class Loops : public testing::TestWithParam<LoopVersion> {
  protected:
    void SetUp() override {
        const std::vector<LoopVersion> runnable = runnable_loops();
        if (std::find(runnable.begin(), runnable.end(), GetParam()) == runnable.end()) {
            GTEST_SKIP() << "not tested: this CPU can't run the loops for " << name_of(GetParam());
        }
        use_loops(GetParam());
    }
    void TearDown() override { use_loops(runnable_loops().back()); }
};

class FusedBatchNorm : public Loops {};
class Depthwise7x7 : public Loops {};

constexpr auto versions = [] {
    return testing::Values(LoopVersion::any_cpu, LoopVersion::x86_64_v3, LoopVersion::x86_64_v4);
};
INSTANTIATE_TEST_SUITE_P(For, FusedBatchNorm, versions(), [](const auto& version) { return name_of(version.param); });
INSTANTIATE_TEST_SUITE_P(For, Depthwise7x7, versions(), [](const auto& version) { return name_of(version.param); });

TEST_P(FusedBatchNorm, FollowsItsDefinitionWithGradients) {
    // Channel counts around the widths of vectors; rows around those of chunks.
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{2, 1, 3, 5},
                                                   {1, 3, 2, 2},
                                                   {2, 8, 3, 3},
                                                   {3, 17, 5, 4},
                                                   {2, 31, 4, 4},
                                                   {1, 33, 30, 30},
                                                   {2, 80, 9, 7}}) {
        const at::Tensor x = channels_last(wave(shape, 0.7));
        const at::Tensor weight = wave({shape[1]}, 0.9), bias = wave({shape[1]}, 1.3);
        const at::Tensor grad_y = channels_last(wave(shape, 0.23));
        for (const Activation activation : {Activation::none, Activation::relu, Activation::silu}) {
            for (const bool of_batch : {true, false}) {
                const Moments given{0.2 * wave({shape[1]}, 2.1), 0.5 + wave({shape[1]}, 0.4).square()};
                const Outcome fused =
                    outcome(x, weight, bias, grad_y, [&](const auto& x_, const auto& w, const auto& b) {
                        return of_batch ? fused_of_batch(x_, w, b, activation)
                                        : fused_batch_norm(x_, w, b, given, epsilon, activation);
                    });
                const Outcome plain =
                    outcome(x, weight, bias, grad_y, [&](const auto& x_, const auto& w, const auto& b) {
                        return plain_batch_norm(x_, w, b, of_batch ? nullptr : &given, activation);
                    });
                const std::string label =
                    name_of(activation) + (of_batch ? " batch" : " running") + " channels " + std::to_string(shape[1]);
                EXPECT_LT(difference(fused.y, plain.y), 1e-12) << label;
                EXPECT_LT(difference(fused.grad_x, plain.grad_x), 1e-11) << label;
                EXPECT_LT(difference(fused.grad_weight, plain.grad_weight), 1e-9) << label;
                EXPECT_LT(difference(fused.grad_bias, plain.grad_bias), 1e-10) << label;
                EXPECT_TRUE(fused.y.is_contiguous(at::MemoryFormat::ChannelsLast)) << label;
            }
        }
    }
}

TEST_P(FusedBatchNorm, GradientsEqualDifferenceQuotients) {
    const std::vector<std::int64_t> shape = {2, 3, 2, 3};
    const at::Tensor x = channels_last(wave(shape, 0.7)), weight = wave({3}, 0.9), bias = wave({3}, 1.3);
    const at::Tensor grad_y = channels_last(wave(shape, 0.23));
    const auto value = [&](const at::Tensor& at_x) {
        return (fused_of_batch(at_x, weight, bias, Activation::silu) * grad_y).sum().item<double>();
    };
    const at::Tensor gradient = outcome(x, weight, bias, grad_y, [](const auto& x_, const auto& w, const auto& b) {
                                    return fused_of_batch(x_, w, b, Activation::silu);
                                }).grad_x.contiguous();
    for (std::int64_t i = 0; i < x.numel(); ++i) {
        const double step = 1e-5;
        at::Tensor up = x.contiguous().clone(), down = up.clone();
        up.data_ptr<double>()[i] += step;
        down.data_ptr<double>()[i] -= step;
        const double quotient = (value(channels_last(up)) - value(channels_last(down))) / (2 * step);
        EXPECT_NEAR(gradient.data_ptr<double>()[i], quotient, 1e-7) << "element " << i;
    }
}

TEST_P(FusedBatchNorm, Fp32AndBf16StayNearFp64) {
    // 61 channels need whole vectors in pairs, a single one and a part of one, whatever their width.
    const std::vector<std::int64_t> shape = {2, 61, 17, 23};
    const at::Tensor weight = wave({61}, 0.9), bias = wave({61}, 1.3);
    for (const auto& [type, tolerance] : {std::pair(at::kFloat, 2e-5), {at::kBFloat16, 2e-2}}) {
        // The same rounded numbers in both precisions.
        const at::Tensor x = channels_last(wave(shape, 0.7).to(type)),
                         grad_y = channels_last(wave(shape, 0.23).to(type));
        const at::Tensor narrow_weight = weight.to(at::kFloat), narrow_bias = bias.to(at::kFloat);
        for (const Activation activation : {Activation::none, Activation::silu}) {
            const auto fused = [activation](const auto& x_, const auto& w, const auto& b) {
                return fused_of_batch(x_, w, b, activation);
            };
            const Outcome narrow = outcome(x, narrow_weight, narrow_bias, grad_y, fused);
            const Outcome wide = outcome(x.to(at::kDouble), narrow_weight.to(at::kDouble), narrow_bias.to(at::kDouble),
                                         grad_y.to(at::kDouble), fused);
            EXPECT_EQ(narrow.y.scalar_type(), type);
            EXPECT_EQ(narrow.grad_x.scalar_type(), type);
            EXPECT_EQ(narrow.grad_weight.scalar_type(), at::kFloat);
            const auto relative = [](const at::Tensor& a, const at::Tensor& b) {
                return difference(a, b) / b.abs().max().item<double>();
            };
            EXPECT_LT(relative(narrow.y, wide.y), tolerance) << type;
            EXPECT_LT(relative(narrow.grad_x, wide.grad_x), tolerance) << type;
            EXPECT_LT(relative(narrow.grad_weight, wide.grad_weight), tolerance) << type;
            EXPECT_LT(relative(narrow.grad_bias, wide.grad_bias), tolerance) << type;
        }
    }
}

TEST_P(FusedBatchNorm, SiluIsExactOverItsRange) {
    // One channel with mean 0, deviation 1 makes the batch norm the identity.
    const at::Tensor x = at::linspace(-120, 120, 48001, at::kFloat).view({1, 1, 1, -1});
    const at::Tensor one = at::ones({1}), zero = at::zeros({1});
    const at::Tensor y = fused_batch_norm(x, one, zero, {zero, one - epsilon}, epsilon, Activation::silu);
    const at::Tensor exact_x = x.to(at::kDouble);
    const at::Tensor exact = exact_x / (1.0 + (-exact_x).exp());
    // 120 * sigmoid is about 120, whose unit in the last place is 7.6e-6; the identity itself is rounded too.
    EXPECT_LT(((y.to(at::kDouble) - exact).abs() / (1e-30 + exact.abs()).clamp_min(1.0)).max().item<double>(), 6e-7);
    // The tail keeps its relative precision where it matters, and dies out quietly.
    const at::Tensor tail = (exact_x <= -1).logical_and(exact_x >= -16);
    EXPECT_LT(((y.to(at::kDouble) - exact) / exact).masked_select(tail).abs().max().item<double>(), 4e-6);
    EXPECT_LT(y.slice(3, 0, 8000).abs().max().item<double>(), 1e-25);
}

TEST_P(FusedBatchNorm, NotANumberIsNotHidden) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
        at::Tensor x = at::zeros({1, 20, 2, 2}, type);
        x[0][17][1][0] = std::numeric_limits<float>::quiet_NaN();
        const at::Tensor one = at::ones({20}), zero = at::zeros({20});
        for (const Activation activation : {Activation::none, Activation::relu, Activation::silu}) {
            const at::Tensor y = fused_batch_norm(x, one, zero, {zero, one}, epsilon, activation);
            EXPECT_EQ(y.isnan().sum().item<std::int64_t>(), 1) << name_of(activation) << " " << type;
            EXPECT_TRUE(y[0][17][1][0].isnan().item<bool>()) << name_of(activation) << " " << type;
        }
    }
}

TEST_P(FusedBatchNorm, MomentsSurviveALargeMean) {
    // Variance 2.0 around a mean of 1000: squares summed as they are would lose it in FP32.
    const at::Tensor sign = ((at::arange(40 * 40) % 2) * 2 - 1).view({40, 40}).to(at::kFloat);
    const at::Tensor x = channels_last(at::full({2, 20, 40, 40}, 1000.0F) + sign * static_cast<float>(std::sqrt(2.0)));
    at::Tensor running_mean = at::zeros({20}), running_var = at::ones({20});
    const Moments moments = batch_moments(x, running_mean, running_var, 0.03);
    EXPECT_NEAR(moments.mean[7].item<double>(), 1000.0, 1e-3);
    EXPECT_NEAR(moments.variance[19].item<double>(), 2.0, 1e-3);
    EXPECT_NEAR(running_mean[7].item<double>(), 30.0, 1e-3);
    EXPECT_NEAR(running_var[7].item<double>(), 0.97 + 0.03 * 2.0 * 3200 / 3199, 1e-4);
}

TEST_P(FusedBatchNorm, AnyLayoutOfInputAndGradient) {
    const std::vector<std::int64_t> shape = {2, 6, 3, 4};
    const at::Tensor weight = wave({6}, 0.9), bias = wave({6}, 1.3);
    const at::Tensor x = wave(shape, 0.7), grad_y = wave(shape, 0.23);
    const auto fused = [](const auto& x_, const auto& w, const auto& b) {
        return fused_of_batch(x_, w, b, Activation::silu);
    };
    const Outcome expected = outcome(channels_last(x), weight, bias, channels_last(grad_y), fused);
    const auto slice = [](const at::Tensor& map) {
        return channels_last(at::cat({-map, map, -map}, 1)).narrow(1, 6, 6);
    };
    const auto rows_apart = [](const at::Tensor& map) {
        return channels_last(at::cat({map, -map}, 2)).narrow(2, 0, 3);
    };
    for (const at::Tensor& x_view : {x, slice(x), rows_apart(x)}) {
        for (const at::Tensor& grad_view : {grad_y, slice(grad_y), rows_apart(grad_y)}) {
            const Outcome found = outcome(x_view, weight, bias, grad_view, fused);
            EXPECT_LT(difference(found.y, expected.y), 1e-12) << x_view.strides() << grad_view.strides();
            EXPECT_LT(difference(found.grad_x, expected.grad_x), 1e-12) << x_view.strides() << grad_view.strides();
        }
    }
    const at::Tensor constant = at::full({1}, 0.7, at::kDouble).expand(shape);  // as the gradient of a sum
    const Outcome of_constant = outcome(channels_last(x), weight, bias, constant, fused);
    EXPECT_LT(
        difference(of_constant.grad_x, outcome(channels_last(x), weight, bias, channels_last(constant), fused).grad_x),
        1e-12);
}

TEST_P(FusedBatchNorm, ThreadsChangeNothing) {
    const std::vector<std::int64_t> shape = {4, 20, 40, 40};
    const at::Tensor x = channels_last(wave(shape, 0.7).to(at::kFloat)),
                     grad_y = channels_last(wave(shape, 0.23).to(at::kFloat));
    const at::Tensor weight = wave({20}, 0.9).to(at::kFloat), bias = wave({20}, 1.3).to(at::kFloat);
    const auto fused = [](const auto& x_, const auto& w, const auto& b) {
        return fused_of_batch(x_, w, b, Activation::silu);
    };
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const Outcome one = outcome(x, weight, bias, grad_y, fused);
    at::set_num_threads(3);
    const Outcome three = outcome(x, weight, bias, grad_y, fused);
    at::set_num_threads(threads);
    EXPECT_TRUE(at::equal(one.y, three.y));
    EXPECT_TRUE(at::equal(one.grad_x, three.grad_x));
    EXPECT_TRUE(at::equal(one.grad_weight, three.grad_weight));
    EXPECT_TRUE(at::equal(one.grad_bias, three.grad_bias));
}

TEST_P(FusedBatchNorm, NoImagesMoveNoStatistics) {
    ConvBN block(3, 20, {.kernel = 3});
    initialise(block, 1, ConvolutionInitialisation::kaiming_uniform);
    const at::Tensor y = block.forward(at::zeros({0, 3, 4, 4}));
    EXPECT_EQ(y.sizes().vec(), (std::vector<std::int64_t>{0, 20, 4, 4}));
    y.sum().backward();
    EXPECT_EQ(block.named_buffers()["bn.num_batches_tracked"].item<std::int64_t>(), 0);
    EXPECT_TRUE(at::equal(block.named_buffers()["bn.running_var"], at::ones({20})));
    for (const auto& parameter : block.named_parameters()) {
        ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
        EXPECT_EQ(parameter.value().grad().abs().max().item<double>(), 0.0) << parameter.key();
    }
}

/// Two threads as two ranks, whose sums meet; one of them may have no images.
TEST_P(FusedBatchNorm, MomentsOfSeveralRanksAreThoseOfTheirCellsTogether) {
    for (const std::int64_t images_of_first : {2, 1, 0}) {
        const std::vector<std::int64_t> shape = {3, 20, 3, 2};
        const at::Tensor x = channels_last(wave(shape, 0.7)), grad_y = channels_last(wave(shape, 0.23));
        const at::Tensor weight = wave({20}, 0.9), bias = wave({20}, 1.3), centre = wave({20}, 0.2);
        const std::vector<at::Tensor> parts = x.split_with_sizes({images_of_first, 3 - images_of_first});
        const std::vector<at::Tensor> grads = grad_y.split_with_sizes({images_of_first, 3 - images_of_first});

        std::barrier meeting(2);
        std::array<std::vector<double>, 2> values;
        std::vector<Outcome> outcomes(2);
        std::vector<at::Tensor> means(2), variances(2);
        const auto rank = [&](std::size_t mine) {
            const SumOverRanks sum = [&](std::span<double> own, BatchNormPass) {
                values[mine].assign(own.begin(), own.end());
                meeting.arrive_and_wait();
                for (std::size_t i = 0; i < own.size(); ++i) {
                    own[i] = values[0][i] + values[1][i];
                }
                meeting.arrive_and_wait();
            };
            means[mine] = centre.clone();
            variances[mine] = at::ones({20}, at::kDouble);
            outcomes[mine] =
                outcome(parts[mine], weight, bias, grads[mine], [&](const auto& x_, const auto& w, const auto& b) {
                    const Moments moments = batch_moments(x_.detach(), means[mine], variances[mine], 0.1, sum);
                    return fused_batch_norm(x_, w, b, moments, epsilon, Activation::silu, sum);
                });
        };
        std::jthread second(rank, 1);
        rank(0);
        second.join();

        at::Tensor mean = centre.clone(), variance = at::ones({20}, at::kDouble);
        const Outcome whole = outcome(x, weight, bias, grad_y, [&](const auto& x_, const auto& w, const auto& b) {
            return fused_batch_norm(x_, w, b, batch_moments(x_.detach(), mean, variance, 0.1), epsilon,
                                    Activation::silu);
        });
        EXPECT_LT(difference(at::cat({outcomes[0].y, outcomes[1].y}), whole.y), 1e-12);
        EXPECT_LT(difference(at::cat({outcomes[0].grad_x, outcomes[1].grad_x}), whole.grad_x), 1e-12);
        EXPECT_LT(difference(outcomes[0].grad_weight + outcomes[1].grad_weight, whole.grad_weight), 1e-11);
        EXPECT_LT(difference(outcomes[0].grad_bias + outcomes[1].grad_bias, whole.grad_bias), 1e-11);
        for (std::size_t i = 0; i < 2; ++i) {
            EXPECT_LT(difference(means[i], mean), 1e-13);
            EXPECT_LT(difference(variances[i], variance), 1e-13);
        }
    }
}

TEST_P(Depthwise7x7, EqualsLibTorchsConvolution) {
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{2, 5, 8, 6}, {1, 16, 1, 1}, {2, 33, 3, 9}, {1, 48, 10, 2}}) {
        const std::int64_t channels = shape[1];
        const at::Tensor grad_y = wave(shape, 0.23), weight = wave({channels, 1, 7, 7}, 0.31);
        for (const auto& [type, tolerance] :
             {std::pair(at::kDouble, 1e-10), {at::kFloat, 1e-4}, {at::kBFloat16, 0.3}}) {
            const at::Tensor x = channels_last(wave(shape, 0.7).to(type)).detach().requires_grad_(true);
            const at::Tensor narrow =
                weight.clone().to(type == at::kDouble ? at::kDouble : at::kFloat).requires_grad_(true);
            ASSERT_TRUE(can_use_depthwise7x7(x, narrow));
            const at::Tensor y = depthwise7x7(x, narrow);
            y.backward(channels_last(grad_y.to(type)));

            const at::Tensor plain_x = x.detach().to(at::kDouble).requires_grad_(true);
            const at::Tensor plain_weight = narrow.detach().to(type).to(at::kDouble).requires_grad_(true);
            const at::Tensor plain_y = at::conv2d(plain_x, plain_weight, {}, 1, 3, 1, channels);
            plain_y.backward(grad_y.to(type).to(at::kDouble));
            EXPECT_LT(difference(y, plain_y), tolerance) << type << " channels " << channels;
            // LibTorch's own: on a CPU without AVX-512 it adds the 49 products in bf16.
            const bool has_avx512 = runnable_loops().back() == LoopVersion::x86_64_v4;
            const double tolerance_of_x = type == at::kBFloat16 && !has_avx512 ? 1.5 : tolerance;
            EXPECT_LT(difference(x.grad(), plain_x.grad()), tolerance_of_x) << type << " channels " << channels;
            EXPECT_LT(difference(narrow.grad(), plain_weight.grad()), tolerance) << type << " channels " << channels;
        }
    }
}

TEST(SmallMapConvolution, EqualsLibTorchsConvolution) {
    struct Case {
        std::int64_t height, width, kernel, stride;
    };
    for (const auto& [height, width, kernel, stride] : {Case{1, 1, 3, 1},
                                                        {2, 2, 3, 1},
                                                        {1, 2, 3, 1},
                                                        {2, 1, 7, 1},
                                                        {3, 4, 3, 2},
                                                        {2, 2, 3, 2},
                                                        {1, 1, 3, 2},
                                                        {4, 3, 1, 2},
                                                        {6, 5, 5, 3},
                                                        {2, 2, 1, 1}}) {
        const ConvolutionOptions options{.kernel = kernel, .stride = stride};
        for (const std::int64_t batch : {0, 1, 3}) {
            for (const bool is_channels_last : {true, false}) {
                const auto laid_out = [&](const at::Tensor& map) {
                    return is_channels_last ? channels_last(map) : map.contiguous();
                };
                const at::Tensor x = laid_out(wave({batch, 6, height, width}, 0.7));
                const at::Tensor weight = channels_last(wave({5, 6, kernel, kernel}, 0.31));
                const std::string label = "map " + std::to_string(height) + "x" + std::to_string(width) + " kernel " +
                                          std::to_string(kernel) + " stride " + std::to_string(stride) + " batch " +
                                          std::to_string(batch);
                ASSERT_TRUE(can_use_small_map_convolution(x, weight, options)) << label;
                const auto plain = [&](const auto& x_, const auto& w, const auto&) {
                    return at::conv2d(x_, w, {}, stride, kernel / 2);
                };
                const auto ours = [&](const auto& x_, const auto& w, const auto&) {
                    return small_map_convolution(x_, w, options);
                };
                const auto run = [&](const auto& compute, const at::Tensor& grad_y) {
                    const at::Tensor x_leaf = x.detach().requires_grad_(true);
                    const at::Tensor weight_leaf = weight.clone().requires_grad_(true);
                    const at::Tensor y = compute(x_leaf, weight_leaf, at::Tensor());
                    y.backward(grad_y);
                    return Outcome{y.detach(), x_leaf.grad(), weight_leaf.grad(), {}};
                };
                const at::Tensor shape_of_y = plain(x, weight, at::Tensor());
                const at::Tensor grad_y = laid_out(wave(shape_of_y.sizes(), 0.23));
                const Outcome expected = run(plain, grad_y), found = run(ours, grad_y);
                EXPECT_LT(difference(found.y, expected.y), 1e-11) << label;
                EXPECT_LT(difference(found.grad_x, expected.grad_x), 1e-11) << label;
                EXPECT_LT(difference(found.grad_weight, expected.grad_weight), 1e-11) << label;
                EXPECT_TRUE(found.y.is_contiguous(at::MemoryFormat::ChannelsLast)) << label;
                EXPECT_TRUE(found.grad_weight.is_contiguous(at::MemoryFormat::ChannelsLast)) << label;
            }
        }
    }
}

TEST(SmallMapConvolution, LeavesWhatItIsNotMeantFor) {
    const at::Tensor weight = at::zeros({4, 4, 3, 3});
    EXPECT_FALSE(can_use_small_map_convolution(at::zeros({1, 4, 3, 2}), weight, {.kernel = 3}));
    EXPECT_FALSE(can_use_small_map_convolution(at::zeros({1, 4, 2, 2}), weight, {.kernel = 3, .groups = 4}));
    EXPECT_FALSE(can_use_small_map_convolution(at::zeros({1, 4, 2, 2}).to(at::kBFloat16), weight, {.kernel = 3}));
    EXPECT_FALSE(can_use_small_map_convolution(at::zeros({1, 4, 2, 2}).to(at::kDouble), weight, {.kernel = 3}));
}

}  // namespace
}  // namespace lockstep::trainer
