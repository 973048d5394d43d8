#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>

#include <array>

#include "base/error.h"
#include "base/resources.h"
#include "trainer/batch_tensors.h"
#include "trainer/losses/classification_loss.h"
#include "trainer/models/model_factory.h"
#include "trainer/models/resnet.h"
#include "trainer/precision.h"
#include "trainer/tasks.h"

namespace lockstep::trainer {
namespace {

class ClassificationTask final : public Task {
  public:
    ClassificationTask(const Recipe& recipe, std::int64_t classes)
        : network_(make_classifier({recipe.model, classes, recipe.image_size, recipe.small_images},
                                   static_cast<std::uint64_t>(recipe.seed))),
          loss_(recipe.label_smoothing),
          type_(weight_type(recipe)),
          autocast_(recipe.precision == "bf16"),
          shares_statistics_(recipe.batch_norm == "sync") {
        prepare_network(*network_, recipe);
    }

    torch::nn::Module& network() override { return *network_; }
    std::int32_t head_of(const std::string&) const override { return 0; }
    std::vector<std::vector<std::string>> part_names() const override { return {{"cross_entropy"}}; }
    std::string headline() const override { return "accuracy"; }

    comm::LossSums losses(const sharding::MicroBatch& micro) override {
        if (micro.count == 0 && !shares_statistics_) {
            return no_losses(1, 1);
        }
        return loss_(forward(micro), label_tensor(micro));
    }

    Evaluation evaluate(const sharding::Dataset& data, const EvaluationOptions& options,
                        comm::Communicator& communicator) override {
        const double started = base::monotonic_seconds();
        const at::NoGradGuard no_grad;
        network_->eval();
        sharding::SequentialReader reader(
            data, evaluation_share(data, communicator),
            {.image_size = options.image_size, .batch = options.batch, .threads = options.threads});
        std::array<std::int64_t, 2> right_and_all{};
        while (auto micro = reader.next()) {
            const at::Tensor predicted = at::argmax(forward(*micro), 1);
            right_and_all[0] += predicted.eq(label_tensor(*micro)).sum().item<std::int64_t>();
            right_and_all[1] += micro->count;
            reader.give_back(std::move(*micro));
        }
        network_->train();
        communicator.all_reduce(comm::Buffer::of(std::span<std::int64_t>(right_and_all)), comm::ReduceOp::sum,
                                "evaluation counts");
        LOCKSTEP_CHECK_EQ(static_cast<std::uint64_t>(right_and_all[1]), data.size());
        Evaluation result;
        result.metrics["accuracy"] = static_cast<double>(right_and_all[0]) / static_cast<double>(right_and_all[1]);
        result.table = base::str("accuracy ", base::fixed(result.metrics["accuracy"], 4), " (", right_and_all[0],
                                 " of ", right_and_all[1], ")\n");
        result.seconds = base::monotonic_seconds() - started;
        return result;
    }

  private:
    at::Tensor forward(const sharding::MicroBatch& micro) {
        const AutocastScope autocast(autocast_);
        return network_->forward(image_tensor(micro, type_));
    }

    std::shared_ptr<ResNet> network_;
    ClassificationLoss loss_;
    at::ScalarType type_;
    bool autocast_;
    bool shares_statistics_;  ///< an empty micro-batch, too, has its part in the batch norms' collectives
};

}  // namespace

std::unique_ptr<Task> make_classification_task(const Recipe& recipe, std::int64_t classes) {
    return std::make_unique<ClassificationTask>(recipe, classes);
}

}  // namespace lockstep::trainer
