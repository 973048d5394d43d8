#include "sharding/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <opencv2/core/utility.hpp>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/resources.h"
#include "sharding/image.h"

namespace lockstep::sharding {
namespace {

constexpr std::uint32_t channels = 3;
constexpr std::uint32_t max_image_size = 16384;

void require_positive(std::uint64_t value, std::string_view option) {
    if (value == 0) {
        throw base::UsageError(base::str("loader: ", option, " = 0: give at least 1"));
    }
}

void check_image_size(std::uint32_t size) {
    require_positive(size, "image_size");
    if (size > max_image_size) {
        throw base::UsageError(base::str("loader: image_size = ", size, ": give at most ", max_image_size));
    }
}

/// Checks, decodes and fits samples, and keeps them where the whole set fits the budget. Thread-safe.
class SampleStore {
  public:
    SampleStore(const Dataset& dataset, const LoaderOptions& options)
        : dataset_(dataset),
          image_size_(options.image_size),
          verify_checksums_(options.verify_checksums),
          decode_(options.decode) {
        const std::uint64_t bytes_of_one = std::uint64_t{image_size_} * image_size_ * channels;
        if (dataset.size() <= options.decoded_cache_bytes / bytes_of_one) {
            kept_.resize(dataset.size());
        }
    }

    FittedSample fitted(std::uint64_t id) {
        if (kept_.empty()) {
            return read(id);
        }
        {
            const std::lock_guard lock(mutex_);
            if (kept_[id].pixels) {
                return kept_[id];
            }
        }
        // Two threads may decode the same sample at first: cheaper than waiting for each other.
        FittedSample sample = read(id);
        const std::lock_guard lock(mutex_);
        return kept_[id] = std::move(sample);
    }

    /// Asks the kernel to read ahead what will be decoded.
    void announce(std::uint64_t id) const {
        if (kept_.empty()) {
            dataset_.prefetch(id);
        }
    }

    const Dataset& dataset() const { return dataset_; }

  private:
    FittedSample read(std::uint64_t id) const {
        const auto room = std::make_shared<std::vector<std::uint8_t>>();
        const Sample sample = dataset_.read(id, *room);
        if (verify_checksums_) {
            dataset_.verify(sample);
        }
        if (dataset_.encoding() == Encoding::raw) {  // the pixels stay where they are: mapped, or in `room`
            return fit(sample, {room, sample.bytes.data()}, dataset_.task(), image_size_);
        }
        try {
            return decoded(sample);
        } catch (const base::Error& error) {
            throw base::Error(base::str("sample ", id, " (", dataset_.file_name(id), ") of ",
                                        dataset_.directory().string(), ": ", error.what()));
        }
    }

    FittedSample decoded(const Sample& sample) const {
        const ImageSize size{sample.width, sample.height};
        const ImageSize least = decode_ == DecodeMode::scaled ? fitted_size(size, dataset_.task(), image_size_) : size;
        const auto reduced = std::make_shared<const ReducedImage>(decode_reduced(sample.bytes, least, "image data"));
        if (reduced->full != size) {
            throw base::Error(base::str("image data decodes to ", reduced->full.width, "x", reduced->full.height,
                                        " where the index says ", sample.width, "x", sample.height,
                                        "; import the data again"));
        }
        const Image& image = reduced->image;
        return fit(sample, {reduced, image.pixels.data()}, dataset_.task(), image_size_,
                   ImageSize{image.width, image.height});
    }

    const Dataset& dataset_;
    std::uint32_t image_size_;
    bool verify_checksums_;
    DecodeMode decode_;
    std::mutex mutex_;
    std::vector<FittedSample> kept_;  ///< by id; empty where nothing is kept, without pixels where not yet decoded
};

/// What a batch shall hold: positions of the order, one range for each micro-step.
struct BatchPlan {
    std::uint64_t epoch = 0;
    std::uint64_t step = 0;
    PositionRange positions;
    std::vector<PositionRange> micro;
};

/// Gives the plans in order; nothing after the last.
using Planner = std::function<std::optional<BatchPlan>()>;

/// Worker threads make the planned batches, sample by sample, so that several share a micro-step. At most `prefetch`
/// batches are in the making or ready; the consumer, taking one, plans the next.
class Pipeline {
  public:
    Pipeline(SampleStore& store, const Augmenter& augmenter, EpochOrder order, Planner planner,
             const LoaderOptions& options)
        : store_(store),
          augmenter_(augmenter),
          order_(order),
          image_size_(options.image_size),
          planner_(std::move(planner)),
          prefetch_(options.prefetch),
          on_bad_sample_(options.on_bad_sample) {
        cv::setNumThreads(0);  // the worker threads are the parallelism
        for (unsigned i = 0; i < options.prefetch; ++i) {
            plan_next();
        }
        for (unsigned i = 0; i < options.threads; ++i) {
            workers_.emplace_back([this](std::stop_token stop) { work(stop); });
        }
    }

    std::optional<Batch> next() {
        const double start = base::monotonic_seconds();
        std::unique_lock lock(mutex_);
        if (jobs_.empty()) {
            return std::nullopt;
        }
        Job& front = *jobs_.front();
        job_finished_.wait(lock, [&] { return front.finished == front.units.size(); });
        if (front.error) {
            std::rethrow_exception(front.error);
        }
        const std::unique_ptr<Job> job = std::move(jobs_.front());
        jobs_.pop_front();
        plan_next();
        lock.unlock();
        unit_waits_.notify_all();

        for (Unit& unit : job->units) {
            gather(unit, job->batch.micro[unit.micro]);
        }
        for (MicroBatch& micro : job->batch.micro) {
            close_up(micro);
        }
        job->batch.wait_seconds = base::monotonic_seconds() - start;
        return std::move(job->batch);
    }

    void give_back(MicroBatch&& micro) {
        const std::lock_guard lock(mutex_);
        if (spare_.size() < spare_limit_) {
            spare_.push_back(std::move(micro));
        }
    }

  private:
    /// One sample's place in a batch, and what its making left beside pixels.
    struct Unit {
        std::uint32_t micro;
        std::uint32_t image;  ///< where its pixels were made
        std::vector<TargetBox> boxes;
        std::uint32_t partners = 0;
        std::optional<std::string> skipped;  ///< why
    };

    struct Job {
        Batch batch;
        std::vector<Unit> units;
        std::size_t claimed = 0;
        std::size_t finished = 0;
        std::exception_ptr error;  ///< of the first unit in order that failed, so that every run reports the same one
        std::size_t failed_unit = 0;
    };

    std::size_t image_bytes() const { return std::size_t{image_size_} * image_size_ * channels; }

    /// Takes what the unit left beside pixels; where samples before it in its micro-batch were skipped, it moves down.
    /// Units come in order.
    void gather(Unit& unit, MicroBatch& micro) const {
        const std::uint64_t id = micro.sample_ids[unit.image];
        if (unit.skipped) {
            micro.skipped.push_back({id, std::move(*unit.skipped)});
            return;
        }
        const auto place = unit.image - static_cast<std::uint32_t>(micro.skipped.size());
        if (place != unit.image) {
            std::copy_n(micro.pixels.begin() + static_cast<std::ptrdiff_t>(unit.image * image_bytes()), image_bytes(),
                        micro.pixels.begin() + static_cast<std::ptrdiff_t>(place * image_bytes()));
            micro.sample_ids[place] = id;
            micro.letterboxes[place] = micro.letterboxes[unit.image];
            if (!micro.labels.empty()) {
                micro.labels[place] = micro.labels[unit.image];
            }
        }
        micro.partners += unit.partners;
        for (TargetBox box : unit.boxes) {
            box.image = place;
            micro.boxes.push_back(box);
        }
    }

    void close_up(MicroBatch& micro) const {
        micro.count -= static_cast<std::uint32_t>(micro.skipped.size());
        micro.pixels.resize(micro.count * image_bytes());
        micro.sample_ids.resize(micro.count);
        micro.letterboxes.resize(micro.count);
        if (!micro.labels.empty()) {
            micro.labels.resize(micro.count);
        }
    }

    /// Called with the lock held, or before the workers start.
    void plan_next() {
        std::optional<BatchPlan> plan = planner_();
        if (!plan) {
            return;
        }
        auto job = std::make_unique<Job>();
        job->batch.epoch = plan->epoch;
        job->batch.step = plan->step;
        job->batch.positions = plan->positions;
        for (const PositionRange& range : plan->micro) {
            const auto micro_index = static_cast<std::uint32_t>(job->batch.micro.size());
            MicroBatch& micro = job->batch.micro.emplace_back(blank(static_cast<std::uint32_t>(range.count())));
            for (std::uint32_t image = 0; image < micro.count; ++image) {
                const std::uint64_t id = order_.sample_at(plan->epoch, range.begin + image);
                micro.sample_ids.push_back(id);
                store_.announce(id);
                job->units.push_back({.micro = micro_index, .image = image, .boxes = {}, .skipped = {}});
            }
        }
        spare_limit_ = plan->micro.size() * (prefetch_ + 1);
        jobs_.push_back(std::move(job));
    }

    MicroBatch blank(std::uint32_t count) {
        MicroBatch micro;
        if (!spare_.empty()) {
            micro = std::move(spare_.back());
            spare_.pop_back();
        }
        micro.count = count;
        micro.height = micro.width = image_size_;
        micro.channels = channels;
        micro.pixels.resize(count * image_bytes());
        micro.boxes.clear();
        micro.labels.resize(store_.dataset().task() == Task::classification ? count : 0);
        micro.sample_ids.clear();
        micro.skipped.clear();
        micro.letterboxes.resize(count);
        micro.partners = 0;
        return micro;
    }

    void work(const std::stop_token& stop) {
        std::unique_lock lock(mutex_);
        while (true) {
            Job* job = nullptr;
            unit_waits_.wait(lock, stop, [&] { return (job = first_with_a_free_unit()) != nullptr; });
            if (stop.stop_requested()) {
                return;
            }
            const std::size_t index = job->claimed++;
            lock.unlock();
            std::exception_ptr error;
            try {
                make_or_skip(*job, job->units[index]);
            } catch (...) {
                error = std::current_exception();
            }
            lock.lock();
            if (error && (!job->error || index < job->failed_unit)) {
                job->error = error;
                job->failed_unit = index;
            }
            if (++job->finished == job->units.size()) {
                job_finished_.notify_one();
            }
        }
    }

    Job* first_with_a_free_unit() {
        for (const auto& job : jobs_) {
            if (job->claimed < job->units.size()) {
                return job.get();
            }
        }
        return nullptr;
    }

    void make_or_skip(Job& job, Unit& unit) {
        try {
            make(job, unit);
        } catch (const base::Error& error) {
            if (on_bad_sample_ == BadSamplePolicy::error) {
                throw;
            }
            unit.skipped = error.what();
        }
    }

    void make(Job& job, Unit& unit) {
        MicroBatch& micro = job.batch.micro[unit.micro];
        const std::uint64_t id = micro.sample_ids[unit.image];
        const std::span pixels = std::span(micro.pixels).subspan(unit.image * image_bytes(), image_bytes());
        const auto fetch = [&](std::uint64_t wanted) { return store_.fitted(wanted); };
        const Placement placement = augmenter_.make(job.batch.epoch, id, fetch, pixels, unit.boxes);
        micro.letterboxes[unit.image] = placement.letterbox;
        unit.partners = placement.partners;
        if (!micro.labels.empty()) {
            micro.labels[unit.image] = store_.dataset().sample(id).label;
        }
    }

    SampleStore& store_;
    const Augmenter& augmenter_;
    EpochOrder order_;
    std::uint32_t image_size_;
    Planner planner_;
    std::size_t prefetch_;
    BadSamplePolicy on_bad_sample_;

    std::mutex mutex_;
    std::condition_variable_any unit_waits_;
    std::condition_variable job_finished_;
    std::deque<std::unique_ptr<Job>> jobs_;  ///< a job stays until all its units are finished
    std::vector<MicroBatch> spare_;
    std::size_t spare_limit_ = 0;
    std::vector<std::jthread> workers_;  ///< last: stopped and joined before anything else goes
};

/// The effective batches of an epoch, and of the next, without end.
Planner endless_plan(EpochOrder order, Share share, std::uint64_t effective_batch, std::uint64_t accumulate,
                     std::uint64_t epoch, std::uint64_t step) {
    return [=]() mutable -> std::optional<BatchPlan> {
        if (step == order.steps_per_epoch(effective_batch)) {
            ++epoch;
            step = 0;
        }
        BatchPlan plan{
            .epoch = epoch, .step = step, .positions = order.effective_batch(step, effective_batch), .micro = {}};
        for (std::uint64_t micro = 0; micro < accumulate; ++micro) {
            const PositionRange of_all_ranks = part_of(plan.positions, accumulate, micro);
            plan.micro.push_back(part_of(of_all_ranks, share.ranks, share.rank));
        }
        ++step;
        return plan;
    };
}

Planner plan_once(PositionRange range, std::uint64_t batch) {
    return [=, step = std::uint64_t{0}]() mutable -> std::optional<BatchPlan> {
        if (range.count() == 0) {
            return std::nullopt;
        }
        const PositionRange positions{range.begin, range.begin + std::min(batch, range.count())};
        range.begin = positions.end;
        return BatchPlan{.epoch = 0, .step = step++, .positions = positions, .micro = {positions}};
    };
}

}  // namespace

struct Loader::State {
    State(const Dataset& dataset, EpochOrder order, Share share, const LoaderOptions& given, std::uint64_t epoch,
          std::uint64_t step)
        : options(given),
          store(dataset, given),
          augmenter(given.augmentation, dataset.task(), given.image_size, given.seed, given.closing_epoch,
                    dataset.size()),
          pipeline(store, augmenter, order,
                   endless_plan(order, share, given.effective_batch, given.accumulate, epoch, step), given) {}

    LoaderOptions options;
    SampleStore store;
    Augmenter augmenter;
    Pipeline pipeline;
};

Loader::Loader(const Dataset& dataset, EpochOrder order, Share share, LoaderOptions options, std::uint64_t epoch,
               std::uint64_t step) {
    check_image_size(options.image_size);
    require_positive(options.effective_batch, "effective_batch");
    require_positive(options.accumulate, "accumulate");
    require_positive(options.threads, "threads");
    require_positive(options.prefetch, "prefetch");
    LOCKSTEP_CHECK_EQ(order.size(), dataset.size());
    LOCKSTEP_CHECK_LT(share.rank, share.ranks);
    LOCKSTEP_CHECK_LE(step, order.steps_per_epoch(options.effective_batch));
    state_ = std::make_unique<State>(dataset, order, share, options, epoch, step);
}

Loader::~Loader() = default;

Batch Loader::next() {
    return *state_->pipeline.next();
}

void Loader::give_back(Batch&& batch) {
    for (MicroBatch& micro : batch.micro) {
        state_->pipeline.give_back(std::move(micro));
    }
}

const LoaderOptions& Loader::options() const {
    return state_->options;
}

namespace {

LoaderOptions loader_options_of(const SequentialOptions& given) {
    LoaderOptions options;
    options.image_size = given.image_size;
    options.threads = given.threads;
    options.prefetch = given.prefetch;
    options.verify_checksums = given.verify_checksums;
    options.decoded_cache_bytes = 0;
    return options;
}

}  // namespace

struct SequentialReader::State {
    State(const Dataset& dataset, PositionRange ids, const SequentialOptions& options)
        : store(dataset, loader_options_of(options)),
          augmenter({}, dataset.task(), options.image_size, 0, 0, dataset.size()),
          pipeline(store, augmenter, EpochOrder(OrderKind::sequential, 0, dataset.size()),
                   plan_once(ids, options.batch), loader_options_of(options)) {}

    SampleStore store;
    Augmenter augmenter;
    Pipeline pipeline;
};

SequentialReader::SequentialReader(const Dataset& dataset, PositionRange ids, SequentialOptions options) {
    check_image_size(options.image_size);
    require_positive(options.batch, "batch");
    require_positive(options.threads, "threads");
    require_positive(options.prefetch, "prefetch");
    LOCKSTEP_CHECK_LE(ids.begin, ids.end);
    LOCKSTEP_CHECK_LE(ids.end, dataset.size());
    state_ = std::make_unique<State>(dataset, ids, options);
}

SequentialReader::~SequentialReader() = default;

std::optional<MicroBatch> SequentialReader::next() {
    std::optional<Batch> batch = state_->pipeline.next();
    if (!batch) {
        return std::nullopt;
    }
    return std::move(batch->micro.front());
}

void SequentialReader::give_back(MicroBatch&& batch) {
    state_->pipeline.give_back(std::move(batch));
}

}  // namespace lockstep::sharding
