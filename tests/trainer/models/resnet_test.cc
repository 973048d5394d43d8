#include "trainer/models/resnet.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "trainer/models/model_cost.h"
#include "trainer/models/model_state.h"

namespace lockstep::trainer {
namespace {

std::map<std::string, at::Tensor> state_map(const torch::nn::Module& model) {
    std::map<std::string, at::Tensor> state;
    for (const NamedTensor& named : state_of(model)) {
        state[named.name] = named.tensor;
    }
    return state;
}

TEST(ResNet, HasTorchvisionsSize) {
    struct Published {
        std::int64_t depth, parameters, entries;
        double gmacs;
    };
    // Counts, entries of the state_dict and GMACs at 224 of torchvision.
    constexpr Published table[] = {{18, 11'689'512, 122, 1.81},
                                   {34, 21'797'672, 218, 3.66},
                                   {50, 25'557'032, 320, 4.09},
                                   {101, 44'549'160, 626, 7.80}};
    for (const Published& expected : table) {
        ResNet model(resnet_options(expected.depth, 1000));
        EXPECT_EQ(parameter_count(model), expected.parameters) << "depth " << expected.depth;
        EXPECT_EQ(static_cast<std::int64_t>(state_of(model).size()), expected.entries) << "depth " << expected.depth;
        EXPECT_NEAR(static_cast<double>(cost_of(model, 224).flops()) / 2e9, expected.gmacs, 0.0051)
            << "depth " << expected.depth;
    }
}

TEST(ResNet, HasTorchvisionsNames) {
    const auto basic = state_map(ResNet(resnet_options(18, 10)));
    const auto bottleneck = state_map(ResNet(resnet_options(50, 1000)));
    using Shape = std::vector<std::int64_t>;
    const auto expect = [](const auto& state, const std::string& name, const Shape& shape) {
        ASSERT_TRUE(state.contains(name)) << name;
        EXPECT_EQ(state.at(name).sizes().vec(), shape) << name;
    };
    expect(basic, "conv1.weight", {64, 3, 7, 7});
    expect(basic, "bn1.running_var", {64});
    expect(basic, "bn1.num_batches_tracked", {});
    expect(basic, "layer1.1.conv2.weight", {64, 64, 3, 3});
    expect(basic, "layer2.0.downsample.0.weight", {128, 64, 1, 1});
    expect(basic, "layer2.0.downsample.1.bias", {128});
    expect(basic, "fc.weight", {10, 512});
    expect(basic, "fc.bias", {10});
    EXPECT_FALSE(basic.contains("layer1.0.downsample.0.weight"));
    expect(bottleneck, "layer1.0.downsample.0.weight", {256, 64, 1, 1});
    expect(bottleneck, "layer3.5.conv3.weight", {1024, 256, 1, 1});
    expect(bottleneck, "layer4.2.bn3.weight", {2048});
    expect(bottleneck, "fc.weight", {1000, 2048});
}

TEST(ResNet, BottlenecksStrideOnTheir3x3Convolution) {
    ResNet model(resnet_options(50, 10));
    std::map<std::string, std::vector<std::int64_t>> shapes;
    for (const LayerCost& layer : cost_of(model, 64).layers) {
        shapes[layer.name] = layer.output_shape;
    }
    EXPECT_EQ(shapes["layer2.0.conv1"], (std::vector<std::int64_t>{1, 128, 16, 16}));
    EXPECT_EQ(shapes["layer2.0.conv2"], (std::vector<std::int64_t>{1, 128, 8, 8}));
    EXPECT_EQ(shapes["layer4.2.conv3"], (std::vector<std::int64_t>{1, 2048, 2, 2}));
    EXPECT_EQ(shapes["fc"], (std::vector<std::int64_t>{1, 10}));
}

TEST(ResNet, TheStemForSmallImagesKeepsTheirSize) {
    ResNet model(resnet_options(18, 10, /*small_images=*/true));
    const ModelCost cost = cost_of(model, 32);
    EXPECT_EQ(cost.layers[0].output_shape, (std::vector<std::int64_t>{1, 64, 32, 32}));
    EXPECT_EQ(cost.layers[0].parameters, 3 * 64 * 9);
    EXPECT_EQ(cost.layers[2].name, "layer1.0.conv1");
    EXPECT_EQ(cost.layers[2].output_shape, (std::vector<std::int64_t>{1, 64, 32, 32}));
}

TEST(ResNet, StartsWithHeInitialisation) {
    ResNet model(resnet_options(18, 10));
    model.initialise(3);
    const auto state = state_map(model);
    const at::Tensor weight = state.at("layer2.0.conv1.weight");  // 128 x 64 x 3 x 3: fan out 128 * 9
    EXPECT_NEAR(weight.square().mean().item<double>(), 2.0 / (128 * 9), 0.05 * 2.0 / (128 * 9));
    EXPECT_NEAR(weight.mean().item<double>(), 0.0,
                5 * std::sqrt(2.0 / (128 * 9) / static_cast<double>(weight.numel())));
    EXPECT_GT(weight.abs().max().item<double>(), 3.5 * std::sqrt(2.0 / (128 * 9))) << "normal, not uniform";
    EXPECT_LE(state.at("fc.weight").abs().max().item<double>(), 1.0 / std::sqrt(512.0));
    EXPECT_TRUE((state.at("layer1.0.bn2.weight") == 1).all().item<bool>());
}

TEST(ResNet, BasicBlockFollowsItsDefinition) {
    ResNet model(resnet_options(18, 4, /*small_images=*/true));
    model.initialise(3);
    model.to(at::kDouble);
    model.eval();
    const auto state = state_map(model);
    const auto conv_bn = [&](const at::Tensor& x, const std::string& conv, const std::string& bn, std::int64_t stride) {
        const at::Tensor weight = state.at(conv + ".weight");
        const at::Tensor y = at::conv2d(x, weight, {}, stride, weight.size(2) / 2);
        const auto per_channel = [&](const std::string& name) { return state.at(bn + "." + name).view({-1, 1, 1}); };
        return (y - per_channel("running_mean")) / (per_channel("running_var") + 1e-5).sqrt() * per_channel("weight") +
               per_channel("bias");
    };
    const at::Tensor images = (at::arange(2 * 3 * 64, at::kDouble) * 0.3).sin().view({2, 3, 8, 8});
    const at::NoGradGuard no_grad;
    at::Tensor x = conv_bn(images, "conv1", "bn1", 1).clamp_min(0);
    for (int stage = 1; stage <= 4; ++stage) {
        for (int block = 0; block < 2; ++block) {
            const std::string prefix = "layer" + std::to_string(stage) + "." + std::to_string(block) + ".";
            const bool changes = stage > 1 && block == 0;
            const at::Tensor inner = conv_bn(x, prefix + "conv1", prefix + "bn1", changes ? 2 : 1).clamp_min(0);
            const at::Tensor input = changes ? conv_bn(x, prefix + "downsample.0", prefix + "downsample.1", 2) : x;
            x = (conv_bn(inner, prefix + "conv2", prefix + "bn2", 1) + input).clamp_min(0);
        }
    }
    const at::Tensor expected = at::matmul(x.mean({2, 3}), state.at("fc.weight").t()) + state.at("fc.bias");
    EXPECT_LT((model.forward(images) - expected).abs().max().item<double>(), 1e-10);
}

TEST(ResNet, EveryParameterLearns) {
    ResNet model(resnet_options(50, 3));
    model.initialise(3);
    const at::Tensor images = (at::arange(2 * 3 * 64 * 64, at::kFloat) * 0.3).sin().view({2, 3, 64, 64});
    const at::Tensor logits = model.forward(images);
    EXPECT_EQ(logits.sizes().vec(), (std::vector<std::int64_t>{2, 3}));
    logits.square().sum().backward();
    for (const auto& parameter : model.named_parameters()) {
        ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
        EXPECT_GT(parameter.value().grad().abs().max().item<double>(), 0.0) << parameter.key();
    }
}

}  // namespace
}  // namespace lockstep::trainer
