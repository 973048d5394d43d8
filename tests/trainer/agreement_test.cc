// Ranks that have drifted apart are found, on all ranks, in the step after which they are compared.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/mpi_test_main.h"
#include "tests/trainer/small_training.h"

namespace lockstep::trainer {
namespace {

/// Hands everything to another communicator; on the last rank, the result of the third reduction of a bucket has a bit
/// flipped.
class BitFlipper final : public comm::Communicator {
  public:
    explicit BitFlipper(Communicator& inner) : Communicator(inner.identity()), inner_(inner) {}
    std::shared_ptr<std::byte> allocate(std::size_t bytes, std::string_view name) override {
        return inner_.allocate(bytes, name);
    }

  private:
    void do_all_reduce(const comm::Buffer& buffer, comm::ReduceOp op) override {
        inner_.all_reduce(buffer, op, operation().name);
        if (operation().name == "bucket 0" && ++buckets_ == 3 && index_of(rank()) == size() - 1) {
            static_cast<std::uint32_t*>(buffer.data)[buffer.count / 2] ^= 1U << 20;
        }
    }
    void do_reduce_scatter(const comm::Buffer& buffer, std::span<const comm::Slice> slices,
                           comm::ReduceOp op) override {
        inner_.reduce_scatter(buffer, slices, op, operation().name);
    }
    void do_all_gather(const comm::Buffer& buffer, std::span<const comm::Slice> slices) override {
        inner_.all_gather(buffer, slices, operation().name);
    }
    void do_broadcast(const comm::Buffer& buffer, comm::Rank root) override {
        inner_.broadcast(buffer, root, operation().name);
    }
    void do_barrier() override { inner_.barrier(operation().name); }
    std::vector<std::vector<std::byte>> do_all_gather_bytes(std::span<const std::byte> mine) override {
        return inner_.all_gather_bytes(mine, operation().name);
    }

    Communicator& inner_;
    int buckets_ = 0;
};

class Agreement : public tests::SmallTraining {
  protected:
    void SetUp() override {
        SmallTraining::SetUp();
        recipe_ = tests::small_classification_recipe(root_ / "labels");
        recipe_.epochs = 2;
    }

    std::string error_of_training(const Recipe& recipe, comm::Communicator& gradients) {
        return comm::tests::error_of([&] {
            Trainer trainer(recipe, {root_ / "run"},
                            {gradients, *ranks_.batch_norm, *ranks_.control, ranks_.parameters.get()},
                            ranks_.job.machines());
            trainer.run();
        });
    }

    tests::JobRanks ranks_;
    Recipe recipe_;
};

TEST_F(Agreement, AFlippedBitIsFoundWhereParametersAreComparedNext) {
    recipe_.communication.agreement_steps = 2;
    BitFlipper gradients(*ranks_.gradients);
    const std::string error = error_of_training(recipe_, gradients);
    EXPECT_NE(error.find("ranks do not agree after step 4: rank " + std::to_string(world_->size() - 1)),
              std::string::npos)
        << error;
    EXPECT_NE(error.find("has values of "), std::string::npos) << error;
}

TEST_F(Agreement, AnotherSettingOfOneRankIsNamedOnAll) {
    const std::int32_t last = world_->size() - 1;
    if (index_of(world_->rank()) == last) {
        recipe_.model = "resnet34";
        recipe_.optimizer.learning_rate = 0.5;
    }
    const std::string error = error_of_training(recipe_, *ranks_.gradients);
    EXPECT_NE(error.find("ranks do not agree on the recipe: rank " + std::to_string(last) + " on "), std::string::npos)
        << error;
    EXPECT_NE(error.find("has model: \"resnet34\""), std::string::npos) << error;
    EXPECT_FALSE(std::filesystem::exists(root_ / "run"));
}

}  // namespace
}  // namespace lockstep::trainer
