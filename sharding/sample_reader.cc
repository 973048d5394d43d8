#include "sharding/sample_reader.h"

#include <memory>

#include "base/error.h"

namespace lockstep::sharding {

FittedSample SampleReader::read(std::uint64_t id, ImageBuffers& buffers) const {
    const bool in_map = dataset_.read_path() == ReadPath::mmap;
    const std::shared_ptr<Image> room = in_map ? nullptr : buffers.take();
    const Sample sample = in_map ? dataset_.sample(id) : dataset_.read(id, room->pixels);
    if (options_.verify_checksums) {
        dataset_.verify(sample);
    }
    if (dataset_.encoding() == Encoding::raw) {
        return fit(sample, {room, sample.bytes.data()}, {sample.width, sample.height}, dataset_.task(),
                   options_.image_size, buffers);
    }
    try {
        return decoded(sample, buffers);
    } catch (const base::Error& error) {
        throw base::Error(base::str("sample ", id, " (", dataset_.file_name(id), ") of ", dataset_.directory().string(),
                                    ": ", error.what()));
    }
}

FittedSample SampleReader::decoded(const Sample& sample, ImageBuffers& buffers) const {
    const ImageSize size{sample.width, sample.height};
    const ImageSize least =
        options_.decode == DecodeMode::scaled ? fitted_size(size, dataset_.task(), options_.image_size) : size;
    const std::shared_ptr<Image> image = buffers.take();
    const ImageSize full = decode_reduced(sample.bytes, least, "image data", *image);
    if (full != size) {
        throw base::Error(base::str("image data decodes to ", full.width, "x", full.height, " where the index says ",
                                    sample.width, "x", sample.height, "; import the data again"));
    }
    return fit(sample, {image, image->pixels.data()}, {image->width, image->height}, dataset_.task(),
               options_.image_size, buffers);
}

}  // namespace lockstep::sharding
