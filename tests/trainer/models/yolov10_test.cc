#include "trainer/models/yolov10.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "trainer/models/model_cost.h"
#include "trainer/models/model_state.h"

namespace lockstep::trainer {
namespace {

using enum Yolov10Variant;

struct Counts {
    Yolov10Variant variant;
    std::int64_t classes;
    std::int64_t training;
};

// Counted by an independent program; those of n, s, m at 80 classes and of n at 20 also stand in public training logs.
constexpr Counts training_counts[] = {
    {n, 1, 2'707'430},   {n, 2, 2'707'820},   {n, 10, 2'710'940},  {n, 20, 2'714'840},  {n, 80, 2'775'520},
    {s, 1, 8'067'126},   {s, 10, 8'074'092},  {s, 20, 8'081'832},  {s, 80, 8'128'272},  {m, 1, 16'485'286},
    {m, 10, 16'495'708}, {m, 20, 16'507'288}, {m, 80, 16'576'768}, {b, 1, 20'452'566},  {b, 10, 20'466'444},
    {b, 20, 20'481'864}, {b, 80, 20'574'384}, {l, 1, 25'766'870},  {l, 10, 25'780'748}, {l, 20, 25'796'168},
    {l, 80, 25'888'688}, {x, 1, 31'656'806},  {x, 10, 31'674'140}, {x, 20, 31'693'400}, {x, 80, 31'808'960},
};

std::string label(Yolov10Variant variant) {
    return std::string("variant ") + "nsmblx"[static_cast<int>(variant)];
}

/// Running statistics and affine weights of batch norms as training would leave them: away from 0 and 1.
void disturb_batch_norms(torch::nn::Module& model) {
    const at::NoGradGuard no_grad;
    model.apply([](torch::nn::Module& module) {
        if (auto* batch_norm = dynamic_cast<BatchNorm2d*>(&module)) {
            const at::Tensor ramp = at::linspace(-1, 1, batch_norm->weight.numel(), batch_norm->weight.options());
            batch_norm->weight.copy_(1.0 + 0.3 * ramp);
            batch_norm->bias.copy_(0.2 * ramp.flip(0));
            batch_norm->running_mean.copy_(0.1 * ramp);
            batch_norm->running_var.copy_(0.5 + 0.3 * ramp * ramp);
        }
    });
}

at::Tensor test_images(std::int64_t batch, std::int64_t size, at::ScalarType type) {
    const at::Tensor ramp = at::arange(batch * 3 * size * size, at::kDouble).view({batch, 3, size, size});
    return (0.5 + 0.5 * (ramp * 0.37).sin() * (ramp * 0.011).cos()).to(type);
}

double greatest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    double difference = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference = std::max(difference, (a[i] - b[i]).abs().max().item<double>());
    }
    return difference;
}

at::Tensor total(const std::vector<at::Tensor>& maps) {
    at::Tensor sum = at::zeros({}, maps[0].options());
    for (const at::Tensor& map : maps) {
        sum = sum + map.sum();
    }
    return sum;
}

TEST(Yolov10, HasThePublishedNumberOfParameters) {
    for (const Counts& expected : training_counts) {
        const Yolov10 model(expected.variant, expected.classes);
        EXPECT_EQ(parameter_count(model), expected.training)
            << label(expected.variant) << ", " << expected.classes << " classes";
    }
}

TEST(Yolov10, ClassesChangeOnlyTheClassBranches) {
    // Counted by hand for two classes: what a class branch gains from one class more, beside its width max(C3,
    // min(classes, 100)), is a row of the last convolution: width + 1 numbers, for three levels and two heads.
    for (const auto& [variant, width] : {std::pair(n, 64), {s, 128}, {m, 192}, {b, 256}, {l, 256}, {x, 320}}) {
        const Yolov10 one(variant, 1);
        const Yolov10 two(variant, 2);
        EXPECT_EQ(parameter_count(two) - parameter_count(one), 2 * 3 * (width + 1)) << label(variant);
    }
}

TEST(Yolov10, HasThePublishedSizeAsDeployedNetwork) {
    struct Deployed {
        Yolov10Variant variant;
        std::int64_t with_batch_norm, fused;
        double gflops, gflops_both_heads, gflops_attention;
    };
    constexpr Deployed table[] = {
        {n, 2'310'624, 2'299'264, 6.69, 8.56, 0.06},       {s, 7'277'920, 7'248'960, 21.58, 24.78, 0.12},
        {m, 15'389'968, 15'359'488, 59.10, 63.91, 0.14},   {b, 19'101'696, 19'065'792, 91.95, 98.60, 0.12},
        {l, 24'416'000, 24'371'008, 120.34, 126.99, 0.12}, {x, 29'539'408, 29'473'568, 160.38, 170.62, 0.15},
    };
    constexpr double half_a_digit = 0.005 + 1e-9;
    for (const Deployed& expected : table) {
        Yolov10 model(expected.variant, 80);
        // The table has the fused 7x7 convolution also in the count of both heads, that is, without the 3x3 beside it.
        std::int64_t beside = 0;
        const ModelCost both = cost_of(model, 640);
        for (const LayerCost& layer : both.layers) {
            if (layer.name.find(".conv1.conv") != std::string::npos) {
                beside += layer.flops;
            }
        }
        EXPECT_NEAR(static_cast<double>(both.flops() - beside) * 1e-9, expected.gflops_both_heads, half_a_digit)
            << label(expected.variant) << ", beside " << beside;
        model.remove_one_to_many();
        EXPECT_EQ(parameter_count(model), expected.with_batch_norm) << label(expected.variant);
        model.fuse_for_deployment();
        EXPECT_EQ(parameter_count(model), expected.fused) << label(expected.variant);

        const ModelCost cost = cost_of(model, 640);
        EXPECT_NEAR(static_cast<double>(cost.flops()) * 1e-9, expected.gflops, half_a_digit) << label(expected.variant);
        EXPECT_NEAR(static_cast<double>(cost.attention_flops()) * 1e-9, expected.gflops_attention, half_a_digit)
            << label(expected.variant);
        std::int64_t parameters = 16;  // the bins' constants belong to no layer that runs
        for (const LayerCost& layer : cost.layers) {
            parameters += layer.parameters;
        }
        EXPECT_EQ(parameters, expected.fused) << label(expected.variant);
    }
}

TEST(Yolov10, ClassesChangeOnlyTheClassBranchesOfTheDeployedNetwork) {
    struct Deployed {
        Yolov10Variant variant;
        std::array<std::int64_t, 3> channels;     // C3, C4, C5
        std::map<std::int64_t, std::int64_t> of;  // parameters for so many classes
    };
    const Deployed table[] = {
        {n, {64, 128, 256}, {{1, 2'265'363}, {2, 2'265'558}, {10, 2'267'118}, {20, 2'269'068}, {80, 2'299'264}}},
        {s, {128, 256, 512}, {{1, 7'218'387}, {2, 7'218'774}, {10, 7'221'870}, {20, 7'225'740}, {80, 7'248'960}}},
        {m, {192, 384, 576}, {{1, 15'313'747}, {2, 15'314'326}, {10, 15'318'958}, {20, 15'324'748}, {80, 15'359'488}}},
        {b, {256, 512, 512}, {{1, 19'004'883}, {2, 19'005'654}, {10, 19'011'822}, {20, 19'019'532}, {80, 19'065'792}}},
        {l, {256, 512, 512}, {{1, 24'310'099}, {2, 24'310'870}, {10, 24'317'038}, {20, 24'324'748}, {80, 24'371'008}}},
        {x, {320, 640, 640}, {{1, 29'397'491}, {2, 29'398'454}, {10, 29'406'158}, {20, 29'415'788}, {80, 29'473'568}}},
    };
    // A folded convolution has a bias per output: of one level, whose input has x channels and whose class branch has
    // the width w, the two depthwise ones hold 10 x and 10 w numbers, the two pointwise ones w (x + 1) and w (w + 1),
    // the last one classes (w + 1). Nothing else depends on the classes.
    const auto class_branches = [](const std::array<std::int64_t, 3>& channels, std::int64_t classes) {
        const std::int64_t w = std::max(channels[0], std::min<std::int64_t>(classes, 100));
        std::int64_t count = 0;
        for (const std::int64_t x_channels : channels) {
            count += 10 * x_channels + w * (x_channels + 1) + 10 * w + w * (w + 1) + classes * (w + 1);
        }
        return count;
    };
    for (const auto& [variant, channels, of] : table) {
        for (const auto& [classes, expected] : of) {
            Yolov10 model(variant, classes);
            model.fuse_for_deployment();
            EXPECT_EQ(parameter_count(model), expected) << label(variant) << ", " << classes << " classes";
            EXPECT_EQ(expected - class_branches(channels, classes), of.at(80) - class_branches(channels, 80))
                << label(variant) << ", " << classes << " classes, by the closed form";
        }
    }
}

TEST(Yolov10, CostListsLayersWithShapes) {
    Yolov10 model(n, 80);
    const ModelCost cost = cost_of(model, 640);
    const LayerCost& stem = cost.layers.front();
    EXPECT_EQ(stem.name, "model.0.conv");
    EXPECT_EQ(stem.output_shape, (std::vector<std::int64_t>{1, 16, 320, 320}));
    EXPECT_EQ(stem.parameters, 3 * 16 * 9);
    EXPECT_EQ(stem.flops, 2LL * 3 * 16 * 9 * 320 * 320);
    ASSERT_EQ(cost.attention.size(), 1U);
    EXPECT_EQ(cost.attention[0].flops, 2LL * 400 * 400 * 2 * (32 + 64));
    // What training counted before is not counted again in evaluation.
    model.eval();
    for (const LayerCost& layer : cost_of(model, 320).layers) {
        EXPECT_EQ(layer.name.find("model.23.cv"), std::string::npos) << layer.name;
    }
}

TEST(Yolov10, EveryLayerHasThePublishedNumberOfParameters) {
    const std::map<int, std::int64_t> of_n = {{0, 464},     {1, 4672},    {2, 7360},        {3, 18560},  {4, 49664},
                                              {5, 9856},    {6, 197632},  {7, 36096},       {8, 460288}, {9, 164608},
                                              {10, 249728}, {13, 148224}, {16, 37248},      {17, 36992}, {19, 123648},
                                              {20, 18048},  {22, 282624}, {23, 929792 + 16}};
    const std::map<int, std::int64_t> of_s = {
        {0, 928},     {1, 18560},   {2, 29056},   {3, 73984},  {4, 197632},   {5, 36096},
        {6, 788480},  {7, 137728},  {8, 958464},  {9, 656896}, {10, 990976},  {13, 591360},
        {16, 148224}, {17, 147712}, {19, 493056}, {20, 68864}, {22, 1089536}, {23, 1700704 + 16}};
    for (const auto& [variant, expected] : {std::pair(n, of_n), {s, of_s}}) {
        const Yolov10 model(variant, 80);
        std::map<int, std::int64_t> counts;
        for (const auto& parameter : model.named_parameters()) {
            counts[std::stoi(parameter.key().substr(std::string("model.").size()))] += parameter.value().numel();
        }
        EXPECT_EQ(counts, expected) << label(variant);
    }
}

// Some to read; all of them, of every variant: yolov10_table_test.cc.
TEST(Yolov10, HasThePublishedNames) {
    const Yolov10 model(n, 80);
    std::map<std::string, std::vector<std::int64_t>> shapes;
    for (const NamedTensor& named : state_of(model)) {
        shapes[named.name] = named.tensor.sizes().vec();
    }
    EXPECT_EQ(shapes.size(), 595U);
    const std::map<std::string, std::vector<std::int64_t>> expected = {
        {"model.0.conv.weight", {16, 3, 3, 3}},
        {"model.0.bn.weight", {16}},
        {"model.0.bn.bias", {16}},
        {"model.0.bn.running_mean", {16}},
        {"model.0.bn.running_var", {16}},
        {"model.0.bn.num_batches_tracked", {}},
        {"model.2.cv1.conv.weight", {32, 32, 1, 1}},
        {"model.2.m.0.cv2.conv.weight", {16, 16, 3, 3}},
        {"model.4.m.1.cv1.conv.weight", {32, 32, 3, 3}},
        {"model.4.cv2.conv.weight", {64, 128, 1, 1}},
        {"model.5.cv1.conv.weight", {128, 64, 1, 1}},
        {"model.5.cv2.conv.weight", {128, 1, 3, 3}},
        {"model.9.cv2.conv.weight", {256, 512, 1, 1}},
        {"model.10.attn.qkv.conv.weight", {256, 128, 1, 1}},
        {"model.10.attn.proj.bn.weight", {128}},
        {"model.10.attn.pe.conv.weight", {128, 1, 3, 3}},
        {"model.10.ffn.0.conv.weight", {256, 128, 1, 1}},
        {"model.10.ffn.1.conv.weight", {128, 256, 1, 1}},
        {"model.22.m.0.cv1.0.conv.weight", {128, 1, 3, 3}},
        {"model.22.m.0.cv1.2.conv.conv.weight", {256, 1, 7, 7}},
        {"model.22.m.0.cv1.2.conv.bn.running_var", {256}},
        {"model.22.m.0.cv1.2.conv1.conv.weight", {256, 1, 3, 3}},
        {"model.22.m.0.cv1.4.bn.bias", {128}},
        {"model.23.cv2.0.0.conv.weight", {64, 64, 3, 3}},
        {"model.23.cv2.2.2.weight", {64, 64, 1, 1}},
        {"model.23.cv2.2.2.bias", {64}},
        {"model.23.cv3.1.0.0.conv.weight", {128, 1, 3, 3}},
        {"model.23.cv3.1.0.1.conv.weight", {80, 128, 1, 1}},
        {"model.23.cv3.1.1.0.conv.weight", {80, 1, 3, 3}},
        {"model.23.cv3.1.1.1.conv.weight", {80, 80, 1, 1}},
        {"model.23.cv3.1.2.bias", {80}},
        {"model.23.one2one_cv2.0.2.bias", {64}},
        {"model.23.one2one_cv3.2.0.0.conv.weight", {256, 1, 3, 3}},
        {"model.23.dfl.conv.weight", {1, 16, 1, 1}},
    };
    for (const auto& [name, shape] : expected) {
        ASSERT_TRUE(shapes.contains(name)) << name;
        EXPECT_EQ(shapes[name], shape) << name;
    }
}

TEST(Yolov10, StartsAsPublished) {
    Yolov10 model(n, 20);
    model.initialise(7);
    std::map<std::string, at::Tensor> state;
    for (const NamedTensor& named : state_of(model)) {
        state[named.name] = named.tensor;
    }
    EXPECT_TRUE(at::equal(state["model.23.dfl.conv.weight"].flatten(), at::arange(16, at::kFloat)));
    EXPECT_FALSE(state["model.23.dfl.conv.weight"].requires_grad());
    for (int level = 0; level < 3; ++level) {
        const double cells = std::pow(640 / (8 << level), 2);
        for (const std::string prefix : {"model.23.", "model.23.one2one_"}) {
            const std::string number = std::to_string(level);
            EXPECT_TRUE((state[prefix + "cv2." + number + ".2.bias"] == 1.0).all().item<bool>());
            EXPECT_NEAR(state[prefix + "cv3." + number + ".2.bias"][3].item<double>(), std::log(5.0 / 20 / cells),
                        1e-5);
        }
    }
    for (const auto& [name, tensor] : state) {
        if (const std::size_t at = name.find("one2one_"); at != std::string::npos) {
            const std::string source = std::string(name).replace(at, std::string("one2one_").size(), "");
            EXPECT_TRUE(at::equal(tensor, state[source])) << name;
        }
    }
    // Uniform in +-1 / sqrt(fan_in): 18,432 weights of fan-in 288 have this spread, within five standard errors.
    const at::Tensor& weight = state["model.3.conv.weight"];
    const double bound = 1.0 / std::sqrt(288.0);
    EXPECT_LE(weight.abs().max().item<double>(), bound);
    EXPECT_GT(weight.abs().max().item<double>(), 0.99 * bound);
    EXPECT_NEAR(weight.mean().item<double>(), 0.0, 5 * bound / std::sqrt(3.0 * 18432));
    EXPECT_NEAR(weight.square().mean().item<double>(), bound * bound / 3, 0.05 * bound * bound / 3);
    EXPECT_TRUE(weight.is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST(Yolov10, TheSeedDecidesTheWeights) {
    const auto weights = [](std::uint64_t seed) {
        Yolov10 model(n, 2);
        model.initialise(seed);
        return model.parameters();
    };
    const std::vector<at::Tensor> first = weights(1), again = weights(1), other = weights(2);
    for (std::size_t i = 0; i < first.size(); ++i) {
        EXPECT_TRUE(at::equal(first[i], again[i])) << "parameter " << i;
    }
    EXPECT_FALSE(at::equal(first[0], other[0]));
    EXPECT_FALSE(at::equal(first[0].flatten().slice(0, 0, 100), first[3].flatten().slice(0, 0, 100)));
}

TEST(Yolov10, GivesThreeLevelsForBothHeads) {
    Yolov10 model(n, 3);
    model.initialise(1);
    const DetectorOutput output = model.forward(test_images(2, 64, at::kFloat).slice(3, 0, 32));
    ASSERT_EQ(output.one_to_many.size(), 3U);
    ASSERT_EQ(output.one_to_one.size(), 3U);
    for (std::size_t level = 0; level < 3; ++level) {
        const std::vector<std::int64_t> shape = {2, 67, 8 >> level, 4 >> level};
        EXPECT_EQ(output.one_to_many[level].sizes().vec(), shape);
        EXPECT_EQ(output.one_to_one[level].sizes().vec(), shape);
        EXPECT_TRUE(output.one_to_many[level].is_contiguous(at::MemoryFormat::ChannelsLast)) << "level " << level;
    }
    EXPECT_EQ(greatest_difference(output.one_to_many, output.one_to_one), 0.0) << "the branches start as copies";
    model.eval();
    EXPECT_TRUE(model.forward(test_images(1, 32, at::kFloat)).one_to_many.empty());
}

TEST(Yolov10, EveryVariantRuns) {
    for (const Yolov10Variant variant : {s, m, b, l, x}) {
        Yolov10 model(variant, 2);
        model.initialise(1);
        model.eval();
        const at::NoGradGuard no_grad;
        const DetectorOutput output = model.forward(test_images(1, 32, at::kFloat));
        EXPECT_EQ(output.one_to_one[2].sizes().vec(), (std::vector<std::int64_t>{1, 66, 1, 1})) << label(variant);
        EXPECT_TRUE(output.one_to_one[0].isfinite().all().item<bool>()) << label(variant);
    }
}

TEST(Yolov10, TheOneToOneLossTrainsOnlyItsOwnBranches) {
    Yolov10 model(n, 3);
    model.initialise(1);
    total(model.forward(test_images(2, 64, at::kFloat)).one_to_one).backward();
    for (const auto& parameter : model.named_parameters()) {
        const bool own = parameter.key().find("one2one_") != std::string::npos;
        EXPECT_EQ(parameter.value().grad().defined(), own) << parameter.key();
    }
    model.zero_grad();
    total(model.forward(test_images(2, 64, at::kFloat)).one_to_many).backward();
    for (const auto& parameter : model.named_parameters()) {
        const bool foreign =
            parameter.key().find("one2one_") != std::string::npos || !parameter.value().requires_grad();
        EXPECT_EQ(parameter.value().grad().defined(), !foreign) << parameter.key();
    }
}

TEST(Yolov10, NoImagesGiveNoMapsAndNoGradient) {
    Yolov10 model(n, 3);
    model.initialise(1);
    const DetectorOutput output = model.forward(at::zeros({0, 3, 64, 64}));
    EXPECT_EQ(output.one_to_many[1].sizes().vec(), (std::vector<std::int64_t>{0, 67, 4, 4}));
    (total(output.one_to_many) + total(output.one_to_one)).backward();
    for (const auto& parameter : model.named_parameters()) {
        if (parameter.value().requires_grad()) {
            ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
            EXPECT_EQ(parameter.value().grad().abs().max().item<double>(), 0.0) << parameter.key();
        }
    }
    EXPECT_EQ(model.named_buffers()["model.9.cv1.bn.num_batches_tracked"].item<std::int64_t>(), 0);
    EXPECT_EQ(model.named_buffers()["model.9.cv1.bn.running_mean"].abs().max().item<double>(), 0.0);
}

TEST(Yolov10, FrozenBatchNormsKeepTheirStatisticsAndTrainTheirWeights) {
    Yolov10 model(n, 3);
    model.initialise(1);
    disturb_batch_norms(model);
    set_batch_norm_mode(model, BatchNormMode::frozen);
    std::vector<at::Tensor> before;
    for (const at::Tensor& buffer : model.buffers()) {
        before.push_back(buffer.clone());
    }
    const at::Tensor images = test_images(2, 64, at::kFloat);
    const DetectorOutput output = model.forward(images);
    (total(output.one_to_many) + total(output.one_to_one)).backward();
    const std::vector<at::Tensor> after = model.buffers();
    for (std::size_t i = 0; i < after.size(); ++i) {
        EXPECT_TRUE(at::equal(before[i], after[i])) << "buffer " << i;
    }
    EXPECT_GT(model.named_parameters()["model.0.bn.weight"].grad().abs().max().item<double>(), 0.0);

    // An image's result doesn't depend on its neighbours.
    const at::NoGradGuard no_grad;
    const DetectorOutput alone = model.forward(images.slice(0, 1, 2));
    EXPECT_LT((alone.one_to_one[0][0] - output.one_to_one[0][1]).abs().max().item<double>(), 1e-4);

    set_batch_norm_mode(model, BatchNormMode::local);
    model.forward(images);
    EXPECT_EQ(model.named_buffers()["model.0.bn.num_batches_tracked"].item<std::int64_t>(), 1);
    EXPECT_FALSE(at::equal(before[0], model.buffers()[0]));
}

TEST(Yolov10, FusingKeepsTheOutputs) {
    for (const Yolov10Variant variant : {n, s, m}) {
        for (const auto& [type, tolerance] : {std::pair(at::kFloat, 1e-4), {at::kDouble, 1e-10}}) {
            Yolov10 model(variant, 4);
            model.initialise(3);
            disturb_batch_norms(model);
            model.to(type);
            model.eval();
            const at::NoGradGuard no_grad;
            const at::Tensor images = test_images(2, 64, type);
            const std::vector<at::Tensor> before = model.forward(images).one_to_one;
            model.fuse_for_deployment();
            const std::vector<at::Tensor> after = model.forward(images).one_to_one;
            EXPECT_LT(greatest_difference(before, after), tolerance) << label(variant) << " " << type;
            for (const NamedTensor& named : state_of(model)) {
                EXPECT_EQ(named.name.find(".bn."), std::string::npos) << named.name;
            }
            model.fuse_for_deployment();
            EXPECT_EQ(greatest_difference(after, model.forward(images).one_to_one), 0.0) << "fused twice";
        }
    }
}

TEST(Yolov10, Bf16AutocastStaysNearFp32AndTrains) {
    Yolov10 model(n, 3);
    model.initialise(1);
    disturb_batch_norms(model);
    set_batch_norm_mode(model, BatchNormMode::frozen);  // statistics of a few cells would magnify the rounding
    const at::Tensor images = test_images(2, 64, at::kFloat);
    const DetectorOutput exact = model.forward(images);

    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const DetectorOutput output = model.forward(images);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);

    EXPECT_EQ(output.one_to_many[0].scalar_type(), at::kBFloat16);
    EXPECT_LT((exact.one_to_many[0] - output.one_to_many[0].to(at::kFloat)).abs().mean().item<double>(),
              0.05 * exact.one_to_many[0].std().item<double>());
    std::vector<at::Tensor> wide;
    for (const at::Tensor& map : output.one_to_many) {
        wide.push_back(map.to(at::kFloat));
    }
    total(wide).backward();
    const at::Tensor gradient = model.named_parameters()["model.0.conv.weight"].grad();
    EXPECT_EQ(gradient.scalar_type(), at::kFloat);
    EXPECT_TRUE(gradient.isfinite().all().item<bool>());
    EXPECT_GT(gradient.abs().max().item<double>(), 0.0);
}

}  // namespace
}  // namespace lockstep::trainer
