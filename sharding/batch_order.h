#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sharding/epoch_order.h"
#include "sharding/image.h"
#include "sharding/scaling.h"

namespace lockstep::sharding {

struct BatchOrderOptions {
    std::uint32_t image_size = 640;      ///< side of ScalingRule::fixed
    std::uint64_t effective_batch = 64;  ///< images of one optimizer step, over all ranks and micro-steps; at most,
                                         ///< where pixels are bounded, too
    ScalingOptions scaling = {};
};

/// One effective batch: all its micro-steps, on all ranks, have this one shape.
struct PlannedBatch {
    PositionRange positions;  ///< of BatchesOfEpoch::sample_at
    Canvas canvas;
};

/// The pure function from (seed, epoch, step) to an effective batch and its shape. Every sample is in one batch of an
/// epoch, and the number of steps is the same in every epoch.
///
/// `fixed`: the order of samples, cut every effective_batch samples; the last batch may be shorter.
///
/// `squares`: the same order, cut into as many batches, which are as equal as can be, each with a side of its own: each
/// side in turn (over the borders of epochs), then the batches of an epoch are shuffled. Where pixels are bounded, a
/// batch holds fewer samples of a larger side: as many batches as the epoch of the costliest sides needs, each filled
/// to the same part of what it has room for.
///
/// `published`: samples of one shape (Canvas::of_sample of their own size) form a group, in the order of samples, which
/// is cut into full batches. What is left of each group, less than one batch, is lined up from the tallest shape to the
/// widest and cut into batches whose canvas holds the largest width and height among their samples: full ones, then one
/// that may be shorter; where pixels are bounded, each as long as the bound allows. OrderKind::full then shuffles the
/// batches of an epoch; elsewhere a batch comes when its last sample does, and those of what is left come at the end.
///
/// Copies share what they know. Thread-safe.
class BatchOrder {
  public:
    /// `size_of`: a sample's size in the data set, asked for once a sample, in the constructor, and under
    /// ScalingRule::published only: two bytes of it are kept. Throws base::UsageError naming an impossible option.
    BatchOrder(EpochOrder order, const BatchOrderOptions& options,
               const std::function<ImageSize(std::uint64_t id)>& size_of);

    const EpochOrder& samples() const;
    const BatchOrderOptions& options() const;
    std::uint64_t steps_per_epoch() const;
    /// What the network is given in an epoch, padding included, on all ranks together.
    std::uint64_t pixels_of_epoch(std::uint64_t epoch) const;
    /// The side of the largest square that the rule knows: a training of that fixed size is what its savings are
    /// measured against.
    std::uint32_t largest_side() const;
    /// Every canvas of an epoch, each once.
    std::vector<Canvas> canvases() const;

  private:
    friend class BatchesOfEpoch;
    struct State;
    std::shared_ptr<const State> state_;
};

/// The batches of one epoch. Under ScalingRule::published, making one passes over all samples and keeps four bytes for
/// each; otherwise it takes no time and memory that grow with the samples.
class BatchesOfEpoch {
  public:
    BatchesOfEpoch(const BatchOrder& order, std::uint64_t epoch);
    std::uint64_t epoch() const { return samples_.epoch(); }
    PlannedBatch batch(std::uint64_t step) const;
    std::uint64_t sample_at(std::uint64_t position) const;

  private:
    void shuffle_squares();
    void group_by_shape();

    BatchOrder order_;
    OrderOfEpoch samples_;
    std::vector<PlannedBatch> batches_;  ///< by step; empty for ScalingRule::fixed, which needs none
    std::vector<std::uint32_t> ids_;     ///< by position; empty where `samples_` says it
};

}  // namespace lockstep::sharding
