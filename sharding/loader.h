#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sharding/augmentation.h"
#include "sharding/dataset.h"
#include "sharding/epoch_order.h"

namespace lockstep::sharding {

/// A box of a batch: pixels of the batch's image, after augmentation or letterbox.
struct TargetBox {
    std::uint32_t image;  ///< index in this MicroBatch
    std::int32_t class_index;
    float x1, y1, x2, y2;
    bool operator==(const TargetBox&) const = default;
};

/// This rank's share of one micro-step. May be empty (count 0): the step must still be taken.
struct MicroBatch {
    std::uint32_t count = 0;           ///< images
    std::uint32_t height = 0, width = 0;
    std::uint32_t channels = 3;
    std::vector<std::uint8_t> pixels;  ///< count x height x width x channels, RGB (NHWC: channels-last without a copy)
    std::vector<TargetBox> boxes;      ///< detection; grouped by image in order; crowd and difficult boxes are left out
    std::vector<std::int32_t> labels;  ///< classification
    std::vector<std::uint64_t> sample_ids;
    std::vector<Letterbox> letterboxes;  ///< how each image was placed; identity when augmented
};

/// One effective batch as this rank sees it.
struct Batch {
    std::uint64_t epoch = 0;
    std::uint64_t step = 0;          ///< within the epoch
    PositionRange positions;         ///< the whole effective batch, over all ranks and micro-steps
    std::vector<MicroBatch> micro;   ///< exactly `accumulate` entries
    double wait_seconds = 0;         ///< how long next() blocked
    std::span<const MicroBatch> micro_steps() const { return micro; }
};

/// What a rank takes of the order.
struct Share {
    std::uint64_t rank = 0;
    std::uint64_t ranks = 1;
};

enum class BadSamplePolicy : std::uint8_t { error, skip };

struct LoaderOptions {
    std::uint32_t image_size = 640;     ///< square side of what comes out
    std::uint64_t effective_batch = 64; ///< images of one optimizer step, over all ranks and micro-steps
    std::uint64_t accumulate = 1;       ///< micro-steps per optimizer step
    unsigned threads = 2;
    unsigned prefetch = 2;              ///< effective batches kept ready
    std::uint64_t seed = 0;
    AugmentationOptions augmentation;   ///< `enabled = false`: letterbox only
    std::uint64_t closing_epoch = UINT64_MAX;  ///< from this epoch on mosaic and mixup are off
    bool verify_checksums = true;
};

/// Threads that turn samples into batches, in order, with bounded prefetch. Buffers are recycled through give_back().
/// One thread calls next(). Destruction at any moment stops and joins the threads.
class Loader {
  public:
    /// The data set must outlive the loader. Starts reading at (epoch, step).
    Loader(const Dataset& dataset, EpochOrder order, Share share, LoaderOptions options, std::uint64_t epoch = 0,
           std::uint64_t step = 0);
    ~Loader();
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    /// The next effective batch, over epoch borders without end. Rethrows what failed in a thread: base::Error naming sample,
    /// file and reason.
    Batch next();
    void give_back(Batch&& batch);

    const LoaderOptions& options() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace lockstep::sharding
