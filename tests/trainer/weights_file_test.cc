#include "trainer/weights_file.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "trainer/models/model_factory.h"
#include "trainer/models/model_state.h"
#include "trainer/models/resnet.h"
#include "trainer/models/safetensors.h"
#include "trainer/models/yolov10.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;

class WeightsFileTest : public testing::Test {
  protected:
    WeightsFileTest() { fs::create_directories(folder_); }
    ~WeightsFileTest() override { fs::remove_all(folder_); }

    fs::path saved(const std::string& name, std::int64_t classes) const {
        const fs::path path = folder_ / (name + ".safetensors");
        const auto network = make_detector({.name = name, .classes = classes, .image_size = 64}, 5);
        save_network(path, *network, {name, std::vector<std::string>(static_cast<std::size_t>(classes), "x"), 64});
        return path;
    }

    /// Without the tensors of this name.
    fs::path without(const fs::path& path, const std::string& name) const {
        auto content = load_safetensors(path);
        std::erase_if(content.tensors, [&](const NamedTensor& item) { return item.name == name; });
        const fs::path thinner = folder_ / "thinner.safetensors";
        save_safetensors(thinner, content.tensors, content.metadata);
        return thinner;
    }

    template <typename Load>
    static std::string refusal(const Load& load) {
        try {
            load();
        } catch (const base::Error& error) {
            return error.what();
        }
        return "accepted";
    }

    fs::path folder_ = fs::path(testing::TempDir()) / "weights-file-test";
};

at::Tensor tensor_of(const torch::nn::Module& module, const std::string& name) {
    for (const NamedTensor& item : state_of(module)) {
        if (item.name == name) {
            return item.tensor;
        }
    }
    ADD_FAILURE() << "no tensor " << name;
    return {};
}

TEST_F(WeightsFileTest, InitialWeightsOfOtherClassesGiveAllButTheClassBranches) {
    const fs::path file = saved("yolov10n", 2);
    const auto source = make_detector({.name = "yolov10n", .classes = 2, .image_size = 64}, 5);
    const auto fresh = make_detector({.name = "yolov10n", .classes = 90, .image_size = 64}, 6);
    const auto target = make_detector({.name = "yolov10n", .classes = 90, .image_size = 64}, 6);
    load_initial_network(*target, file, "yolov10n");
    const std::string shared = "model.0.conv.weight", own = "model.23.cv3.0.2.bias";
    EXPECT_TRUE(at::equal(tensor_of(*target, shared), tensor_of(*source, shared)));
    EXPECT_TRUE(at::equal(tensor_of(*target, own), tensor_of(*fresh, own)));
}

TEST_F(WeightsFileTest, WeightsOfAnotherModelAreRefused) {
    const fs::path file = saved("yolov10s", 2);
    const auto target = make_detector({.name = "yolov10n", .classes = 2, .image_size = 64}, 6);
    for (const auto& load : {load_initial_network, load_whole_network}) {
        const std::string message = refusal([&] { load(*target, file, "yolov10n"); });
        EXPECT_NE(message.find("not the weights of yolov10n"), std::string::npos) << message;
        EXPECT_NE(message.find("the first is model."), std::string::npos) << message;
    }
}

TEST_F(WeightsFileTest, MissingTensorsAreRefusedByName) {
    const fs::path file = without(saved("yolov10n", 2), "model.4.cv1.bn.running_var");
    const auto target = make_detector({.name = "yolov10n", .classes = 2, .image_size = 64}, 6);
    for (const auto& load : {load_initial_network, load_whole_network}) {
        const std::string message = refusal([&] { load(*target, file, "yolov10n"); });
        EXPECT_NE(message.find("model.4.cv1.bn.running_var"), std::string::npos) << message;
    }
    const fs::path fine = without(saved("yolov10n", 2), "model.4.cv1.bn.num_batches_tracked");
    EXPECT_EQ(refusal([&] { load_whole_network(*target, fine, "yolov10n"); }), "accepted");
}

TEST_F(WeightsFileTest, WholeMeansTheSameClassesToo) {
    const fs::path file = saved("yolov10n", 2);
    const auto target = make_detector({.name = "yolov10n", .classes = 3, .image_size = 64}, 6);
    EXPECT_NE(refusal([&] { load_whole_network(*target, file, "yolov10n"); }).find("another shape"), std::string::npos);
}

TEST_F(WeightsFileTest, FactsComeBack) {
    const NetworkFacts facts = read_network_facts(saved("yolov10n", 2));
    EXPECT_EQ(facts.model, "yolov10n");
    EXPECT_EQ(facts.classes, (std::vector<std::string>{"x", "x"}));
    EXPECT_EQ(facts.image_size, 64);
    EXPECT_FALSE(facts.small_images);
    EXPECT_EQ(facts.scaling.rule, sharding::ScalingRule::fixed);
}

TEST_F(WeightsFileTest, TheShapesOfImagesComeBackAndImpossibleOnesAreRefused) {
    const fs::path path = folder_ / "shapes.safetensors";
    const auto network = make_detector({.name = "yolov10n", .classes = 2, .image_size = 64}, 5);
    sharding::ScalingOptions scaling{
        .rule = sharding::ScalingRule::published, .short_side = 96, .long_side = 224, .multiple = 32, .megapixels = 0};
    save_network(path, *network, {"yolov10n", {"x", "y"}, 64, false, scaling});
    const NetworkFacts facts = read_network_facts(path);
    EXPECT_EQ(facts.scaling.rule, sharding::ScalingRule::published);
    EXPECT_EQ(facts.scaling.short_side, 96u);
    EXPECT_EQ(facts.scaling.long_side, 224u);
    EXPECT_EQ(facts.scaling.multiple, 32u);
    for (const std::uint32_t multiple : {0U, 40U, 1U << 31}) {
        scaling.multiple = multiple;
        save_network(path, *network, {"yolov10n", {"x", "y"}, 64, false, scaling});
        const std::string message = refusal([&] { read_network_facts(path); });
        EXPECT_NE(message.find(base::str("scaling multiple = ", multiple)), std::string::npos) << message;
    }
}

}  // namespace
}  // namespace lockstep::trainer
