#include "sharding/sample_reader.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/hash.h"

namespace lockstep::sharding {

std::uint64_t decoded_pixels_fingerprint(const Dataset& source, const SampleReaderOptions& options) {
    constexpr std::uint64_t pixels_version = 1;  // to be raised when decoding or fitting gives other pixels than before
    return base::Hash64()
        .add(pixels_version)
        .add(source.content_hash())
        .add(std::uint64_t{options.image_size})
        .add(static_cast<std::uint64_t>(options.decode))
        .value();
}

FittedSample SampleReader::read(std::uint64_t id, ImageBuffers& buffers) const {
    if (options_.preprocessed != nullptr) {
        return preprocessed(id);
    }
    const bool in_map = dataset_.read_path() == ReadPath::mmap;
    const std::shared_ptr<Image> room = in_map ? nullptr : buffers.take();
    const Sample sample = in_map ? dataset_.sample(id) : dataset_.read(id, room->pixels);
    if (options_.verify_checksums) {
        dataset_.verify(sample);
    }
    if (dataset_.encoding() == Encoding::raw) {
        return fitted(sample, {room, sample.bytes.data()}, {sample.width, sample.height}, buffers);
    }
    try {
        return decoded(sample, buffers);
    } catch (const base::Error& error) {
        throw base::Error(base::str("sample ", id, " (", dataset_.file_name(id), ") of ", dataset_.directory().string(),
                                    ": ", error.what()));
    }
}

FittedSample SampleReader::preprocessed(std::uint64_t id) const {
    const Sample stored = options_.preprocessed->sample(id);
    if (options_.verify_checksums) {
        options_.preprocessed->verify(stored);
    }
    const Sample sample = dataset_.sample(id);
    const ImageSize expected = fitted_size({sample.width, sample.height}, dataset_.task(), options_.image_size);
    if (expected != ImageSize{stored.width, stored.height}) {
        throw base::Error(base::str(options_.preprocessed->directory().string(), ": sample ", id, " is ", stored.width,
                                    "x", stored.height, " where ", expected.width, "x", expected.height,
                                    " is asked for: remove this cache"));
    }
    return {.source = sample,
            .width = stored.width,
            .height = stored.height,
            .pixels = {std::shared_ptr<Image>(), stored.bytes.data()}};
}

FittedSample SampleReader::fitted(const Sample& sample, std::shared_ptr<const std::uint8_t> pixels, ImageSize size,
                                  ImageBuffers& buffers) const {
    if (options_.cut_area > 0) {
        return {.source = sample, .width = size.width, .height = size.height, .pixels = std::move(pixels)};
    }
    return fit(sample, std::move(pixels), size, dataset_.task(), options_.image_size, buffers);
}

FittedSample SampleReader::decoded(const Sample& sample, ImageBuffers& buffers) const {
    const ImageSize size{sample.width, sample.height};
    ImageSize least = size;
    if (options_.decode == DecodeMode::scaled && options_.cut_area > 0) {
        const auto side = static_cast<std::uint32_t>(std::ceil(options_.image_size / std::sqrt(options_.cut_area)));
        least = {std::min(side, size.width), std::min(side, size.height)};
    } else if (options_.decode == DecodeMode::scaled) {
        least = fitted_size(size, dataset_.task(), options_.image_size);
    }
    const std::shared_ptr<Image> image = buffers.take();
    const ImageSize full = decode_reduced(sample.bytes, least, "image data", *image);
    if (full != size) {
        throw base::Error(base::str("image data decodes to ", full.width, "x", full.height, " where the index says ",
                                    sample.width, "x", sample.height, "; import the data again"));
    }
    return fitted(sample, {image, image->pixels.data()}, {image->width, image->height}, buffers);
}

}  // namespace lockstep::sharding
