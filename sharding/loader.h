#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sharding/augmentation.h"
#include "sharding/batch_order.h"
#include "sharding/dataset.h"
#include "sharding/decoded_cache.h"
#include "sharding/epoch_order.h"
#include "sharding/redis_cache.h"
#include "sharding/sample_reader.h"
#include "sharding/scaling.h"

namespace lockstep::sharding {

/// What becomes of a sample that can't be read, fails its checksum or doesn't decode, or whose mosaic or mixup partner
/// does so.
enum class BadSamplePolicy : std::uint8_t {
    error = 0,  ///< next() throws
    skip = 1    ///< its place in the batch is closed up and it is listed in MicroBatch::skipped
};

/// A sample left out by BadSamplePolicy::skip.
struct SkippedSample {
    std::uint64_t id = 0;
    std::string reason;  ///< names the sample, or the partner, and its file
    bool operator==(const SkippedSample&) const = default;
};

/// Where samples came from.
struct CacheUse {
    std::uint64_t samples = 0;  ///< all that were used
    std::uint64_t kept = 0;     ///< of them, those that were in memory already decoded
    std::uint64_t shared = 0;   ///< of the others, those that the cache between nodes had

    CacheUse& operator+=(const CacheUse& other) {
        samples += other.samples;
        kept += other.kept;
        shared += other.shared;
        return *this;
    }
};

/// This rank's share of one micro-step. May be empty (count 0): the step must still be taken.
struct MicroBatch {
    std::uint32_t count = 0;  ///< images
    std::uint32_t height = 0, width = 0;
    std::uint32_t channels = 3;
    std::vector<std::uint8_t> pixels;  ///< count x height x width x channels, RGB (NHWC: channels-last without a copy)
    std::vector<TargetBox> boxes;      ///< detection; grouped by image in order; crowd and difficult boxes are left out
    std::vector<std::int32_t> labels;  ///< classification
    std::vector<std::uint64_t> sample_ids;
    std::vector<SkippedSample> skipped;  ///< in order; not part of count, but of the ledger
    std::vector<Letterbox> letterboxes;  ///< how each image was placed; identity when augmented
    std::uint64_t partners = 0;          ///< further samples that mosaic and mixup drew; no part of the ledger
};

/// One effective batch as this rank sees it.
struct Batch {
    std::uint64_t epoch = 0;
    std::uint64_t step = 0;         ///< within the epoch
    PositionRange positions;        ///< the whole effective batch, over all ranks and micro-steps; of the batch order
    std::vector<MicroBatch> micro;  ///< exactly `accumulate` entries
    double wait_seconds = 0;        ///< how long next() blocked
    CacheUse cache_use;             ///< partners included
    std::span<const MicroBatch> micro_steps() const { return micro; }
};

/// What a rank takes of the order.
struct Share {
    std::uint64_t rank = 0;
    std::uint64_t ranks = 1;
};

struct LoaderOptions {
    std::uint32_t image_size = 640;      ///< square side of what comes out, where `scaling` doesn't say more
    ScalingOptions scaling = {};         ///< detection
    std::uint64_t effective_batch = 64;  ///< images of one optimizer step, over all ranks and micro-steps
    std::uint64_t accumulate = 1;        ///< micro-steps per optimizer step
    unsigned threads = 2;
    unsigned prefetch = 2;  ///< effective batches kept ready
    std::uint64_t seed = 0;
    AugmentationOptions augmentation;          ///< `enabled = false`: letterbox only
    std::uint64_t closing_epoch = UINT64_MAX;  ///< from this epoch on mosaic and mixup are off
    bool verify_checksums = true;
    DecodeMode decode = DecodeMode::full;
    const Dataset* preprocessed = nullptr;  ///< its samples, decoded (open_preprocessed_cache); outlives the loader
    BadSamplePolicy on_bad_sample = BadSamplePolicy::error;
    /// Decoded samples are kept in so much of this process's memory; where there is not room for all, those that are
    /// needed soonest. 0: none are kept, as none are that windows are cut out of (resized_crop) or whose batches have
    /// sizes of their own (scaling).
    std::uint64_t decoded_cache_bytes = std::uint64_t{256} << 20;
    /// Where they are kept instead, shared with loaders of the same data set, image size and decode mode; of
    /// decoded_cache_shape.
    std::shared_ptr<DecodedCache> decoded_cache = nullptr;
    /// Asked for samples that aren't in memory, and given those that were decoded; of decoded_pixels_fingerprint. It is
    /// of no use where decoded_cache_shape says so. Null: none.
    std::shared_ptr<RedisCache> shared_cache = nullptr;
};

/// What a cache for a loader with these options holds in `budget` bytes. No slot where it would be of no use: also
/// where all samples lie in mapped files as they are needed.
DecodedCache::Shape decoded_cache_shape(const Dataset& dataset, const LoaderOptions& options, std::uint64_t budget);

/// What the batches of a Loader with these options hold. Throws base::UsageError naming an impossible option.
BatchOrder batch_order(const Dataset& dataset, EpochOrder order, const LoaderOptions& options);

/// Threads that turn samples into batches, in order, with bounded prefetch. Buffers are recycled through give_back().
/// One thread calls next(). Destruction at any moment stops and joins the threads.
class Loader {
  public:
    /// The data set must outlive the loader. Starts reading at (epoch, step); the step behind an epoch's last is the
    /// next epoch's first. Throws base::UsageError naming an impossible option.
    Loader(const Dataset& dataset, EpochOrder order, Share share, const LoaderOptions& options, std::uint64_t epoch = 0,
           std::uint64_t step = 0);
    /// The same with an order that is there already (batch_order of this data set and these options).
    Loader(const Dataset& dataset, const BatchOrder& order, Share share, const LoaderOptions& options,
           std::uint64_t epoch = 0, std::uint64_t step = 0);
    ~Loader();
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    /// The next effective batch, over epoch borders without end. Rethrows what failed in a thread: base::Error naming
    /// sample, file and reason; every later call throws it again.
    Batch next();
    /// Recycles the buffers of a batch that is done with. Optional.
    void give_back(Batch&& batch);

    const LoaderOptions& options() const;
    /// Of all batches that next() gave.
    CacheUse cache_use() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

struct SequentialOptions {
    std::uint32_t image_size = 640;
    /// Under ScalingRule::published each image has the shape of its own size, and a batch holds images of one shape;
    /// otherwise all come in squares of image_size.
    ScalingOptions scaling = {};
    std::uint64_t batch = 32;  ///< images of a MicroBatch at most
    unsigned threads = 2;
    unsigned prefetch = 2;  ///< batches kept ready
    bool verify_checksums = true;
};

/// Reads a range of samples once, in order (of one shape) and without augmentation (detection: letterbox), with the
/// same threads and prefetch as Loader: for evaluation. One thread calls next(); destruction at any moment is clean.
class SequentialReader {
  public:
    /// `ids`: sample ids within the data set, which must outlive the reader. May be empty.
    SequentialReader(const Dataset& dataset, PositionRange ids, SequentialOptions options);
    ~SequentialReader();
    SequentialReader(const SequentialReader&) = delete;
    SequentialReader& operator=(const SequentialReader&) = delete;

    /// Up to `batch` images, nothing after the last. Errors as Loader::next().
    std::optional<MicroBatch> next();
    void give_back(MicroBatch&& batch);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace lockstep::sharding
