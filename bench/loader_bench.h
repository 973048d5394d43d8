#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/loader.h"

namespace lockstep::bench {

/// The loader's parts, each by itself, and `all` of them together as a training has them.
enum class LoaderPart : std::uint8_t {
    decode,    ///< read, check, decode and fit a sample
    augment,   ///< from fitted samples in memory to one image of a batch
    assemble,  ///< hand samples that need no decoding and no augmentation over as batches, in order
    copy,      ///< from a batch to the network's input, on the thread that trains
    all
};
std::string_view name_of(LoaderPart part);
std::string_view name_of(sharding::DecodeMode mode);
std::string_view name_of(sharding::ReadPath path);

struct LoaderPlan {
    std::filesystem::path dataset;
    sharding::LoaderOptions options;  ///< `threads` is the most that are tried; 1, 2, 4, ... before
    sharding::ReadPath read = sharding::ReadPath::mmap;

    // What to measure beside the options' own way: everything where empty.
    std::vector<LoaderPart> parts;
    std::vector<sharding::DecodeMode> decodes;
    std::vector<sharding::Encoding> encodings;
    std::vector<sharding::ReadPath> reads;
    std::vector<unsigned> threads;
    std::vector<bool> cold;  ///< true: from storage, false: from memory

    double seconds = 0.5;  ///< of timing for each row
    unsigned rounds = 3;   ///< in which the rows take turns
    /// Where the same samples are written in the other encoding for comparison; removed at the end.
    std::filesystem::path scratch = std::filesystem::temp_directory_path();
    std::uint64_t scratch_bytes = std::uint64_t{256} << 20;  ///< of pixels at most, so perhaps not of every sample
    /// Turns a batch into the network's input; none: nothing is copied.
    std::function<void(const sharding::MicroBatch&)> copy;
};

struct LoaderRow {
    LoaderPart part = LoaderPart::all;
    sharding::DecodeMode decode = sharding::DecodeMode::full;
    sharding::Encoding encoding = sharding::Encoding::encoded;
    sharding::ReadPath read = sharding::ReadPath::mmap;
    unsigned threads = 1;
    bool is_cold = false;      ///< proved by mincore in every round
    std::string without = {};  ///< augmentation that this row leaves out, or "decoding": all samples are kept decoded
    std::uint64_t images = 0;
    double samples_per_image = 1;  ///< read for one image of a batch: mosaic and mixup read further ones
    double images_per_second = 0;  ///< median of the rounds
    double least = 0, most = 0;    ///< images a second of the slowest and the fastest round
    std::uint64_t pss_bytes = 0;   ///< of the whole process at the end of the row, mapped shards by their share
};

struct LoaderMeasurement {
    std::vector<LoaderRow> rows;
    sharding::Encoding encoding = sharding::Encoding::encoded;  ///< the data set's own
    std::uint64_t samples = 0;
    std::uint64_t scratch_samples = 0;  ///< in the other encoding; 0 where it was not needed
    bool could_be_cold = true;          ///< the kernel let go of what it had in memory, wherever that was asked for
    bool could_be_warm = true;          ///< what was to be read from memory was in memory
};

/// Times the plan's rows in turns. Throws base::Error where the data set can't be read, base::UsageError where the
/// filters leave nothing to measure.
LoaderMeasurement bench_loader(const LoaderPlan& plan);

/// What limits the loader in the plan's own setting, and which setting to change, with the figures that say so.
std::string explain(const LoaderPlan& plan, const LoaderMeasurement& measured, unsigned usable_cores);

}  // namespace lockstep::bench
