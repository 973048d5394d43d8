#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "sharding/augmentation.h"
#include "sharding/epoch_order.h"
#include "sharding/image.h"
#include "sharding/loader.h"
#include "sharding/sample_reader.h"

namespace lockstep::sharding {

/// Where a loader's samples come from: the cache of decoded ones, or the data set. Thread-safe with buffers of its own
/// for each thread.
class SampleStore {
  public:
    /// The data set must outlive the store. `order`: by which samples come, so that the cache keeps what is needed
    /// soonest; none for what is read once.
    SampleStore(const Dataset& dataset, const LoaderOptions& options, std::optional<EpochOrder> order);

    /// Where in the order of samples a batch ends that something is read for.
    struct Moment {
        std::uint64_t epoch = 0;
        std::uint64_t position = 0;
    };
    /// As SampleReader::read; the pixels may also lie in the cache. Where they came from is added to `use`.
    FittedSample fitted(std::uint64_t id, Moment now, ImageBuffers& buffers, CacheUse& use);

    /// Asks the kernel to read ahead what will be decoded.
    void announce(std::uint64_t id) const;

    const Dataset& dataset() const { return reader_.dataset(); }

  private:
    std::uint64_t next_use(std::uint64_t id, Moment now);
    std::shared_ptr<const OrderOfEpoch> order_of(std::uint64_t epoch);
    std::optional<FittedSample> from_shared(std::uint64_t id, ImageBuffers& buffers);
    void touched(std::uint64_t bytes);

    SampleReader reader_;
    std::optional<EpochOrder> order_;
    std::shared_ptr<DecodedCache> cache_;  ///< null: none
    std::shared_ptr<RedisCache> shared_;   ///< null: none
    std::atomic<std::uint64_t> mapped_{0};
    std::mutex mutex_;                  ///< of what follows
    std::vector<FittedSample> in_map_;  ///< by id, those that need no memory; may be empty
    std::map<std::uint64_t, std::shared_ptr<const OrderOfEpoch>> epochs_;  ///< the latest ones
};

}  // namespace lockstep::sharding
