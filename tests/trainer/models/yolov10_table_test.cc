// The whole network against a second statement of the published table, variant by variant. Parameter counts, FLOPs and
// names don't notice a missing shortcut or a concatenation in the wrong order; every number of every map does.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/trainer/models/plain_yolov10.h"
#include "trainer/models/model_state.h"
#include "trainer/models/yolov10.h"

namespace lockstep::trainer {
namespace {

using enum Yolov10Variant;
using Shapes = std::map<std::string, std::vector<std::int64_t>>;

constexpr std::int64_t classes = 80;

std::string letter(Yolov10Variant variant) {
    return {"nsmblx"[static_cast<int>(variant)]};
}

at::Tensor test_image(std::int64_t height, std::int64_t width) {
    const at::Tensor ramp = at::arange(3 * height * width, at::kDouble).view({1, 3, height, width});
    return 0.5 + 0.5 * (ramp * 0.37).sin() * (ramp * 0.011).cos();
}

class WholeYolov10 : public testing::TestWithParam<Yolov10Variant> {
  protected:
    // Of work this small, threads make more where the machine has other work too.
    static void SetUpTestSuite() { at::set_num_threads(1); }

    tests::PlainMaps plain(const at::Tensor& image) {
        return tests::plain_yolov10(letter(GetParam()).front(), classes, image, state_);
    }

    const at::NoGradGuard no_grad_;
    tests::State state_;
    Yolov10 model_{GetParam(), classes};
};

void expect_equal_maps(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                       const std::string& label) {
    ASSERT_EQ(found.size(), expected.size()) << label;
    for (std::size_t level = 0; level < expected.size(); ++level) {
        ASSERT_EQ(found[level].sizes(), expected[level].sizes()) << label << ", level " << level;
        const double difference = (found[level] - expected[level]).abs().max().item<double>();
        EXPECT_LT(difference, 1e-9 * expected[level].abs().max().item<double>()) << label << ", level " << level;
    }
}

TEST_P(WholeYolov10, HasExactlyThePublishedNamesAndShapes) {
    plain(test_image(32, 32));
    Shapes found;
    for (const NamedTensor& named : state_of(model_)) {
        EXPECT_TRUE(found.emplace(named.name, named.tensor.sizes().vec()).second) << named.name << " twice";
    }
    for (const auto& [name, tensor] : state_) {
        const auto place = found.extract(name);
        if (place.empty()) {
            ADD_FAILURE() << name << " is missing";
            continue;
        }
        EXPECT_EQ(place.mapped(), tensor.sizes().vec()) << name;
    }
    for (const auto& [name, shape] : found) {
        ADD_FAILURE() << name << " has no place in the published network";
    }
}

TEST_P(WholeYolov10, ComputesWhatTheTableSays) {
    const at::Tensor image = test_image(96, 64);  // not square: rows and columns can't stand for each other
    const tests::PlainMaps expected = plain(image);
    // A map that hardly varied over the cells would show the last biases only.
    for (const at::Tensor& map : expected.one_to_one) {
        const double least_spread = map.std(at::IntArrayRef{0, 2, 3}).min().item<double>();
        EXPECT_GT(least_spread, 1e-2 * map.abs().max().item<double>()) << map.sizes();
    }
    model_.to(at::kDouble);
    for (NamedTensor& named : state_of(model_)) {
        named.tensor.copy_(state_.at(named.name));
    }
    set_batch_norm_mode(model_, BatchNormMode::frozen);
    const DetectorOutput trained = model_.forward(image);
    expect_equal_maps(trained.one_to_many, expected.one_to_many, "one-to-many");
    expect_equal_maps(trained.one_to_one, expected.one_to_one, "one-to-one in training");
    model_.eval();
    expect_equal_maps(model_.forward(image).one_to_one, expected.one_to_one, "one-to-one in evaluation");
    model_.fuse_for_deployment();
    expect_equal_maps(model_.forward(image).one_to_one, expected.one_to_one, "one-to-one, deployed");
}

INSTANTIATE_TEST_SUITE_P(OfVariant, WholeYolov10, testing::Values(n, s, m, b, l, x),
                         [](const auto& variant) { return letter(variant.param); });

}  // namespace
}  // namespace lockstep::trainer
