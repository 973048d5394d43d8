#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "comm/job_communicators.h"
#include "trainer/recipe.h"
#include "trainer/trainer.h"

/// A tiny but whole training for tests: a data set with boxes, images without boxes, and an uneven last batch.
namespace lockstep::tests {

/// 64 px images with coloured rectangles of two classes; every fifth image has no box. The same for the same arguments.
void write_small_detection_data(const std::filesystem::path& directory, std::uint64_t images);
/// The same with sides of 32 to 160 px: squares, landscapes, portraits.
void write_small_mixed_data(const std::filesystem::path& directory, std::uint64_t images);
/// 28 px images of three classes, told apart by their brightness.
void write_small_classification_data(const std::filesystem::path& directory, std::uint64_t images);

/// YOLOv10-n on such data: batch 8 of 17 images leaves one image for the last step of an epoch, so that of two ranks
/// one is empty there. All augmentation is on.
trainer::Recipe small_detection_recipe(const std::filesystem::path& data);
/// The same on mixed data, in rectangles of 64x64 to 128x64 and 64x128 ("published") or squares of 64, 96 and 128, of
/// `batch` images or of a budget of pixels that holds one to four.
trainer::Recipe small_scaling_recipe(const std::filesystem::path& data, const std::string& rule, bool has_pixel_budget);
trainer::Recipe small_classification_recipe(const std::filesystem::path& data);

/// What the train command gives the trainer. Collective.
struct JobRanks {
    explicit JobRanks(const std::string& topology = "auto");
    trainer::Communicators communicators() const {
        return {.gradients = *gradients,
                .batch_norm = *batch_norm,
                .control = *control,
                .parameters = parameters.get(),
                .node_memory = node_memory.get()};
    }

    comm::JobCommunicators job;
    std::unique_ptr<comm::Communicator> gradients, batch_norm, control, parameters;
    std::unique_ptr<comm::SegmentExchange> node_memory;
};

/// A directory `root_` of all ranks with each kind of data, 17 images each, in "boxes", "mixed" and "labels"; it goes
/// with the test.
class SmallTraining : public testing::Test {
  protected:
    void SetUp() override;
    void TearDown() override;
    bool is_first() const { return comm::index_of(world_->rank()) == 0; }

    std::unique_ptr<comm::Communicator> world_;
    std::filesystem::path root_;
};

/// Trains over all ranks of MPI; collective.
void train_together(const trainer::Recipe& recipe, const std::filesystem::path& run);
/// Trains on one rank, in this process.
void train_alone(const trainer::Recipe& recipe, const std::filesystem::path& run, bool resume = false);

}  // namespace lockstep::tests
