#include "sharding/loader.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <opencv2/core/utility.hpp>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/resources.h"
#include "sharding/image.h"
#include "sharding/sample_store.h"

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

/// What a batch shall hold.
struct BatchPlan {
    std::uint64_t epoch = 0;
    std::uint64_t step = 0;
    PositionRange positions;
    Canvas canvas;
    std::vector<std::vector<std::uint64_t>> micro;  ///< this rank's sample ids, for each micro-step
};

/// Gives the plans in order; nothing after the last.
using Planner = std::function<std::optional<BatchPlan>()>;

/// Worker threads make the planned batches, sample by sample, so that several share a micro-step. At most `prefetch`
/// batches are in the making or ready; the consumer, taking one, plans the next.
class Pipeline {
  public:
    Pipeline(SampleStore& store, const Augmenter& augmenter, Planner planner, const LoaderOptions& options)
        : store_(store),
          augmenter_(augmenter),
          planner_(std::move(planner)),
          prefetch_(options.prefetch),
          on_bad_sample_(options.on_bad_sample),
          store_gives_whole_samples_(options.scaling.rule != ScalingRule::fixed) {
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
            job->batch.cache_use += unit.cache_use;
            gather(unit, job->batch.micro[unit.micro]);
        }
        for (MicroBatch& micro : job->batch.micro) {
            close_up(micro);
        }
        cache_use_ += job->batch.cache_use;
        job->batch.wait_seconds = base::monotonic_seconds() - start;
        return std::move(job->batch);
    }

    /// Of all that next() gave.
    CacheUse cache_use() const { return cache_use_; }

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
        CacheUse cache_use;
        std::optional<std::string> skipped;  ///< why
    };

    struct Job {
        Batch batch;
        Canvas canvas;
        std::vector<Unit> units;
        std::size_t claimed = 0;
        std::size_t finished = 0;
        std::exception_ptr error;  ///< of the first unit in order that failed, so that every run reports the same one
        std::size_t failed_unit = 0;
    };

    static std::size_t image_bytes(const MicroBatch& micro) {
        return std::size_t{micro.height} * micro.width * micro.channels;
    }
    static std::span<std::uint8_t> pixels_of(MicroBatch& micro, std::size_t image) {
        return std::span(micro.pixels).subspan(image * image_bytes(micro), image_bytes(micro));
    }

    /// Takes what the unit left beside pixels; where samples before it in its micro-batch were skipped, it moves down.
    /// Units come in order.
    static void gather(Unit& unit, MicroBatch& micro) {
        const std::uint64_t id = micro.sample_ids[unit.image];
        if (unit.skipped) {
            micro.skipped.push_back({id, std::move(*unit.skipped)});
            return;
        }
        const auto place = unit.image - static_cast<std::uint32_t>(micro.skipped.size());
        if (place != unit.image) {
            std::ranges::copy(pixels_of(micro, unit.image), pixels_of(micro, place).begin());
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

    static void close_up(MicroBatch& micro) {
        micro.count -= static_cast<std::uint32_t>(micro.skipped.size());
        micro.pixels.resize(micro.count * image_bytes(micro));
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
        job->canvas = plan->canvas;
        for (const std::vector<std::uint64_t>& ids : plan->micro) {
            const auto micro_index = static_cast<std::uint32_t>(job->batch.micro.size());
            MicroBatch& micro =
                job->batch.micro.emplace_back(blank(static_cast<std::uint32_t>(ids.size()), plan->canvas));
            micro.sample_ids.assign(ids.begin(), ids.end());
            for (std::uint32_t image = 0; image < micro.count; ++image) {
                const std::uint64_t id = ids[image];
                store_.announce(id);
                for (const std::uint64_t partner : augmenter_.likely_partners(plan->epoch, id)) {
                    store_.announce(partner);
                }
                job->units.push_back(
                    {.micro = micro_index, .image = image, .boxes = {}, .cache_use = {}, .skipped = {}});
            }
        }
        spare_limit_ = plan->micro.size() * (prefetch_ + 1);
        jobs_.push_back(std::move(job));
    }

    MicroBatch blank(std::uint32_t count, const Canvas& canvas) {
        MicroBatch micro;
        if (!spare_.empty()) {
            micro = std::move(spare_.back());
            spare_.pop_back();
        }
        micro.count = count;
        micro.height = canvas.height;
        micro.width = canvas.width;
        micro.channels = channels;
        micro.pixels.resize(count * image_bytes(micro));
        micro.boxes.clear();
        micro.labels.resize(store_.dataset().task() == Task::classification ? count : 0);
        micro.skipped.clear();
        micro.letterboxes.resize(count);
        micro.partners = 0;
        return micro;
    }

    void work(const std::stop_token& stop) {
        ImageBuffers buffers;
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
                make_or_skip(*job, job->units[index], buffers);
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

    void make_or_skip(Job& job, Unit& unit, ImageBuffers& buffers) {
        try {
            make(job, unit, buffers);
        } catch (const base::Error& error) {
            if (on_bad_sample_ == BadSamplePolicy::error) {
                throw;
            }
            unit.skipped = error.what();
        }
    }

    void make(Job& job, Unit& unit, ImageBuffers& buffers) {
        MicroBatch& micro = job.batch.micro[unit.micro];
        const std::uint64_t id = micro.sample_ids[unit.image];
        const auto fetch = [&](std::uint64_t wanted) {
            FittedSample sample =
                store_.fitted(wanted, {job.batch.epoch, job.batch.positions.end}, buffers, unit.cache_use);
            if (store_gives_whole_samples_) {
                const ImageSize own{sample.source.width, sample.source.height};
                return resized(std::move(sample), fitted_size(own, job.canvas.bounds), buffers);
            }
            return sample;
        };
        const Placement placement =
            augmenter_.make(job.batch.epoch, id, job.canvas, fetch, pixels_of(micro, unit.image), unit.boxes);
        micro.letterboxes[unit.image] = placement.letterbox;
        unit.partners = placement.partners;
        if (!micro.labels.empty()) {
            micro.labels[unit.image] = store_.dataset().sample(id).label;
        }
    }

    SampleStore& store_;
    const Augmenter& augmenter_;
    Planner planner_;
    std::size_t prefetch_;
    BadSamplePolicy on_bad_sample_;
    CacheUse cache_use_;
    bool store_gives_whole_samples_;  ///< each batch brings them to its own size

    std::mutex mutex_;
    std::condition_variable_any unit_waits_;
    std::condition_variable job_finished_;
    std::deque<std::unique_ptr<Job>> jobs_;  ///< a job stays until all its units are finished
    std::vector<MicroBatch> spare_;
    std::size_t spare_limit_ = 0;
    std::vector<std::jthread> workers_;  ///< last: stopped and joined before anything else goes
};

/// The effective batches of an epoch, and of the next, without end.
Planner endless_plan(const BatchOrder& order, Share share, std::uint64_t accumulate, std::uint64_t epoch,
                     std::uint64_t step) {
    return [=, now = std::shared_ptr<const BatchesOfEpoch>()]() mutable -> std::optional<BatchPlan> {
        if (step == order.steps_per_epoch()) {
            ++epoch;
            step = 0;
        }
        if (!now || now->epoch() != epoch) {
            now.reset();  // before the next one is made: one epoch's memory at a time
            now = std::make_shared<const BatchesOfEpoch>(order, epoch);
        }
        const PlannedBatch batch = now->batch(step);
        BatchPlan plan{.epoch = epoch, .step = step, .positions = batch.positions, .canvas = batch.canvas, .micro = {}};
        for (std::uint64_t micro = 0; micro < accumulate; ++micro) {
            const PositionRange of_all_ranks = part_of(plan.positions, accumulate, micro);
            const PositionRange own = part_of(of_all_ranks, share.ranks, share.rank);
            std::vector<std::uint64_t>& ids = plan.micro.emplace_back();
            for (std::uint64_t position = own.begin; position < own.end; ++position) {
                ids.push_back(now->sample_at(position));
            }
        }
        ++step;
        return plan;
    };
}

/// The ids of `range`, each once: as they come in a fixed size, else shape by shape, a batch's all of one.
Planner plan_once(const Dataset& dataset, PositionRange range, const SequentialOptions& options) {
    std::map<std::pair<std::uint32_t, std::uint32_t>, BatchPlan> open;  // by height and width
    auto plans = std::make_shared<std::deque<BatchPlan>>();
    const auto close = [&](BatchPlan& plan) {
        plan.step = plans->size();
        plans->push_back(std::exchange(plan, BatchPlan{}));
    };
    for (std::uint64_t id = range.begin; id < range.end; ++id) {
        Canvas canvas = Canvas::square(options.image_size);
        if (options.scaling.rule == ScalingRule::published) {
            const Sample sample = dataset.sample(id);
            canvas = Canvas::of_sample({sample.width, sample.height}, options.scaling);
        }
        BatchPlan& plan = open[{canvas.height, canvas.width}];
        plan.canvas = canvas;
        plan.micro.resize(1);
        plan.micro.front().push_back(id);
        if (plan.micro.front().size() == options.batch) {
            close(plan);
        }
    }
    for (auto& [shape, plan] : open) {
        if (!plan.micro.empty()) {
            close(plan);
        }
    }
    return [plans]() -> std::optional<BatchPlan> {
        if (plans->empty()) {
            return std::nullopt;
        }
        BatchPlan plan = std::move(plans->front());
        plans->pop_front();
        return plan;
    };
}

void check_scaling(const Dataset& dataset, const LoaderOptions& options) {
    if (options.scaling.rule == ScalingRule::fixed) {
        return;
    }
    if (dataset.task() == Task::classification) {
        throw base::UsageError("loader: scaling.rule: images with labels come in squares of image_size; use \"fixed\"");
    }
    if (options.preprocessed != nullptr) {
        throw base::UsageError(
            "loader: scaling.rule: the disk cache holds samples of one fixed size; leave data.disk_cache out");
    }
    if (options.scaling.rule == ScalingRule::published && options.augmentation.enabled &&
        options.augmentation.quarter_turns > 0) {
        throw base::UsageError(base::str("loader: augmentation.quarter_turns = ", options.augmentation.quarter_turns,
                                         ": a rectangle turned doesn't fit itself; set it to 0, or use scaling.rule = "
                                         "\"squares\""));
    }
    if (options.scaling.rule == ScalingRule::published && dataset.encoding() == Encoding::raw) {
        throw base::UsageError(base::str("loader: scaling.rule = \"published\": ", dataset.directory().string(),
                                         " holds images that were brought to a fixed size; import them without --raw"));
    }
    check_image_size(options.scaling.long_side);
}

}  // namespace

struct Loader::State {
    State(const Dataset& dataset, const BatchOrder& order, Share share, const LoaderOptions& given, std::uint64_t epoch,
          std::uint64_t step)
        : options(given),
          store(dataset, given, order.samples()),
          augmenter(given.augmentation, dataset.task(), given.image_size, given.seed, given.closing_epoch,
                    dataset.size()),
          pipeline(store, augmenter, endless_plan(order, share, given.accumulate, epoch, step), given) {}

    LoaderOptions options;
    SampleStore store;
    Augmenter augmenter;
    Pipeline pipeline;
};

BatchOrder batch_order(const Dataset& dataset, EpochOrder order, const LoaderOptions& options) {
    check_image_size(options.image_size);
    require_positive(options.effective_batch, "effective_batch");
    check_scaling(dataset, options);
    LOCKSTEP_CHECK_EQ(order.size(), dataset.size());
    return {order,
            {.image_size = options.image_size, .effective_batch = options.effective_batch, .scaling = options.scaling},
            [&](std::uint64_t id) {
                const Sample sample = dataset.sample(id);
                return ImageSize{sample.width, sample.height};
            }};
}

Loader::Loader(const Dataset& dataset, EpochOrder order, Share share, const LoaderOptions& options, std::uint64_t epoch,
               std::uint64_t step)
    : Loader(dataset, batch_order(dataset, order, options), share, options, epoch, step) {}

Loader::Loader(const Dataset& dataset, const BatchOrder& order, Share share, const LoaderOptions& options,
               std::uint64_t epoch, std::uint64_t step) {
    require_positive(options.accumulate, "accumulate");
    require_positive(options.threads, "threads");
    require_positive(options.prefetch, "prefetch");
    LOCKSTEP_CHECK_LT(share.rank, share.ranks);
    LOCKSTEP_CHECK_LE(step, order.steps_per_epoch());
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

CacheUse Loader::cache_use() const {
    return state_->pipeline.cache_use();
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
    if (given.scaling.rule == ScalingRule::published) {
        options.scaling = given.scaling;
    }
    return options;
}

}  // namespace

struct SequentialReader::State {
    State(const Dataset& dataset, PositionRange ids, const SequentialOptions& options)
        : store(dataset, loader_options_of(options), std::nullopt),
          augmenter({}, dataset.task(), options.image_size, 0, 0, dataset.size()),
          pipeline(store, augmenter, plan_once(dataset, ids, options), loader_options_of(options)) {}

    SampleStore store;
    Augmenter augmenter;
    Pipeline pipeline;
};

SequentialReader::SequentialReader(const Dataset& dataset, PositionRange ids, SequentialOptions options) {
    check_image_size(options.image_size);
    require_positive(options.batch, "batch");
    require_positive(options.threads, "threads");
    require_positive(options.prefetch, "prefetch");
    check_scaling(dataset, loader_options_of(options));
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
