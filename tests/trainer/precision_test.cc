// What bf16 autocast may cost: a little accuracy, and nothing else.

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/comm/mpi_test_main.h"
#include "tests/trainer/small_training.h"
#include "trainer/checkpoint.h"
#include "trainer/precision.h"
#include "trainer/run_directory.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;

/// Two trainings over all ranks that differ in nothing but the precision.
class PrecisionTest : public tests::SmallTraining {
  protected:
    static constexpr std::size_t steps = 3;

    void train_both(const char* batch_norm) {
        Recipe recipe = tests::small_detection_recipe(root_ / "boxes");
        recipe.batch_norm = batch_norm;
        recipe.max_steps = steps;
        for (const char* precision : {"bf16", "fp32"}) {
            recipe.precision = precision;
            recipe.force_precision = true;
            tests::train_together(recipe, root_ / precision);
        }
        world_->barrier("both trained");
        half_ = read_metrics(root_ / "bf16");
        single_ = read_metrics(root_ / "fp32");
        ASSERT_GE(half_.size(), steps);
        ASSERT_GE(single_.size(), steps);
    }
    void expect_near(const char* key, double tolerance) const {
        for (std::size_t step = 0; step < steps; ++step) {
            const double half = half_[step][key], single = single_[step][key];
            EXPECT_TRUE(std::isfinite(half)) << key << " of step " << step + 1;
            EXPECT_NEAR(half, single, tolerance * single) << key << " of step " << step + 1;
            EXPECT_NE(half, single) << key << " of step " << step + 1 << ": bf16 was not in use";
        }
    }

    std::vector<nlohmann::json> half_, single_;
};

/// With fixed statistics rounding stays rounding: within 0.4 % here.
TEST_F(PrecisionTest, Bf16WithFrozenBatchNormStaysNearFp32) {
    train_both("frozen");
    expect_near("loss", 0.01);
    expect_near("gradient_norm", 0.01);
}

/// Statistics over a few values, as many as such small maps have, make more of it: some percent of the loss here, and
/// the gradient of channels that hardly vary may be another one. What is updated stays FP32 and finite.
TEST_F(PrecisionTest, Bf16WithLocalBatchNormTrains) {
    train_both("local");
    expect_near("loss", 0.2);
    for (std::size_t step = 0; step < steps; ++step) {
        EXPECT_TRUE(half_[step]["gradient_norm"].is_number()) << "step " << step + 1;
    }
    for (const auto& [name, tensor] : load_checkpoint(*newest_checkpoint(root_ / "bf16")).tensors) {
        EXPECT_NE(tensor.scalar_type(), at::kBFloat16) << name;
        EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
    }
}

TEST_F(PrecisionTest, Bf16IsRefusedWhereTheProcessorHasNoUnitForIt) {
    Recipe recipe = tests::small_detection_recipe(root_ / "boxes");
    for (const char* precision : {"fp32", "fp64"}) {
        recipe.precision = precision;
        EXPECT_NO_THROW(require_precision_of_processor(recipe));
    }
    recipe.precision = "bf16";
    try {
        require_precision_of_processor(recipe);
        GTEST_SKIP() << "this processor has one";
    } catch (const base::UsageError& error) {
        for (const char* part : {"neither AVX512-BF16 nor AMX", " ms in bf16 and ", "force_precision = true"}) {
            EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        }
    }
    recipe.force_precision = true;
    EXPECT_NO_THROW(require_precision_of_processor(recipe));
}

}  // namespace
}  // namespace lockstep::trainer
