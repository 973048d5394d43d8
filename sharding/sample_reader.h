#pragma once

#include <cstdint>
#include <memory>

#include "sharding/augmentation.h"
#include "sharding/dataset.h"
#include "sharding/image.h"

namespace lockstep::sharding {

/// `scaled`: JPEGs leave the decoder at 1/2, 1/4 or 1/8 where the image size is that much smaller (decode_reduced).
enum class DecodeMode : std::uint8_t { full = 0, scaled = 1 };

struct SampleReaderOptions {
    std::uint32_t image_size = 640;
    bool verify_checksums = true;
    DecodeMode decode = DecodeMode::full;
    /// Above 0 samples are not fitted: windows of at least this part of their area will be cut out
    /// (AugmentationOptions::resized_crop), so they come as large as they are, or in scaled decoding as that needs.
    double cut_area = 0;
    /// Where the pixels are taken from, already fitted (open_preprocessed_cache); must outlive the reader.
    const Dataset* preprocessed = nullptr;
};

/// Of all that decides the pixels of fitted samples: the data set's content, and the options.
std::uint64_t decoded_pixels_fingerprint(const Dataset& source, const SampleReaderOptions& options);

/// Reads, checks, decodes and fits one sample. Thread-safe with buffers of its own for each thread.
class SampleReader {
  public:
    /// The data set must outlive the reader.
    SampleReader(const Dataset& dataset, SampleReaderOptions options) : dataset_(dataset), options_(options) {}

    /// The pixels lie in the mapped shard (raw, of matching size: then they belong to no buffer, use_count() is 0) or
    /// in one of `buffers`. Throws base::Error naming sample, file and reason.
    FittedSample read(std::uint64_t id, ImageBuffers& buffers) const;

    const Dataset& dataset() const { return dataset_; }
    /// The set whose bytes are read.
    const Dataset& storage() const { return options_.preprocessed == nullptr ? dataset_ : *options_.preprocessed; }
    const SampleReaderOptions& options() const { return options_; }

  private:
    FittedSample preprocessed(std::uint64_t id) const;
    FittedSample fitted(const Sample& sample, std::shared_ptr<const std::uint8_t> pixels, ImageSize size,
                        ImageBuffers& buffers) const;
    FittedSample decoded(const Sample& sample, ImageBuffers& buffers) const;

    const Dataset& dataset_;
    SampleReaderOptions options_;
};

}  // namespace lockstep::sharding
