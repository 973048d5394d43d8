#include "sharding/sample_store.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace lockstep::sharding {
namespace {

constexpr std::uint64_t channels = 3;

/// Batches of shapes of their own bring samples to their size themselves: they then come whole, as they do where
/// windows are cut out of them, decoded no smaller than any batch needs.
SampleReaderOptions reader_options(const LoaderOptions& options) {
    SampleReaderOptions reader{.image_size = options.image_size,
                               .verify_checksums = options.verify_checksums,
                               .decode = options.decode,
                               .cut_area = options.augmentation.enabled ? options.augmentation.resized_crop : 0,
                               .preprocessed = options.preprocessed};
    if (options.scaling.rule != ScalingRule::fixed) {
        reader.image_size =
            options.scaling.rule == ScalingRule::published ? options.scaling.short_side : options.scaling.long_side;
        reader.cut_area = 1;
    }
    return reader;
}

/// Whether a sample of this size is used where its bytes lie.
bool lies_in_map(const SampleReader& reader, ImageSize size) {
    const Dataset& set = reader.dataset();
    return reader.options().preprocessed != nullptr ||
           (set.encoding() == Encoding::raw && set.read_path() == ReadPath::mmap &&
            size == fitted_size(size, set.task(), reader.options().image_size));
}

DecodedCache::Shape shape_for(const SampleReader& reader, std::uint64_t budget) {
    const Dataset& set = reader.dataset();
    if (budget == 0 || reader.options().cut_area > 0) {  // else of no size that is known before
        return {};
    }
    std::uint64_t largest = 0;
    for (std::uint64_t id = 0; id < set.size(); ++id) {
        const ImageSize size = set.size_of(id);
        if (size.width > 0 && size.height > 0 && !lies_in_map(reader, size)) {
            const ImageSize fitted = fitted_size(size, set.task(), reader.options().image_size);
            largest = std::max(largest, std::uint64_t{fitted.width} * fitted.height);
        }
    }
    return DecodedCache::shape_within(budget, set.size(), largest * channels);
}

}  // namespace

DecodedCache::Shape decoded_cache_shape(const Dataset& dataset, const LoaderOptions& options, std::uint64_t budget) {
    return shape_for(SampleReader(dataset, reader_options(options)), budget);
}

SampleStore::SampleStore(const Dataset& dataset, const LoaderOptions& options, std::optional<EpochOrder> order)
    : reader_(dataset, reader_options(options)),
      order_(order),
      cache_(options.decoded_cache),
      shared_(options.shared_cache) {
    LOCKSTEP_CHECK(!shared_ || (reader_.options().cut_area == 0 && options.preprocessed == nullptr));
    const std::uint64_t budget = options.decoded_cache_bytes;
    if (!cache_) {
        if (const DecodedCache::Shape shape = shape_for(reader_, budget); shape.slots > 0) {
            cache_ = std::make_shared<DecodedCache>(shape);
        }
    }
    const std::uint64_t bytes_of_one = std::uint64_t{options.image_size} * options.image_size * channels;
    const bool is_mapped = reader_.storage().encoding() == Encoding::raw && reader_.options().cut_area == 0;
    if (is_mapped && dataset.size() <= budget / bytes_of_one) {
        in_map_.resize(dataset.size());
    }
}

FittedSample SampleStore::fitted(std::uint64_t id, Moment now, ImageBuffers& buffers, CacheUse& use) {
    ++use.samples;
    if (!in_map_.empty()) {
        const std::lock_guard lock(mutex_);
        if (in_map_[id].pixels) {
            ++use.kept;
            return in_map_[id];
        }
    }
    const std::uint64_t next = cache_ ? next_use(id, now) : 0;
    if (cache_) {
        if (std::optional<DecodedCache::Pixels> found = cache_->find(id, next)) {
            ++use.kept;
            return {.source = dataset().sample(id),
                    .width = found->size.width,
                    .height = found->size.height,
                    .pixels = std::move(found->data)};
        }
    }
    if (shared_) {
        if (std::optional<FittedSample> sample = from_shared(id, buffers)) {
            ++use.shared;
            if (cache_) {
                cache_->put(id, {sample->width, sample->height}, sample->pixels.get(), next);
            }
            return *std::move(sample);
        }
    }
    // Two threads may decode the same sample at first: cheaper than waiting for each other.
    FittedSample sample = reader_.read(id, buffers);
    const bool is_in_map = sample.pixels.use_count() == 0;
    if (is_in_map && !in_map_.empty()) {
        const std::lock_guard lock(mutex_);
        return in_map_[id] = sample;
    }
    touched(reader_.options().preprocessed == nullptr ? sample.source.bytes.size()
                                                      : sample.width * channels * sample.height);
    if (cache_ && !is_in_map) {
        cache_->put(id, {sample.width, sample.height}, sample.pixels.get(), next);
    }
    if (shared_ && !is_in_map) {
        shared_->put(id, {sample.width, sample.height}, sample.pixels.get());
    }
    return sample;
}

/// Nothing where it isn't there, or would lie in the map.
std::optional<FittedSample> SampleStore::from_shared(std::uint64_t id, ImageBuffers& buffers) {
    const Sample source = dataset().sample(id);
    if (shared_->is_gone() || lies_in_map(reader_, {source.width, source.height})) {
        return std::nullopt;
    }
    const ImageSize size = fitted_size({source.width, source.height}, dataset().task(), reader_.options().image_size);
    const std::shared_ptr<Image> image = buffers.take();
    if (!shared_->find(id, size, *image)) {
        return std::nullopt;
    }
    return FittedSample{
        .source = source, .width = size.width, .height = size.height, .pixels = {image, image->pixels.data()}};
}

void SampleStore::announce(std::uint64_t id) const {
    if (in_map_.empty() && !(cache_ && cache_->contains(id))) {
        reader_.storage().prefetch(id);
    }
}

/// As a position in all epochs, one after the other. Partners of mosaic and mixup are drawn from the whole set, so only
/// uses as a batch's own sample are foreseen.
std::uint64_t SampleStore::next_use(std::uint64_t id, Moment now) {
    if (!order_ || cache_->shape().holds_all()) {
        return 0;
    }
    const std::uint64_t position = order_of(now.epoch)->position_of(id);
    if (position >= now.position) {
        return now.epoch * order_->size() + position;
    }
    return (now.epoch + 1) * order_->size() + order_of(now.epoch + 1)->position_of(id);
}

std::shared_ptr<const OrderOfEpoch> SampleStore::order_of(std::uint64_t epoch) {
    constexpr std::size_t most = 3;  // of the batch that is made, of the one that is next, and of what comes after it
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const OrderOfEpoch>& entry = epochs_[epoch];
    if (!entry) {
        entry = std::make_shared<const OrderOfEpoch>(*order_, epoch);
    }
    std::shared_ptr<const OrderOfEpoch> order = entry;
    if (epochs_.size() > most) {
        epochs_.erase(epochs_.begin());
    }
    return order;
}

/// Bounds what the mapped shards add to this process's memory.
void SampleStore::touched(std::uint64_t bytes) {
    constexpr std::uint64_t pages_around = 16 << 10;  // a fault maps 64 KiB at once, and small samples share them
    constexpr std::uint64_t most_mapped = 32 << 20;
    const std::uint64_t mapped = mapped_ += std::max(bytes, pages_around);
    if (mapped > most_mapped) {
        mapped_ = 0;
        reader_.storage().let_go();
    }
}

}  // namespace lockstep::sharding
