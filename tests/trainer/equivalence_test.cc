// Promise 1: any number of ranks gives the same training.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "sharding/dataset.h"
#include "sharding/dataset_writer.h"
#include "sharding/image.h"
#include "tests/comm/mpi_test_main.h"
#include "tests/trainer/small_training.h"
#include "trainer/checkpoint.h"
#include "trainer/loader_options.h"
#include "trainer/losses/detection_loss.h"
#include "trainer/models/model_factory.h"
#include "trainer/models/yolov10.h"
#include "trainer/predictor.h"
#include "trainer/run_directory.h"
#include "trainer/tasks.h"
#include "trainer/trainer.h"
#include "trainer/weights_file.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;

struct Difference {
    double largest = 0;  ///< of |a - b| / (|b|'s mean over the tensor + tiny)
    std::string tensor;
};

/// `least_scale`: of a tensor that is zero but for rounding.
Difference compare(const CheckpointContent& a, const CheckpointContent& b, const std::string& prefix,
                   double least_scale = 1e-12) {
    Difference worst;
    for (const auto& [name, expected] : b.tensors) {
        if (!name.starts_with(prefix)) {
            continue;
        }
        const at::Tensor x = a.tensors.at(name).to(at::kDouble);
        const at::Tensor y = expected.to(at::kDouble);
        const double scale = y.abs().mean().item<double>() + least_scale;
        const double difference = (x - y).abs().max().item<double>() / scale;
        if (difference > worst.largest || std::isnan(difference)) {
            worst = {difference, name};
        }
    }
    return worst;
}

class EquivalenceTest : public tests::SmallTraining {
  protected:
    /// Trains once over all ranks, and once on rank 0 by itself, where nothing is cut.
    void train_both(Recipe recipe) {
        if (recipe.max_steps == 0) {
            recipe.max_steps = 5;
        }
        tests::train_together(recipe, root_ / "together");
        const fs::path alone = root_ / "alone";
        recipe.optimizer.zero_stage = 0;
        if (is_first()) {
            tests::train_alone(recipe, alone);
        }
        world_->barrier("both trained");
        together_ = load_checkpoint(*newest_checkpoint(root_ / "together"));
        alone_ = load_checkpoint(*newest_checkpoint(alone));
        ASSERT_EQ(together_.progress.optimizer_steps, static_cast<std::uint64_t>(recipe.max_steps));
        EXPECT_NEAR(together_.progress.epoch_loss, alone_.progress.epoch_loss, 1e-2 * alone_.progress.epoch_loss);
        Progress together = together_.progress;
        together.epoch_loss = alone_.progress.epoch_loss;  // a sum, which ranks round in another way
        ASSERT_EQ(together, alone_.progress);
        together_metrics_ = read_metrics(root_ / "together");
        alone_metrics_ = read_metrics(alone);
        ASSERT_EQ(together_metrics_.size(), alone_metrics_.size());
    }
    void expect_step(std::size_t step, const char* key, double tolerance) const {
        const double together = together_metrics_[step][key], alone = alone_metrics_[step][key];
        EXPECT_NEAR(together, alone, tolerance * std::abs(alone)) << key << " of line " << step + 1;
    }

    CheckpointContent together_, alone_;
    std::vector<nlohmann::json> together_metrics_, alone_metrics_;
};

TEST_F(EquivalenceTest, DetectorInFp64) {
    Recipe recipe = tests::small_detection_recipe(root_ / "boxes");
    recipe.precision = "fp64";
    recipe.batch_norm = "frozen";
    train_both(recipe);
    for (const char* prefix : {"parameters/", "average/", "momentum/"}) {
        const Difference worst = compare(together_, alone_, prefix);
        EXPECT_LE(worst.largest, 1e-9) << worst.tensor;
    }
}

/// Every block is whole only while it runs, also where a rank has no image in the last batch.
TEST_F(EquivalenceTest, DetectorWhoseParametersAreGathered) {
    Recipe recipe = tests::small_detection_recipe(root_ / "boxes");
    recipe.precision = "fp64";
    recipe.batch_norm = "frozen";
    recipe.accumulate = 2;
    recipe.optimizer.zero_stage = 3;
    train_both(recipe);
    for (const char* prefix : {"parameters/", "average/", "momentum/"}) {
        const Difference worst = compare(together_, alone_, prefix);
        EXPECT_LE(worst.largest, 1e-9) << worst.tensor;
    }
}

TEST_F(EquivalenceTest, DetectorInFp32) {
    Recipe recipe = tests::small_detection_recipe(root_ / "boxes");
    recipe.batch_norm = "frozen";
    train_both(recipe);
    expect_step(0, "loss", 1e-5);
    expect_step(0, "gradient_norm", 1e-4);
    const Difference worst = compare(together_, alone_, "parameters/");
    EXPECT_LE(worst.largest, 2e-3) << worst.tensor;
}

/// The momentum of the first step is the gradient, and the denominators count what the anchors were assigned.
TEST_F(EquivalenceTest, GradientsOfTheFirstStepInFp32) {
    Recipe recipe = tests::small_detection_recipe(root_ / "boxes");
    recipe.batch_norm = "frozen";
    recipe.max_steps = 1;
    train_both(recipe);
    for (std::size_t head = 0; head < 2; ++head) {
        const double together = together_metrics_[0]["denominators"][head],
                     alone = alone_metrics_[0]["denominators"][head];
        EXPECT_GT(alone, 0);
        EXPECT_NEAR(together, alone, 1e-5 * alone) << "head " << head;
    }
    const Difference worst = compare(together_, alone_, "momentum/");
    EXPECT_LE(worst.largest, 1e-3) << worst.tensor;
}

/// A rank sees its slice of the batch only, and in FP32 a convolution of fewer images may round in another way. Where
/// that flips an assignment, the flip is reported as one, with both metrics; all else must agree.
TEST_F(EquivalenceTest, AssignmentsOfASliceInFp32) {
    constexpr std::int64_t images = 8, boxes = 6, classes = 3, side = 128;
    const auto network = make_detector({.name = "yolov10n", .classes = classes, .image_size = side}, 1);
    Recipe recipe;
    recipe.batch_norm = "frozen";
    prepare_network(*network, recipe);
    const at::NoGradGuard no_grad;
    auto random = at::detail::createCPUGenerator(7);
    const at::Tensor pixels = at::rand({images, 3, side, side}, random);
    const at::Tensor corner = at::rand({images, boxes, 2}, random) * 80;
    const DetectionTargets targets{
        .boxes = at::cat({corner, corner + 8 + at::rand({images, boxes, 2}, random) * 40}, 2),
        .classes = at::randint(classes, {images, boxes}, random, at::kLong),
        .real = at::rand({images, boxes}, random) < 0.8};
    const std::int64_t rank = comm::index_of(world_->rank());
    const std::int64_t begin = images * rank / world_->size(), end = images * (rank + 1) / world_->size();
    const auto slice = [&](const at::Tensor& tensor) { return tensor.slice(0, begin, end); };
    const DetectorOutput whole_output = network->forward(pixels), slice_output = network->forward(slice(pixels));
    const DetectionLoss loss({.classes = classes});
    for (const auto head : {DetectionLoss::one_to_many, DetectionLoss::one_to_one}) {
        const Assignment whole = loss.assign(head, whole_output, targets);
        const Assignment part =
            loss.assign(head, slice_output, {slice(targets.boxes), slice(targets.classes), slice(targets.real)});
        std::int64_t assigned = 0, flips = 0;
        for (std::int64_t image = begin; image < end; ++image) {
            for (std::int64_t anchor = 0; anchor < part.box.size(1); ++anchor) {
                const auto facts = [&](const Assignment& of, std::int64_t row) {
                    const double score = of.score[row][anchor].item<double>();
                    return std::tuple(score > 0 ? of.box[row][anchor].item<std::int64_t>() : -1, score,
                                      of.metric[row][anchor].item<double>());
                };
                const auto [box, score, metric] = facts(whole, image);
                const auto [own_box, own_score, own_metric] = facts(part, image - begin);
                assigned += box >= 0;
                if (box != own_box) {
                    ++flips;
                    std::printf(
                        "flipped assignment: head %d, image %ld, anchor %ld: box %ld (metric %g) in the whole batch, "
                        "box %ld (metric %g) in the slice\n",
                        head, image, anchor, box, metric, own_box, own_metric);
                    continue;
                }
                ASSERT_NEAR(own_metric, metric, 1e-3 * metric) << "image " << image << " anchor " << anchor;
                ASSERT_NEAR(own_score, score, 1e-3) << "image " << image << " anchor " << anchor;
            }
        }
        EXPECT_GT(assigned, 5);
        EXPECT_LE(flips, assigned / 20) << "of " << assigned << " assigned anchors";
    }
}

TEST_F(EquivalenceTest, DetectorWithAccumulationAndAdamW) {
    Recipe recipe = tests::small_detection_recipe(root_ / "boxes");
    recipe.precision = "fp64";
    recipe.batch_norm = "frozen";
    recipe.accumulate = 2;
    recipe.optimizer.name = "adamw";
    recipe.optimizer.learning_rate = 0.001;
    train_both(recipe);
    const Difference worst = compare(together_, alone_, "parameters/");
    EXPECT_LE(worst.largest, 1e-9) << worst.tensor;
}

TEST_F(EquivalenceTest, ClassifierInFp64) {
    Recipe recipe = tests::small_classification_recipe(root_ / "labels");
    recipe.precision = "fp64";
    recipe.batch_norm = "frozen";
    recipe.label_smoothing = 0.1;
    train_both(recipe);
    const Difference worst = compare(together_, alone_, "parameters/");
    EXPECT_LE(worst.largest, 1e-9) << worst.tensor;
}

/// With statistics of all ranks nothing has to be frozen. The last batch of an epoch holds one image, so some rank has
/// none, and every fifth image has no box. At 64 px that image's deepest maps would have four cells, whose statistics
/// magnify rounding. A bias right before another batch norm has no gradient: it is zero, but for rounding of 1e-12 that
/// is relative to nothing.
class SynchronisedBatchNorms : public EquivalenceTest {
  protected:
    void expect_equal(Recipe recipe) {
        recipe.precision = "fp64";
        recipe.batch_norm = "sync";
        train_both(recipe);
        for (const char* prefix : {"parameters/", "average/", "momentum/", "buffers/", "average-buffers/"}) {
            const Difference worst = compare(together_, alone_, prefix, /*least_scale=*/1e-2);
            EXPECT_LE(worst.largest, 1e-9) << worst.tensor;
        }
    }
    void expect_equal_detectors(std::int64_t accumulate) {
        Recipe recipe = tests::small_detection_recipe(root_ / "boxes");
        recipe.image_size = 128;
        recipe.optimizer.learning_rate = 0.0005;
        recipe.accumulate = accumulate;
        recipe.batch = std::max<std::int64_t>(8, 4 * accumulate);  // a micro-step has an image for each of four ranks
        expect_equal(recipe);
    }
};

TEST_F(SynchronisedBatchNorms, Detector) {
    expect_equal_detectors(1);
}

TEST_F(SynchronisedBatchNorms, DetectorInTwoMicroSteps) {
    expect_equal_detectors(2);
}

TEST_F(SynchronisedBatchNorms, DetectorInFourMicroSteps) {
    expect_equal_detectors(4);
}

TEST_F(SynchronisedBatchNorms, Classifier) {
    Recipe recipe = tests::small_classification_recipe(root_ / "labels");
    recipe.accumulate = 2;
    expect_equal(recipe);
}

/// Frozen statistics give one more equality: accumulation is the same as one large batch.
TEST_F(EquivalenceTest, AccumulationIsOneLargeBatch) {
    if (is_first()) {
        Recipe recipe = tests::small_detection_recipe(root_ / "boxes");
        recipe.precision = "fp64";
        recipe.batch_norm = "frozen";
        recipe.max_steps = 5;
        tests::train_alone(recipe, root_ / "at-once");
        recipe.accumulate = 4;
        tests::train_alone(recipe, root_ / "accumulated");
        const Difference worst = compare(load_checkpoint(*newest_checkpoint(root_ / "accumulated")),
                                         load_checkpoint(*newest_checkpoint(root_ / "at-once")), "parameters/");
        EXPECT_LE(worst.largest, 1e-9) << worst.tensor;
    }
}

/// Images of unlike shapes, in batches of one shape each: by numbers of images and by pixels, where a batch may hold
/// fewer images than there are ranks.
class ShapesOfTheirOwn : public EquivalenceTest {
  protected:
    void expect_equal(const std::string& rule, bool has_pixel_budget, std::int64_t accumulate) {
        Recipe recipe = tests::small_scaling_recipe(root_ / "mixed", rule, has_pixel_budget);
        recipe.precision = "fp64";
        recipe.batch_norm = "frozen";
        recipe.accumulate = accumulate;
        recipe.max_steps = has_pixel_budget ? 8 : 5;
        train_both(recipe);
        for (const char* prefix : {"parameters/", "average/", "momentum/"}) {
            const Difference worst = compare(together_, alone_, prefix);
            EXPECT_LE(worst.largest, 1e-9) << worst.tensor;
        }
        std::set<std::pair<int, int>> shapes;
        for (std::size_t i = 0; i < together_metrics_.size(); ++i) {
            if (together_metrics_[i]["kind"] == "step") {
                shapes.emplace(together_metrics_[i]["width"].get<int>(), together_metrics_[i]["height"].get<int>());
                EXPECT_EQ(together_metrics_[i]["images"], alone_metrics_[i]["images"]);
            }
        }
        EXPECT_GE(shapes.size(), 2u);
    }
};

TEST_F(ShapesOfTheirOwn, Rectangles) {
    expect_equal("published", false, 1);
}

TEST_F(ShapesOfTheirOwn, RectanglesByPixelsInTwoMicroSteps) {
    expect_equal("published", true, 2);
}

TEST_F(ShapesOfTheirOwn, Squares) {
    expect_equal("squares", false, 2);
}

TEST_F(ShapesOfTheirOwn, SquaresByPixels) {
    expect_equal("squares", true, 1);
}

/// With batch norms over all ranks, of which some have no image.
TEST_F(SynchronisedBatchNorms, DetectorInRectanglesByPixels) {
    Recipe recipe = tests::small_scaling_recipe(root_ / "mixed", "published", false);
    recipe.scaling.short_side = 128;
    recipe.scaling.long_side = 256;
    recipe.scaling.pixel_budget = 0.06;
    recipe.optimizer.learning_rate = 0.0005;
    expect_equal(recipe);
}

/// The images of another data set with what a detector finds in them for their boxes.
void write_as_found(const fs::path& directory, const sharding::Dataset& data, Predictor& predictor) {
    sharding::DatasetDescription description;
    description.classes = data.classes();
    description.source = "a detector's own boxes";
    sharding::write_dataset(directory, description, [&](sharding::DatasetWriter& writer) {
        PredictOptions everything;
        everything.min_score = 0;
        std::int64_t annotation = 0;
        for (std::uint64_t id = 0; id < data.size(); ++id) {
            sharding::Sample sample = data.sample(id);
            std::vector<sharding::Box> boxes;
            const sharding::Image image = sharding::decode_rgb(sample.bytes, "image");
            for (const PictureBox& found : predictor.predict(image, everything)) {
                const double width = found.x2 - found.x1, height = found.y2 - found.y1;
                if (width > 4 && height > 4 && boxes.size() < 4) {
                    boxes.push_back({static_cast<float>(found.x1), static_cast<float>(found.y1),
                                     static_cast<float>(found.x2), static_cast<float>(found.y2),
                                     static_cast<float>(width * height), found.class_index, 0, ++annotation});
                }
            }
            sample.boxes = boxes;
            writer.add(sample, data.file_name(id));
        }
    });
}

/// A rank's images have their own shapes in evaluation, whatever else it or another rank has. The truth is what
/// `predict` finds with the same weights, one image after the other, so that much is found, and nearly all of it right.
TEST_F(EquivalenceTest, EvaluationInRectangles) {
    const auto mixed = sharding::Dataset::open(root_ / "mixed");
    Recipe recipe = tests::small_scaling_recipe(root_ / "mixed", "published", false);
    const auto task = make_task(recipe, mixed);
    if (is_first()) {
        const fs::path weights = root_ / "weights.safetensors";
        save_network(weights, task->network(), {"yolov10n", mixed.classes(), 64, false, scaling_options(recipe)});
        Predictor predictor(weights, std::nullopt);
        write_as_found(root_ / "as-found", mixed, predictor);
    }
    world_->barrier("data written");
    const auto as_found = sharding::Dataset::open(root_ / "as-found");
    EXPECT_GT(as_found.box_count(), 40u);
    const EvaluationOptions options{
        .image_size = 64, .scaling = scaling_options(recipe), .batch = 3, .min_score = 0, .max_detections = 300};
    const Evaluation together = task->evaluate(as_found, options, *world_);
    const auto single = comm::make_single_communicator();
    const Evaluation alone = task->evaluate(as_found, options, *single);
    EXPECT_GT(alone.metrics.at("AP50"), 0.2) << alone.table;
    EXPECT_GT(alone.metrics.at("AR100"), 0.9) << alone.table;
    for (const auto& [key, value] : alone.metrics) {
        EXPECT_NEAR(together.metrics.at(key), value, 1e-6) << key;
    }
}

/// What one step adds to the momentum: under "sum" the mean over targets times the images of the batch, under "mean"
/// the mean, and with batches by pixels times the images over those of an average batch, so that each image of an epoch
/// weighs the same.
TEST_F(EquivalenceTest, AnImageWeighsTheSameInBatchesByPixels) {
    if (!is_first()) {
        return;
    }
    const auto gradient_of = [&](const std::string& reduction, bool has_pixel_budget, const std::string& run) {
        Recipe recipe = tests::small_scaling_recipe(root_ / "mixed", "squares", has_pixel_budget);
        recipe.precision = "fp64";
        recipe.batch_norm = "frozen";
        recipe.loss_reduction = reduction;
        recipe.clip_norm = 0;
        recipe.optimizer.weight_decay = 0;
        recipe.max_steps = 1;
        tests::train_alone(recipe, root_ / run);
        return load_checkpoint(*newest_checkpoint(root_ / run));
    };
    for (const bool has_pixel_budget : {false, true}) {
        const std::string name = has_pixel_budget ? "by-pixels" : "by-count";
        const CheckpointContent sum = gradient_of("sum", has_pixel_budget, name + "-sum");
        const CheckpointContent mean = gradient_of("mean", has_pixel_budget, name + "-mean");
        const auto lines = read_metrics(root_ / (name + "-sum"));
        const double images = lines.front()["images"];
        const double steps = 1 + lines.back()["steps_left_out"].get<double>();
        const double factor = has_pixel_budget ? 17 / steps : images;
        EXPECT_NE(17 / steps, images) << "the batch has to differ from an average one";
        std::size_t compared = 0;
        for (const auto& [key, tensor] : sum.tensors) {
            if (key.starts_with("momentum/")) {
                const double scale = tensor.abs().max().item<double>();
                EXPECT_LE((tensor - mean.tensors.at(key) * factor).abs().max().item<double>(), 1e-9 * scale)
                    << name << " " << key;
                compared += scale > 0;
            }
        }
        EXPECT_GT(compared, 100u);
    }
}

}  // namespace
}  // namespace lockstep::trainer
