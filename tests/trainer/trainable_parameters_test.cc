#include "trainer/trainable_parameters.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <map>
#include <set>
#include <string>

#include "base/error.h"
#include "trainer/losses/detection_loss.h"
#include "trainer/models/network_of_units.h"
#include "trainer/tasks.h"

namespace lockstep::trainer {
namespace {

struct Facts {
    ParameterGroup group;
    std::int32_t head;
};

class TrainableParametersOfYolov10n : public testing::Test {
  protected:
    TrainableParametersOfYolov10n() : task_(make_detection_task(recipe(), 80, 10)), parameters_(task_->network(), "") {
        const auto reduced = parameters_.reduced(*task_, /*units=*/{});
        EXPECT_EQ(reduced.size(), parameters_.names.size());
        for (std::size_t i = 0; i < reduced.size(); ++i) {
            EXPECT_EQ(reduced[i].name, parameters_.names[i]);
            EXPECT_TRUE(reduced[i].tensor.is_same(parameters_.tensors[i])) << reduced[i].name;
            facts_[reduced[i].name] = {parameters_.groups[i], reduced[i].head};
        }
    }

    static Recipe recipe() {
        Recipe recipe;
        recipe.model = "yolov10n";
        return recipe;
    }

    std::unique_ptr<Task> task_;
    TrainableParameters parameters_;
    std::map<std::string, Facts> facts_;
};

/// In model order, as the layout wants them.
TEST_F(TrainableParametersOfYolov10n, UnitsAscendAndEachHasParameters) {
    const auto& network = dynamic_cast<const NetworkOfUnits&>(task_->network());
    const auto units = network.unit_prefixes();
    EXPECT_EQ(units.size(), 18U) << "the 24 entries of the list without 4 concatenations and 2 upsamplings";
    std::set<std::size_t> seen;
    std::size_t last = 0;
    for (const comm::ReducedParameter& parameter : parameters_.reduced(*task_, units)) {
        EXPECT_GE(parameter.unit, last) << parameter.name;
        last = parameter.unit;
        seen.insert(last);
    }
    EXPECT_EQ(seen.size(), units.size());
    EXPECT_THROW(parameters_.reduced(*task_, {{"model.0."}}), base::Error);
}

TEST_F(TrainableParametersOfYolov10n, GroupsAndHeadsGoByName) {
    const std::map<std::string, Facts> expected = {
        {"model.0.conv.weight", {ParameterGroup::weight, DetectionLoss::one_to_many}},
        {"model.0.bn.weight", {ParameterGroup::norm, DetectionLoss::one_to_many}},
        {"model.0.bn.bias", {ParameterGroup::bias, DetectionLoss::one_to_many}},
        {"model.10.attn.qkv.conv.weight", {ParameterGroup::weight, DetectionLoss::one_to_many}},
        {"model.23.cv2.0.2.weight", {ParameterGroup::weight, DetectionLoss::one_to_many}},
        {"model.23.cv2.0.2.bias", {ParameterGroup::bias, DetectionLoss::one_to_many}},
        {"model.23.cv3.2.0.0.bn.weight", {ParameterGroup::norm, DetectionLoss::one_to_many}},
        {"model.23.one2one_cv2.0.0.conv.weight", {ParameterGroup::weight, DetectionLoss::one_to_one}},
        {"model.23.one2one_cv2.0.0.bn.bias", {ParameterGroup::bias, DetectionLoss::one_to_one}},
        {"model.23.one2one_cv3.1.0.1.bn.weight", {ParameterGroup::norm, DetectionLoss::one_to_one}},
        {"model.23.one2one_cv3.2.2.bias", {ParameterGroup::bias, DetectionLoss::one_to_one}},
    };
    for (const auto& [name, wanted] : expected) {
        ASSERT_TRUE(facts_.contains(name)) << name;
        EXPECT_EQ(facts_[name].group, wanted.group) << name;
        EXPECT_EQ(facts_[name].head, wanted.head) << name;
    }
}

/// 95 convolutions with batch norm, and 12 with a bias.
TEST_F(TrainableParametersOfYolov10n, CountsAreThoseOfTheArchitecture) {
    std::map<ParameterGroup, int> of_group;
    std::map<std::int32_t, int> of_head;
    for (const auto& [name, facts] : facts_) {
        ++of_group[facts.group];
        ++of_head[facts.head];
    }
    EXPECT_EQ(of_group[ParameterGroup::weight], 95 + 12);
    EXPECT_EQ(of_group[ParameterGroup::norm], 95);
    EXPECT_EQ(of_group[ParameterGroup::bias], 95 + 12);
    // On each of 3 levels 2 + 4 convolutions with batch norm and 2 with a bias.
    EXPECT_EQ(of_head[DetectionLoss::one_to_one], 3 * (6 * 3 + 2 * 2));
    EXPECT_EQ(of_head[DetectionLoss::one_to_many], 3 * 95 + 2 * 12 - of_head[DetectionLoss::one_to_one]);
}

TEST_F(TrainableParametersOfYolov10n, TheBinsAreNotTrained) {
    EXPECT_TRUE(task_->network().named_parameters().contains("model.23.dfl.conv.weight"));
    EXPECT_FALSE(facts_.contains("model.23.dfl.conv.weight"));
    EXPECT_EQ(parameters_.count(), 2'775'504U);  // a public training log's "gradients"
}

}  // namespace
}  // namespace lockstep::trainer
