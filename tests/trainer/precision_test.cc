// What bf16 autocast may cost: a little accuracy, and nothing else.

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/comm/mpi_test_main.h"
#include "tests/trainer/small_training.h"
#include "trainer/checkpoint.h"
#include "trainer/run_directory.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;

TEST(Precision, Bf16OverRanksStaysNearFp32) {
    constexpr std::size_t steps = 3;
    const auto world = tests::make_test_communicator();
    const bool is_first = comm::index_of(world->rank()) == 0;
    const fs::path root = fs::path(testing::TempDir()) / ("precision-" + std::to_string(world->size()));
    if (is_first) {
        fs::remove_all(root);
        fs::create_directories(root);
        tests::write_small_detection_data(root / "boxes", 17);
    }
    world->barrier("data written");
    Recipe recipe = tests::small_detection_recipe(root / "boxes");
    recipe.max_steps = steps;
    if (getenv("BN")) recipe.batch_norm = getenv("BN");
    if (getenv("SEED")) recipe.seed = atoi(getenv("SEED"));
    if (getenv("SIZE")) recipe.image_size = atoi(getenv("SIZE"));
    if (getenv("BATCH")) recipe.batch = atoi(getenv("BATCH"));
    for (const char* precision : {"bf16", "fp32"}) {
        recipe.precision = precision;
        tests::train_together(recipe, root / precision);
    }
    world->barrier("both trained");

    const auto half = read_metrics(root / "bf16"), single = read_metrics(root / "fp32");
    ASSERT_GE(half.size(), steps);
    ASSERT_GE(single.size(), steps);
    for (std::size_t step = 0; step < steps; ++step) {
        for (const char* key : {"loss", "gradient_norm"}) {
            const double value = half[step][key], expected = single[step][key];
            if (is_first) std::printf("VALUES step %zu %s %g %g rel %.4f\n", step + 1, key, value, expected, value / expected - 1);
            EXPECT_TRUE(std::isfinite(value)) << key << " of step " << step + 1;
            EXPECT_NEAR(value, expected, 0.02 * expected) << key << " of step " << step + 1;
            EXPECT_NE(value, expected) << key << " of step " << step + 1 << ": bf16 was not in use";
        }
    }
    for (const auto& [name, tensor] : load_checkpoint(*newest_checkpoint(root / "bf16")).tensors) {
        EXPECT_NE(tensor.scalar_type(), at::kBFloat16) << name << ": what is updated stays FP32";
        EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
    }
    world->barrier("test done");
    if (is_first) {
        fs::remove_all(root);
    }
}

}  // namespace
}  // namespace lockstep::trainer
