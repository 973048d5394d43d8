#include "tests/trainer/small_training.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <vector>

#include "base/random.h"
#include "base/resources.h"
#include "base/text.h"
#include "comm/communicator.h"
#include "comm/mpi.h"
#include "comm/topology.h"
#include "sharding/dataset_writer.h"
#include "sharding/image.h"
#include "trainer/checkpoint.h"
#include "trainer/trainer.h"

namespace lockstep::tests {
namespace {

using base::Random;

sharding::Sample sample_of(const std::vector<std::uint8_t>& bytes, std::uint64_t index, sharding::ImageSize size) {
    sharding::Sample sample{};
    sample.image_id = static_cast<std::int64_t>(index);
    sample.width = size.width;
    sample.height = size.height;
    sample.label = -1;
    sample.bytes = bytes;
    return sample;
}

void write_rectangles(const std::filesystem::path& directory, std::uint64_t images,
                      const std::function<sharding::ImageSize(std::uint64_t)>& size_of) {
    sharding::DatasetDescription description;
    description.classes = {"red", "blue"};
    description.source = "rectangles for tests";
    sharding::write_dataset(directory, description, [&](sharding::DatasetWriter& writer) {
        for (std::uint64_t i = 0; i < images; ++i) {
            Random random(5, base::RandomPurpose::test, 0, i);
            const sharding::ImageSize size = size_of(i);
            auto image = sharding::Image::blank(size.width, size.height);
            std::ranges::generate(image.pixels, [&] { return static_cast<std::uint8_t>(random.below(80)); });
            std::vector<sharding::Box> boxes;
            const std::uint64_t count = i % 5 == 4 ? 0 : 1 + random.below(3);
            for (std::uint64_t b = 0; b < count; ++b) {
                const auto width = static_cast<std::uint32_t>(16 + random.below(24));
                const auto height = static_cast<std::uint32_t>(16 + random.below(24));
                const auto x = static_cast<std::uint32_t>(random.below(size.width - width));
                const auto y = static_cast<std::uint32_t>(random.below(size.height - height));
                const auto class_index = static_cast<std::int32_t>(random.below(2));
                for (std::uint32_t row = y; row < y + height; ++row) {
                    for (std::uint32_t column = x; column < x + width; ++column) {
                        image.row(row)[3 * column + (class_index == 0 ? 0 : 2)] = 250;
                    }
                }
                boxes.push_back({static_cast<float>(x), static_cast<float>(y), static_cast<float>(x + width),
                                 static_cast<float>(y + height), static_cast<float>(width * height), class_index, 0,
                                 static_cast<std::int64_t>(10 * i + b + 1)});
            }
            const auto bytes = sharding::encode_png(image);
            auto sample = sample_of(bytes, i, size);
            sample.boxes = boxes;
            writer.add(sample, base::str("rectangles-", i, ".png"));
        }
    });
}

}  // namespace

void write_small_detection_data(const std::filesystem::path& directory, std::uint64_t images) {
    write_rectangles(directory, images, [](std::uint64_t) { return sharding::ImageSize{64, 64}; });
}

void write_small_mixed_data(const std::filesystem::path& directory, std::uint64_t images) {
    constexpr std::array<sharding::ImageSize, 6> sizes{
        {{64, 64}, {150, 80}, {60, 110}, {80, 80}, {160, 45}, {100, 70}}};
    write_rectangles(directory, images, [&](std::uint64_t i) { return sizes.at(i % sizes.size()); });
}

void write_small_classification_data(const std::filesystem::path& directory, std::uint64_t images) {
    constexpr std::uint32_t side = 28;
    sharding::DatasetDescription description;
    description.task = sharding::Task::classification;
    description.encoding = sharding::Encoding::raw;
    description.classes = {"dark", "middle", "bright"};
    description.source = "brightness for tests";
    sharding::write_dataset(directory, description, [&](sharding::DatasetWriter& writer) {
        for (std::uint64_t i = 0; i < images; ++i) {
            Random random(6, base::RandomPurpose::test, 0, i);
            const auto label = static_cast<std::int32_t>(random.below(3));
            auto image = sharding::Image::blank(side, side);
            std::ranges::generate(image.pixels, [&] {
                return static_cast<std::uint8_t>(60 * static_cast<std::uint64_t>(label) + random.below(80));
            });
            auto sample = sample_of(image.pixels, i, {side, side});
            sample.label = label;
            writer.add(sample, base::str("brightness-", i));
        }
    });
}

namespace {

/// Nothing is left to measurement.
trainer::Recipe settled_recipe() {
    trainer::Recipe recipe;
    recipe.communication.algorithm = "direct";
    recipe.communication.bucket_mib = 25;
    return recipe;
}

}  // namespace

trainer::Recipe small_detection_recipe(const std::filesystem::path& data) {
    trainer::Recipe recipe = settled_recipe();
    recipe.model = "yolov10n";
    recipe.image_size = 64;
    recipe.batch = 8;
    recipe.epochs = 4;
    recipe.max_boxes = 32;
    recipe.data.train = data.string();
    recipe.data.threads = 1;
    recipe.optimizer.learning_rate = 0.005;
    recipe.schedule.warmup_epochs = 1;
    recipe.augmentation.degrees = 10;
    recipe.augmentation.mixup = 0.3;
    recipe.augmentation.shear = 2;
    recipe.augmentation.flip_vertical = 0.5;
    recipe.augmentation.quarter_turns = 0.5;
    recipe.augmentation.closing_epochs = 1;
    recipe.checkpoint.every_epochs = 0;
    return recipe;
}

trainer::Recipe small_scaling_recipe(const std::filesystem::path& data, const std::string& rule,
                                     bool has_pixel_budget) {
    trainer::Recipe recipe = small_detection_recipe(data);
    recipe.scaling.rule = rule;
    recipe.scaling.short_side = 64;
    recipe.scaling.long_side = 128;
    recipe.scaling.pixel_budget = has_pixel_budget ? 0.0171 : 0;
    if (rule == "published") {
        recipe.augmentation.quarter_turns = 0;
    }
    return recipe;
}

trainer::Recipe small_classification_recipe(const std::filesystem::path& data) {
    trainer::Recipe recipe = settled_recipe();
    recipe.model = "resnet18";
    recipe.small_images = true;
    recipe.image_size = 28;
    recipe.batch = 8;
    recipe.epochs = 4;
    recipe.data.train = data.string();
    recipe.data.threads = 1;
    recipe.optimizer.learning_rate = 0.02;
    recipe.schedule.warmup_epochs = 1;
    recipe.augmentation.mosaic = 0;
    recipe.augmentation.crop_padding = 2;
    recipe.checkpoint.every_epochs = 0;
    return recipe;
}

JobRanks::JobRanks(const std::string& topology)
    : job({.topology = topology, .timeout = std::chrono::seconds(60)}),
      gradients(job.make("gradients", {.beside_compute = true})),
      batch_norm(job.make("batch norm")),
      control(job.make("control")),
      parameters(job.make("parameters", {.beside_compute = true})),
      node_memory(job.memory_of_node("decoded images")) {}

void SmallTraining::SetUp() {
    world_ = comm::JobCommunicators({.timeout = std::chrono::minutes(1)}).make("test");
    std::string root;
    if (is_first()) {
        root = (std::filesystem::path(testing::TempDir()) / "lockstep-training-XXXXXX").string();
        ASSERT_NE(mkdtemp(root.data()), nullptr);
        write_small_detection_data(std::filesystem::path(root) / "boxes", 17);
        write_small_mixed_data(std::filesystem::path(root) / "mixed", 17);
        write_small_classification_data(std::filesystem::path(root) / "labels", 17);
    }
    root_ = world_->all_gather_texts(root, "data written").front();
}

void SmallTraining::TearDown() {
    world_->barrier("test done");
    if (is_first()) {
        std::filesystem::remove_all(root_);
    }
}

void train_together(const trainer::Recipe& recipe, const std::filesystem::path& run) {
    const JobRanks ranks(recipe.communication.topology);
    trainer::Trainer trainer(recipe, {run}, ranks.communicators(), ranks.job.machines());
    trainer.run();
}

void train_alone(const trainer::Recipe& recipe, const std::filesystem::path& run, bool resume) {
    const auto gradients = comm::make_single_communicator();
    const auto batch_norm = comm::make_single_communicator();
    const auto control = comm::make_single_communicator();
    const auto parameters = comm::make_single_communicator();
    std::optional<std::filesystem::path> checkpoint;
    if (resume) {
        checkpoint = trainer::newest_checkpoint(run);
    }
    trainer::Trainer trainer(recipe, {run, checkpoint}, {*gradients, *batch_norm, *control, parameters.get()},
                             comm::Topology({0}, {base::host_name()}));
    trainer.run();
}

}  // namespace lockstep::tests
