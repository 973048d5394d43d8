#include "sharding/preprocessed_cache.h"

#include <chrono>
#include <ios>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "sharding/dataset_writer.h"
#include "sharding/ordered_parallel.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;

std::uint64_t bytes_of_samples_from(std::uint64_t first, const Dataset& source, const SampleReaderOptions& options) {
    std::uint64_t bytes = 0;
    for (std::uint64_t id = first; id < source.size(); ++id) {
        const ImageSize size = fitted_size(source.size_of(id), source.task(), options.image_size);
        bytes += std::uint64_t{3} * size.width * size.height;
    }
    return bytes;
}

void write_cache(const Dataset& source, const fs::path& path, const std::string& description,
                 const SampleReaderOptions& options, unsigned threads) {
    const SampleReader reader(source, options);
    struct Decoded {
        FittedSample sample;
        std::vector<std::uint8_t> pixels;
    };
    const DatasetDescription raw{
        .task = source.task(), .encoding = Encoding::raw, .classes = source.classes(), .source = description};
    write_dataset_resumably(path, raw, [&](DatasetWriter& writer) {
        const std::uint64_t done = writer.resume(decoded_pixels_fingerprint(source, options));
        base::require_free_space(path, bytes_of_samples_from(done, source, options), "the cache of decoded samples");
        base::Progress progress("decoding into the cache", "images", source.size(), done);
        const auto produce = [&](std::uint64_t i) {
            ImageBuffers buffers;
            Decoded decoded{.sample = reader.read(done + i, buffers), .pixels = {}};
            const std::uint8_t* const begin = decoded.sample.pixels.get();
            decoded.pixels.assign(begin, begin + std::size_t{decoded.sample.width} * decoded.sample.height * 3);
            decoded.sample.pixels.reset();
            return decoded;
        };
        const auto consume = [&](std::uint64_t i, const Decoded& decoded) {
            Sample sample = decoded.sample.source;
            sample.width = decoded.sample.width;
            sample.height = decoded.sample.height;
            sample.bytes = decoded.pixels;
            sample.boxes = {};  // they are taken from the source, whose pixels they count in
            writer.add(sample, source.file_name(done + i));
            writer.finished_parts(done + i + 1);
            progress.update(done + i + 1);
        };
        ordered_parallel(source.size() - done, threads, produce, consume);
        progress.finish();
    });
}

}  // namespace

Dataset open_preprocessed_cache(const Dataset& source, const fs::path& folder, const SampleReaderOptions& options,
                                unsigned threads) {
    LOCKSTEP_CHECK(options.cut_area == 0 && options.preprocessed == nullptr);
    const std::string name = base::str(std::hex, decoded_pixels_fingerprint(source, options));
    const fs::path path = folder / name;
    const std::string description =
        base::str("decoded samples of the data set of content hash 0x", std::hex, source.content_hash(), std::dec,
                  " for images of ", options.image_size,
                  options.decode == DecodeMode::scaled ? " pixels, decoded scaled" : " pixels");
    bool has_waited = false;
    while (!fs::exists(path)) {
        try {
            write_cache(source, path, description, options, threads);
        } catch (const WrittenByAnother&) {
            if (!has_waited) {
                base::log_info(base::str("waits for another process, which is decoding into ", path.string()));
                has_waited = true;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        } catch (const base::Error&) {
            if (!fs::exists(path)) {  // else another process was just done with it
                throw;
            }
        }
    }
    Dataset cache = Dataset::open(path);
    if (cache.size() != source.size() || cache.encoding() != Encoding::raw || cache.source() != description) {
        throw base::Error(base::str(path.string(), " is not the cache of ", source.directory().string(),
                                    ": remove it, or choose another folder"));
    }
    return cache;
}

}  // namespace lockstep::sharding
