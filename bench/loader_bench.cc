#include "bench/loader_bench.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/resources.h"
#include "base/text.h"
#include "bench/page_cache.h"
#include "sharding/dataset_writer.h"
#include "sharding/image.h"

namespace lockstep::bench {
namespace {

namespace fs = std::filesystem;
using sharding::Dataset;
using sharding::DecodeMode;
using sharding::Encoding;
using sharding::FittedSample;
using sharding::Image;
using sharding::ImageBuffers;
using sharding::ImageSize;
using sharding::ReadPath;

constexpr std::size_t channels = 3;
constexpr const char* without_decoding = "decoding";

template <typename T>
std::vector<T> chosen(const std::vector<T>& wanted, std::vector<T> all) {
    return wanted.empty() ? all : wanted;
}

std::vector<unsigned> thread_counts(unsigned most) {
    std::vector<unsigned> counts;
    for (unsigned threads = 1; threads < most; threads *= 2) {
        counts.push_back(threads);
    }
    counts.push_back(most);
    return counts;
}

/// What one turn of a row gave.
struct Turn {
    std::uint64_t images = 0;
    std::uint64_t partners = 0;
    double seconds = 0;
    std::uint64_t pss_bytes = 0;
    bool is_cold = false;
};

/// Runs `work(thread)`, which returns the images it made, on as many threads; throws what the first of them throws.
template <typename Work>
Turn on_threads(unsigned threads, const Work& work) {
    std::atomic<std::uint64_t> images{0};
    std::exception_ptr error;
    std::mutex mutex;
    const double start = base::monotonic_seconds();
    {
        std::vector<std::jthread> running;
        for (unsigned thread = 0; thread < threads; ++thread) {
            running.emplace_back([&] {
                try {
                    images += work();
                } catch (...) {
                    const std::lock_guard lock(mutex);
                    error = error ? error : std::current_exception();
                }
            });
        }
    }
    if (error) {
        std::rethrow_exception(error);
    }
    Turn turn;
    turn.images = images;
    turn.seconds = base::monotonic_seconds() - start;
    turn.pss_bytes = base::pss_bytes();
    return turn;
}

// ---- the same samples in the other encoding ----

std::vector<sharding::Box> scaled_boxes(const sharding::Sample& sample, ImageSize size) {
    const auto width = static_cast<float>(size.width);
    const auto height = static_cast<float>(size.height);
    const float across = width / static_cast<float>(sample.width);
    const float down = height / static_cast<float>(sample.height);
    std::vector<sharding::Box> boxes;
    for (sharding::Box box : sample.boxes) {
        box.x1 *= across;
        box.x2 = std::min(width, box.x2 * across);
        box.y1 *= down;
        box.y2 = std::min(height, box.y2 * down);
        box.area *= across * down;
        if (box.x1 < box.x2 && box.y1 < box.y2) {
            boxes.push_back(box);
        }
    }
    return boxes;
}

/// `raw`: decoded at the training's size; `encoded`: JPEG. Removed with the object.
class Counterpart {
  public:
    Counterpart(const LoaderPlan& plan, const Dataset& original) : folder_(plan.scratch / "lockstep-bench-loader") {
        folder_ += base::str("-", getpid());
        const std::uint64_t side = plan.options.image_size;
        samples_ = std::clamp<std::uint64_t>(plan.scratch_bytes / (side * side * channels), 1, original.size());
        base::require_free_space(folder_, samples_ * side * side * channels, "measuring the other encoding");
        fs::create_directories(folder_);
        const Encoding encoding = original.encoding() == Encoding::raw ? Encoding::encoded : Encoding::raw;
        const sharding::DatasetDescription description{.task = original.task(),
                                                       .encoding = encoding,
                                                       .classes = original.classes(),
                                                       .source = "a copy made by lockstep bench loader"};
        sharding::write_dataset(path(), description, [&](sharding::DatasetWriter& writer) {
            const sharding::SampleReader reader(original, {.image_size = plan.options.image_size});
            ImageBuffers buffers;
            for (std::uint64_t i = 0; i < samples_; ++i) {
                add(writer, encoding, reader, i * original.size() / samples_, buffers);
            }
        });
    }
    ~Counterpart() {
        std::error_code ignored;
        fs::remove_all(folder_, ignored);
    }
    Counterpart(const Counterpart&) = delete;
    Counterpart& operator=(const Counterpart&) = delete;

    fs::path path() const { return folder_ / "dataset"; }
    std::uint64_t samples() const { return samples_; }

  private:
    static void add(sharding::DatasetWriter& writer, Encoding encoding, const sharding::SampleReader& reader,
                    std::uint64_t id, ImageBuffers& buffers) {
        const FittedSample fitted = reader.read(id, buffers);
        const std::size_t bytes = std::size_t{fitted.width} * fitted.height * channels;
        sharding::Sample sample = fitted.source;
        const std::vector<sharding::Box> boxes = scaled_boxes(sample, {fitted.width, fitted.height});
        sample.width = fitted.width;
        sample.height = fitted.height;
        sample.boxes = boxes;
        std::vector<std::uint8_t> jpeg;
        if (encoding == Encoding::encoded) {
            constexpr int usual_quality = 90;
            jpeg = sharding::encode_jpeg(
                {fitted.width, fitted.height, {fitted.pixels.get(), fitted.pixels.get() + bytes}}, usual_quality);
            sample.bytes = jpeg;
        } else {
            sample.bytes = {fitted.pixels.get(), bytes};
        }
        writer.add(sample, reader.dataset().file_name(id));
    }

    fs::path folder_;
    std::uint64_t samples_ = 0;
};

// ---- the rows ----

class Bench {
  public:
    explicit Bench(const LoaderPlan& plan) : plan_(plan) {
        const Dataset own = open(plan.dataset, plan.read);
        result_.encoding = own.encoding();
        result_.samples = own.size();
        if (wants(LoaderPart::assemble) || wants(own.encoding() == Encoding::raw ? Encoding::encoded : Encoding::raw)) {
            counterpart_.emplace(plan, own);
            result_.scratch_samples = counterpart_->samples();
        }
    }

    LoaderMeasurement run() {
        plan_rows();
        if (result_.rows.empty()) {
            throw base::UsageError("bench loader: the filters leave nothing to measure");
        }
        std::vector<std::vector<Turn>> turns(result_.rows.size());
        for (unsigned round = 0; round < plan_.rounds; ++round) {
            for (std::size_t turn = 0; turn < turns.size(); ++turn) {
                const std::size_t i = (round + turn) % turns.size();
                turns[i].push_back(take_turn(result_.rows[i]));
            }
        }
        for (std::size_t i = 0; i < turns.size(); ++i) {
            summarize(turns[i], result_.rows[i]);
        }
        return std::move(result_);
    }

  private:
    bool wants(LoaderPart part) const {
        return plan_.parts.empty() || std::ranges::find(plan_.parts, part) != plan_.parts.end();
    }
    bool wants(Encoding encoding) const {
        return plan_.encodings.empty() || std::ranges::find(plan_.encodings, encoding) != plan_.encodings.end();
    }

    bool wants_warm() const { return plan_.cold.empty() || std::ranges::find(plan_.cold, false) != plan_.cold.end(); }
    bool keeps_decoded_samples() const {
        const std::uint64_t side = plan_.options.image_size;
        return result_.encoding == Encoding::encoded && wants(Encoding::encoded) &&
               result_.samples <= plan_.options.decoded_cache_bytes / (side * side * channels);
    }

    void plan_rows() {
        const auto counts = chosen(plan_.threads, thread_counts(plan_.options.threads));
        const LoaderRow own{.decode = plan_.options.decode, .encoding = result_.encoding, .read = plan_.read};
        for (const LoaderPart part : {LoaderPart::decode, LoaderPart::augment, LoaderPart::assemble, LoaderPart::all}) {
            for (const unsigned threads : counts) {
                LoaderRow row = own;
                row.part = part;
                row.threads = threads;
                if (!wants(part)) {
                    continue;
                }
                if (part == LoaderPart::decode || part == LoaderPart::all) {
                    add_ways(row);
                    if (part == LoaderPart::all && keeps_decoded_samples() && wants_warm()) {
                        row.without = without_decoding;
                        result_.rows.push_back(row);
                    }
                } else if (part == LoaderPart::augment) {
                    add_augmentations(row);
                } else {  // what needs no decoding: raw, in the map
                    row.decode = DecodeMode::full;
                    row.encoding = Encoding::raw;
                    row.read = ReadPath::mmap;
                    result_.rows.push_back(row);
                }
            }
            if (part == LoaderPart::assemble && wants(LoaderPart::copy) && plan_.copy) {
                LoaderRow row = own;
                row.part = LoaderPart::copy;
                result_.rows.push_back(row);
            }
        }
    }

    void add_ways(LoaderRow row) {
        for (const Encoding encoding : chosen(plan_.encodings, {Encoding::encoded, Encoding::raw})) {
            for (const ReadPath read : chosen(plan_.reads, {ReadPath::mmap, ReadPath::hdf5})) {
                for (const DecodeMode decode : chosen(plan_.decodes, {DecodeMode::full, DecodeMode::scaled})) {
                    for (const bool cold : chosen(plan_.cold, {true, false})) {
                        if (encoding == Encoding::raw && decode == DecodeMode::scaled) {
                            continue;  // nothing is decoded
                        }
                        row.encoding = encoding;
                        row.read = read;
                        row.decode = decode;
                        row.is_cold = cold;
                        result_.rows.push_back(row);
                    }
                }
            }
        }
    }

    /// As it is, and for one thread without each kind that is switched on, which tells what each costs.
    void add_augmentations(LoaderRow row) {
        result_.rows.push_back(row);
        const sharding::AugmentationOptions& on = plan_.options.augmentation;
        if (row.threads != 1 || !on.enabled) {
            return;
        }
        for (const auto& [name, is_on] : {std::pair{"mosaic", on.mosaic > 0},
                                          {"mixup", on.mixup > 0},
                                          {"hsv", on.hsv_hue + on.hsv_saturation + on.hsv_value > 0},
                                          {"contrast", on.contrast > 0}}) {
            if (is_on) {
                row.without = name;
                result_.rows.push_back(row);
            }
        }
    }

    sharding::AugmentationOptions augmentation_of(const LoaderRow& row) const {
        sharding::AugmentationOptions options = plan_.options.augmentation;
        if (row.without == "mosaic") {
            options.mosaic = 0;
        } else if (row.without == "mixup") {
            options.mixup = 0;
        } else if (row.without == "hsv") {
            options.hsv_hue = options.hsv_saturation = options.hsv_value = 0;
        } else if (row.without == "contrast") {
            options.contrast = 0;
        }
        return options;
    }

    fs::path path_of(const LoaderRow& row) const {
        return row.encoding == result_.encoding ? plan_.dataset : counterpart_->path();
    }

    static Dataset open(const fs::path& path, ReadPath read) { return Dataset::open(path, read); }

    double cut_area() const {
        const sharding::AugmentationOptions& options = plan_.options.augmentation;
        return options.enabled ? options.resized_crop : 0;
    }
    double seconds() const { return plan_.seconds / plan_.rounds; }

    Turn take_turn(const LoaderRow& row) {
        bool is_cold = false;
        if (row.is_cold) {  // nothing of it is mapped at this moment
            is_cold = drop_from_page_cache(path_of(row));
            result_.could_be_cold &= is_cold;
        } else {
            result_.could_be_warm &= read_into_page_cache(path_of(row), base::available_memory_bytes() / 2);
        }
        Turn turn;
        switch (row.part) {
            case LoaderPart::decode:
                turn = time_decoding(row);
                break;
            case LoaderPart::augment:
                turn = time_augmentation(row);
                break;
            case LoaderPart::assemble:
            case LoaderPart::all:
                turn = time_loader(row);
                break;
            case LoaderPart::copy:
                turn = time_copy();
                break;
        }
        turn.is_cold = is_cold;
        return turn;
    }

    Turn time_decoding(const LoaderRow& row) const {
        const Dataset data = open(path_of(row), row.read);
        const sharding::EpochOrder order(sharding::OrderKind::full, plan_.options.seed, data.size());
        const sharding::SampleReader reader(data, {.image_size = plan_.options.image_size,
                                                   .verify_checksums = plan_.options.verify_checksums,
                                                   .decode = row.decode,
                                                   .cut_area = cut_area()});
        // As far ahead as the loader plans.
        const std::uint64_t ahead = plan_.options.effective_batch * plan_.options.prefetch;
        std::atomic<std::uint64_t> next{0};
        const double end = base::monotonic_seconds() + seconds();
        return on_threads(row.threads, [&] {
            ImageBuffers buffers;
            std::uint64_t images = 0;
            while (images == 0 || base::monotonic_seconds() < end) {
                const std::uint64_t position = next++;
                if (row.is_cold && position >= data.size()) {
                    break;  // from here on it would be in memory
                }
                if (position + ahead < data.size()) {
                    data.prefetch(order.sample_at(0, position + ahead));
                }
                static_cast<void>(reader.read(order.sample_at(0, position % data.size()), buffers));
                ++images;
            }
            return images;
        });
    }

    Turn time_augmentation(const LoaderRow& row) const {
        const Dataset data = open(path_of(row), row.read);
        // So many that they don't stay in a core's cache, as they don't in a training.
        constexpr std::uint64_t most_fitted = 64;
        const std::uint64_t count = std::min(most_fitted, data.size());
        const sharding::SampleReader reader(
            data, {.image_size = plan_.options.image_size, .decode = row.decode, .cut_area = cut_area()});
        ImageBuffers buffers;
        std::vector<FittedSample> fitted;
        for (std::uint64_t i = 0; i < count; ++i) {
            fitted.push_back(reader.read(i * data.size() / count, buffers));
        }
        const sharding::Augmenter augmenter(augmentation_of(row), data.task(), plan_.options.image_size,
                                            plan_.options.seed, UINT64_MAX, data.size());
        std::atomic<std::uint64_t> next{0};
        const double end = base::monotonic_seconds() + seconds();
        return on_threads(row.threads, [&] {
            const std::size_t side = plan_.options.image_size;
            std::vector<std::uint8_t> pixels(side * side * channels);
            std::vector<sharding::TargetBox> boxes;
            std::uint64_t images = 0;
            while (images == 0 || base::monotonic_seconds() < end) {
                boxes.clear();
                augmenter.make(
                    0, next++, [&](std::uint64_t id) { return fitted[id % count]; }, pixels, boxes);
                ++images;
            }
            return images;
        });
    }

    /// The whole loader; for LoaderPart::assemble on samples that are ready.
    Turn time_loader(const LoaderRow& row) const {
        const Dataset data = open(path_of(row), row.read);
        sharding::LoaderOptions options = plan_.options;
        options.threads = row.threads;
        options.decode = row.decode;
        if (row.without != without_decoding) {
            options.decoded_cache_bytes = 0;
        }
        if (row.part == LoaderPart::assemble) {
            options.augmentation.enabled = false;
            options.verify_checksums = false;
        }
        const sharding::EpochOrder order(sharding::OrderKind::full, options.seed, data.size());
        double start = base::monotonic_seconds();
        sharding::Loader loader(data, order, {}, options);
        const std::uint64_t steps = order.steps_per_epoch(options.effective_batch);
        if (!row.is_cold) {  // the first batch waits for the threads to start, the first epoch for what will be kept
            for (std::uint64_t step = 0; step < (row.without == without_decoding ? steps : 1); ++step) {
                loader.give_back(loader.next());
            }
            start = base::monotonic_seconds();
        }
        Turn turn;
        for (std::uint64_t step = 0; turn.images == 0 || base::monotonic_seconds() < start + seconds(); ++step) {
            if (row.is_cold && step == steps) {
                break;
            }
            sharding::Batch batch = loader.next();
            for (const sharding::MicroBatch& micro : batch.micro_steps()) {
                if (plan_.copy && row.part == LoaderPart::all) {
                    plan_.copy(micro);
                }
                turn.partners += micro.partners;
            }
            turn.images += batch.positions.count();
            loader.give_back(std::move(batch));
        }
        turn.seconds = base::monotonic_seconds() - start;
        turn.pss_bytes = base::pss_bytes();
        return turn;
    }

    Turn time_copy() const {
        const Dataset data = open(plan_.dataset, plan_.read);
        sharding::LoaderOptions options = plan_.options;
        options.decoded_cache_bytes = 0;
        const sharding::EpochOrder order(sharding::OrderKind::full, options.seed, data.size());
        sharding::Batch batch;
        {
            sharding::Loader loader(data, order, {}, options);
            batch = loader.next();
        }
        Turn turn;
        const double start = base::monotonic_seconds();
        while (turn.images == 0 || base::monotonic_seconds() < start + seconds()) {
            for (const sharding::MicroBatch& micro : batch.micro_steps()) {
                plan_.copy(micro);
            }
            turn.images += batch.positions.count();
        }
        turn.seconds = base::monotonic_seconds() - start;
        turn.pss_bytes = base::pss_bytes();
        return turn;
    }

    static void summarize(const std::vector<Turn>& turns, LoaderRow& row) {
        std::vector<double> rates;
        std::uint64_t partners = 0;
        row.is_cold = !turns.empty();
        for (const Turn& turn : turns) {
            rates.push_back(static_cast<double>(turn.images) / turn.seconds);
            row.images += turn.images;
            partners += turn.partners;
            row.pss_bytes = std::max(row.pss_bytes, turn.pss_bytes);
            row.is_cold &= turn.is_cold;
        }
        row.samples_per_image = 1 + static_cast<double>(partners) / static_cast<double>(row.images);
        std::ranges::sort(rates);
        const std::size_t middle = rates.size() / 2;
        row.images_per_second = rates.size() % 2 == 1 ? rates[middle] : (rates[middle - 1] + rates[middle]) / 2;
        row.least = rates.front();
        row.most = rates.back();
    }

    const LoaderPlan& plan_;
    LoaderMeasurement result_;
    std::optional<Counterpart> counterpart_;
};

}  // namespace

std::string_view name_of(LoaderPart part) {
    switch (part) {
        case LoaderPart::decode:
            return "decode";
        case LoaderPart::augment:
            return "augment";
        case LoaderPart::assemble:
            return "assemble";
        case LoaderPart::copy:
            return "copy";
        case LoaderPart::all:
            return "all";
    }
    LOCKSTEP_CHECK(false, "part ", static_cast<int>(part));
}

std::string_view name_of(DecodeMode mode) {
    return mode == DecodeMode::full ? "full" : "scaled";
}

std::string_view name_of(ReadPath path) {
    return path == ReadPath::mmap ? "mmap" : "hdf5";
}

LoaderMeasurement bench_loader(const LoaderPlan& plan) {
    LOCKSTEP_CHECK(plan.rounds > 0 && plan.seconds > 0);
    return Bench(plan).run();
}

namespace {

/// Finds rows of a measurement.
class Finder {
  public:
    Finder(const LoaderPlan& plan, const LoaderMeasurement& measured) : measured_(measured) {
        own_ = {.decode = plan.options.decode,
                .encoding = measured.encoding,
                .read = plan.read,
                .threads = plan.options.threads};
        if (own_.encoding == Encoding::raw) {
            own_.decode = DecodeMode::full;
        }
    }

    /// The training's own way, to be asked for with changes.
    LoaderRow own(LoaderPart part, unsigned threads) const {
        LoaderRow row = own_;
        row.part = part;
        row.threads = threads;
        return row;
    }
    LoaderRow own(LoaderPart part) const { return own(part, own_.threads); }

    /// Images a second; 0 where that was not measured.
    double rate(const LoaderRow& wanted) const {
        const LoaderRow* const row = find(wanted);
        return row == nullptr ? 0 : row->images_per_second;
    }

    const LoaderRow* find(const LoaderRow& wanted) const {
        const auto row = std::ranges::find_if(measured_.rows, [&](const LoaderRow& have) {
            const bool any_way = wanted.part == LoaderPart::augment || wanted.part == LoaderPart::assemble ||
                                 wanted.part == LoaderPart::copy;
            return have.part == wanted.part && have.threads == wanted.threads && have.without == wanted.without &&
                   (any_way || (have.decode == wanted.decode && have.encoding == wanted.encoding &&
                                have.read == wanted.read && have.is_cold == wanted.is_cold));
        });
        return row == measured_.rows.end() ? nullptr : &*row;
    }

    /// Milliseconds of one thread for one image; 0 where that was not measured.
    double milliseconds(LoaderPart part) const {
        const double of_one_thread = rate(own(part, 1));
        return of_one_thread > 0 ? 1e3 / of_one_thread : 0;
    }

  private:
    const LoaderMeasurement& measured_;
    LoaderRow own_;
};

std::string per_second(double rate) {
    return base::str(base::fixed(rate, 0), " images/s");
}

std::string times(double ratio) {
    return base::str(base::fixed(ratio, 1), " times as fast");
}

}  // namespace

std::string explain(const LoaderPlan& plan, const LoaderMeasurement& measured, unsigned usable_cores) {
    const Finder find(plan, measured);
    const unsigned threads = plan.options.threads;
    const double warm = find.rate(find.own(LoaderPart::all));
    const LoaderRow* const whole = find.find(find.own(LoaderPart::all));
    const double samples = whole == nullptr ? 1 : whole->samples_per_image;
    const double decode = samples * find.milliseconds(LoaderPart::decode);
    const double augment = find.milliseconds(LoaderPart::augment);
    const double assemble = find.milliseconds(LoaderPart::assemble);
    const double copy = find.milliseconds(LoaderPart::copy);
    if (warm == 0 || decode == 0 || augment == 0) {
        return "What limits the loader can't be said: measure decode, augment and all in the data set's own way, with "
               "1 thread and with all of them.\n";
    }
    LoaderRow from_storage = find.own(LoaderPart::all);
    from_storage.is_cold = true;
    const double cold = find.rate(from_storage);

    std::string text =
        base::str("Loading with ", threads, threads == 1 ? " thread" : " threads", " gives ", per_second(warm),
                  " from memory", cold > 0 ? base::str(" and ", per_second(cold), " from storage") : std::string(),
                  ". An image takes one thread ", base::fixed(decode, 2), " ms to decode and ", base::fixed(augment, 2),
                  " ms to augment");
    constexpr double only_itself = 1.05;
    text += samples > only_itself ? base::str(" (it shows ", base::fixed(samples, 1), " samples)") : std::string();
    text += assemble > 0 ? base::str(", ", base::fixed(assemble, 2), " ms to assemble") : std::string();
    text += copy > 0 ? base::str("; copying it takes the training thread ", base::fixed(copy, 2), " ms.\n")
                     : std::string(".\n");

    std::vector<std::string> advice;
    const auto advise_if_faster = [&](const LoaderRow& other, double than, std::string_view what) {
        constexpr double worth_saying = 1.1;
        const double rate = find.rate(other);
        if (rate > worth_saying * than) {
            advice.push_back(base::str(what, ": ", times(rate / than), " (", per_second(rate), ")"));
        }
    };

    constexpr double clearly_slower = 0.8;
    if (cold > 0 && cold < clearly_slower * warm) {
        text +=
            base::str("Limit: storage. The first epoch, and every one if the data set doesn't stay in memory, runs at ",
                      base::fixed(100 * cold / warm, 0), " % of the rate from memory.\n");
        LoaderRow other = from_storage;
        other.encoding = Encoding::encoded;
        if (measured.encoding == Encoding::raw) {
            advise_if_faster(other, cold, "store the images compressed: import without --raw");
        }
        other = from_storage;
        other.read = ReadPath::mmap;
        advise_if_faster(other, cold, "data.read = \"mmap\", which reads ahead");
        advice.push_back(
            "a larger data.prefetch reads further ahead; data.order = \"block\" reads neighbours together");
    } else if (copy > (decode + augment) / threads) {
        text += base::str(
            "Limit: the copy into the network's input, which the training thread makes; more loader "
            "threads don't help.\n");
        advice.emplace_back("precision = \"bf16\" halves what is written; a smaller image_size");
    } else if (decode >= augment) {
        text += base::str("Limit: decoding, ", base::fixed(100 * decode / (decode + augment), 0),
                          " % of the loader threads' time.\n");
        LoaderRow other = find.own(LoaderPart::all);
        other.decode = DecodeMode::scaled;
        if (measured.encoding == Encoding::encoded && plan.options.decode == DecodeMode::full) {
            advise_if_faster(other, warm, "data.decode = \"scaled\"");
        }
        other = find.own(LoaderPart::all);
        other.encoding = Encoding::raw;
        other.decode = DecodeMode::full;
        if (measured.encoding == Encoding::encoded) {
            advise_if_faster(other, warm, base::str("import with --raw --side ", plan.options.image_size));
        }
        other = find.own(LoaderPart::all);
        other.read = ReadPath::mmap;
        advise_if_faster(other, warm, "data.read = \"mmap\"");
    } else {
        text += base::str("Limit: augmentation, ", base::fixed(100 * augment / (decode + augment), 0),
                          " % of the loader threads' time.\n");
        for (const std::string name : {"mosaic", "mixup", "hsv", "contrast"}) {
            LoaderRow other = find.own(LoaderPart::augment, 1);
            other.without = name;
            if (const double rate = find.rate(other); rate > 0 && 1e3 / rate < 0.9 * augment) {
                advice.push_back(base::str("without ", name, " augmenting takes ", base::fixed(1e3 / rate, 2),
                                           " ms instead of ", base::fixed(augment, 2),
                                           " (it changes what is learned)"));
            }
        }
    }
    LoaderRow kept = find.own(LoaderPart::all);
    kept.without = without_decoding;
    if (const double rate = find.rate(kept); rate > 0) {
        text += base::str(
            "From the second epoch on the decoded samples are in memory (data.cache_mib): ", per_second(rate), ".\n");
    }
    if (threads < usable_cores) {
        advice.push_back(base::str("data.threads: up to ", usable_cores, " cores may be used, and ", threads, " are"));
    }
    const double of_one = find.rate(find.own(LoaderPart::all, 1));
    if (threads > 1 && of_one > 0 && warm < 0.6 * threads * of_one) {
        text += base::str(threads, " threads are only ", base::fixed(warm / of_one, 1),
                          " times as fast as one: the cores share something, or others use them.\n");
    }
    if (plan.read == ReadPath::hdf5) {
        LoaderRow other = find.own(LoaderPart::all);
        other.read = ReadPath::mmap;
        if (find.rate(other) > 0 && find.rate(other) <= 1.1 * warm) {
            text += "data.read = \"mmap\" would not be faster here.\n";
        }
    }
    for (const std::string& line : advice) {
        text += base::str("  - ", line, "\n");
    }
    return text;
}

}  // namespace lockstep::bench
