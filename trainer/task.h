#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/gradient_reducer.h"
#include "sharding/dataset.h"
#include "sharding/loader.h"
#include "trainer/picture.h"
#include "trainer/recipe.h"

namespace torch::nn {
class Module;
}

namespace lockstep::trainer {

/// What an evaluation gives, the same on all ranks but for the pictures.
struct Evaluation {
    std::map<std::string, double> metrics;  ///< "AP", "AP50", ... or "accuracy"
    std::string table;                      ///< for a person
    std::vector<Picture> pictures;          ///< on rank 0: its first images with true and predicted boxes
    double seconds = 0;
};

/// What the best weights are chosen by: of a detector 0.1 AP50 + 0.9 AP, of a classifier the accuracy.
double fitness(const Evaluation& evaluation);

struct EvaluationOptions {
    std::uint32_t image_size = 640;
    sharding::ScalingOptions scaling = {};  ///< detection: as SequentialOptions has it
    std::uint64_t batch = 8;                ///< images at a time
    unsigned threads = 1;                   ///< of the loader
    double min_score = 0.001;
    std::int64_t max_detections = 300;
    std::size_t pictures = 0;  ///< how many to bring back
};

/// A network with its loss and its metric: all that differs between detection and classification in the training loop.
class Task {
  public:
    virtual ~Task() = default;

    virtual torch::nn::Module& network() = 0;
    /// Which loss a parameter hears, by its name.
    virtual std::int32_t head_of(const std::string& parameter) const = 0;
    /// For each head, what LossSums::parts hold.
    virtual std::vector<std::vector<std::string>> part_names() const = 0;
    /// "AP50" or "accuracy": the metric that progress lines show.
    virtual std::string headline() const = 0;

    /// Forward pass and loss of one micro-batch, which may be empty.
    virtual comm::LossSums losses(const sharding::MicroBatch& micro) = 0;
    /// Every sample of `data` once over all ranks, with the network's present weights. Collective over `communicator`.
    virtual Evaluation evaluate(const sharding::Dataset& data, const EvaluationOptions& options,
                                comm::Communicator& communicator) = 0;
};

/// Boxes of one training image that the loss has room for: the recipe's max_boxes, or where that is 0 as many as mosaic
/// and mixup can bring together. Throws base::UsageError where an image of the data set has more by itself.
std::int64_t room_for_boxes(const Recipe& recipe, const sharding::Dataset& train);

/// Throws base::Error when the data set doesn't fit the recipe (detection against classification).
/// Initial weights follow from the recipe's seed, or come from its initial_weights.
std::unique_ptr<Task> make_task(const Recipe& recipe, const sharding::Dataset& train);

}  // namespace lockstep::trainer
