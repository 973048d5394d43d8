#include "comm/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/resources.h"
#include "base/text.h"
#include "comm/gathered_parameters.h"
#include "comm/shard.h"

namespace lockstep::comm {

namespace {

FlatLayout layout_of(const std::vector<ReducedParameter>& parameters, double bucket_mib) {
    std::vector<FlatTensor> tensors;
    std::set<std::string> names;
    std::map<const void*, std::string> names_by_memory;
    for (const ReducedParameter& parameter : parameters) {
        const at::Tensor& tensor = parameter.tensor;
        const bool is_floating = tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
        if (!tensor.is_leaf() || !tensor.requires_grad() || !is_floating || !tensor.is_cpu() ||
            !tensor.is_non_overlapping_and_dense()) {
            throw base::Error(base::str("parameter ", parameter.name,
                                        " can't be reduced: it must be a dense FP32 or FP64 leaf on ",
                                        "the CPU that requires a gradient; leave frozen parameters out"));
        }
        if (!names.insert(parameter.name).second) {
            throw base::Error(base::str("two parameters are called ", parameter.name));
        }
        const auto [other, is_new] = names_by_memory.try_emplace(tensor.data_ptr(), parameter.name);
        if (tensor.numel() > 0 && !is_new) {
            throw base::Error(base::str("parameters ", other->second, " and ", parameter.name,
                                        " share memory; a shared parameter is given once"));
        }
        tensors.push_back({parameter.name, static_cast<std::size_t>(tensor.numel()), parameter.head,
                           data_type_of(tensor), parameter.unit});
    }
    LOCKSTEP_CHECK(bucket_mib > 0, bucket_mib, " MiB");
    return {tensors, static_cast<std::size_t>(bucket_mib * (1 << 20))};
}

/// Adds in FP64, on the value's own device, so that nothing is read to the host before finish().
void accumulate(at::Tensor& total, const at::Tensor& value) {
    if (total.defined()) {
        LOCKSTEP_CHECK_EQ(total.sizes(), value.sizes(), "losses change shape between micro-steps");
        total.add_(value);
    } else {
        total = value.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    }
}

/// Reduces buckets on a thread of its own, strictly in the order of their numbers, each as soon as it is complete here.
class BucketThread {
  public:
    /// reduce(bucket) is called on the thread. Its first exception ends the work and is thrown by wait().
    BucketThread(std::size_t buckets, std::function<void(std::size_t)> reduce)
        : reduce_(std::move(reduce)), is_complete_(buckets, false), thread_([this] { run(); }) {}

    ~BucketThread() {
        {
            const std::scoped_lock lock(mutex_);
            is_stopping_ = true;
        }
        changed_.notify_all();
    }

    void complete(std::size_t bucket) {
        {
            const std::scoped_lock lock(mutex_);
            is_complete_[bucket] = true;
        }
        changed_.notify_all();
    }

    /// That the thread has computed, copied, and spent in system calls.
    double core_seconds() const {
        clockid_t clock = 0;
        timespec time{};
        const bool is_known = pthread_getcpuclockid(handle_, &clock) == 0 && clock_gettime(clock, &time) == 0;
        return is_known ? static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec) : 0;
    }

    /// Returns when every bucket has been completed and reduced, and begins anew.
    void wait() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return next_ == is_complete_.size() || failure_; });
        if (failure_) {
            std::rethrow_exception(failure_);
        }
        next_ = 0;
        is_complete_.assign(is_complete_.size(), false);
    }

  private:
    void run() {
        std::unique_lock lock(mutex_);
        while (true) {
            changed_.wait(lock,
                          [this] { return is_stopping_ || (next_ < is_complete_.size() && is_complete_[next_]); });
            if (is_stopping_) {
                return;
            }
            const std::size_t bucket = next_;
            lock.unlock();
            try {
                reduce_(bucket);
                lock.lock();
            } catch (...) {
                lock.lock();
                failure_ = std::current_exception();
                changed_.notify_all();
                return;
            }
            ++next_;
            changed_.notify_all();
        }
    }

    std::function<void(std::size_t)> reduce_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<bool> is_complete_;
    std::size_t next_ = 0;
    bool is_stopping_ = false;
    std::exception_ptr failure_;
    std::jthread thread_;  // last: it uses the rest
    pthread_t handle_ = thread_.native_handle();
};

/// Calls back when autograd has added to a leaf's gradient.
class AfterAccumulation final : public torch::autograd::PostAccumulateGradHook {
  public:
    explicit AfterAccumulation(std::function<void()> call) : call_(std::move(call)) {}
    void operator()(const torch::autograd::Variable&) override { call_(); }

  private:
    std::function<void()> call_;
};

/// Memory of the communicator for one bucket at a time.
class TransientBucket {
  public:
    TransientBucket(const FlatLayout& layout, Communicator& communicator) : layout_(layout) {
        std::size_t bytes = 0;
        for (const FlatLayout::Bucket& bucket : layout.buckets()) {
            bytes = std::max(bytes, bucket.count() * width(bucket));
        }
        memory_ = communicator.allocate(bytes, "bucket");
    }

    Buffer buffer(std::size_t bucket) const {
        const FlatLayout::Bucket& place = layout_.buckets()[bucket];
        return {memory_.get(), place.count(), layout_.segments()[place.segment].type};
    }

    void zero(std::size_t bucket) const { std::fill_n(memory_.get(), buffer(bucket).bytes(), std::byte{0}); }

    /// A parameter's place with the parameter's shape and strides.
    at::Tensor view(std::size_t bucket, std::size_t entry, const at::Tensor& like) const {
        return at::from_blob(address(bucket, entry, 0), like.sizes(), like.strides(), like.options());
    }

    at::Tensor flat(std::size_t bucket, const OwnedRange& range) const {
        return at::from_blob(address(bucket, range.entry, range.begin), {static_cast<std::int64_t>(range.count)},
                             scalar_type_of(buffer(bucket).type));
    }

  private:
    std::size_t width(const FlatLayout::Bucket& bucket) const {
        return size_of(layout_.segments()[bucket.segment].type);
    }
    std::byte* address(std::size_t bucket, std::size_t entry, std::size_t element) const {
        const FlatLayout::Bucket& place = layout_.buckets()[bucket];
        return memory_.get() + (layout_.entries()[entry].begin - place.begin + element) * width(place);
    }

    const FlatLayout& layout_;
    std::shared_ptr<std::byte> memory_;
};

}  // namespace

struct GradientReducer::State {
    ShardScope scope;
    std::vector<ReducedParameter> parameters;
    FlatLayout layout;
    Partition partition;
    std::optional<FlatTensors> gradients;                 ///< whole
    std::optional<Shard> shard;                           ///< or sharded, with
    std::optional<TransientBucket> transient;             ///< what is reduced just now
    std::vector<at::Tensor> views;                        ///< by parameter; into `gradients`
    std::vector<std::optional<std::size_t>> bucket_of;    ///< by parameter; an empty tensor is in none
    std::vector<std::vector<std::size_t>> parameters_in;  ///< by bucket
    std::vector<std::vector<OwnedRange>> ranges_by_bucket;

    GatheredParameters* gathered = nullptr;

    bool leaves_during_backward = false;  ///< a micro-step whose buckets are reduced is under way
    bool is_first_micro_step = true;
    std::vector<std::size_t> missing;  ///< by bucket: parameters whose gradient is not complete
    std::vector<bool> has_arrived;     ///< by parameter
    bool is_complete = false;          ///< the last micro-step was sent backward
    std::vector<at::Tensor> denominators;
    std::vector<at::Tensor> parts;
    double waited_seconds = 0;  ///< by this rank, for its buckets
    double core_seconds = 0, core_seconds_before = 0;
    ExposedTime exposed;
    std::optional<BucketThread> thread;  // last: it uses the rest

    State(const ShardScope& ranks, std::vector<ReducedParameter> given, double bucket_mib, ZeroStage stage)
        : scope(ranks),
          parameters(std::move(given)),
          layout(layout_of(parameters, bucket_mib)),
          partition(layout, ranks.shards.size(), stage),
          parameters_in(layout.buckets().size()) {
        if (is_sharded()) {
            shard.emplace(layout, partition, scope.shards.rank());
            transient.emplace(layout, scope.shards);
        } else {
            gradients.emplace(layout, scope.shards, "gradients");
        }
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            if (!is_sharded()) {
                views.push_back(gradients->view(i, parameters[i].tensor));
                parameters[i].tensor.mutable_grad() = views[i];
            } else {
                parameters[i].tensor.mutable_grad() = at::Tensor();
            }
            if (layout.entries()[i].count == 0) {
                bucket_of.emplace_back();
                continue;
            }
            bucket_of.emplace_back(layout.bucket_of(i));
            parameters_in[*bucket_of[i]].push_back(i);
        }
        ranges_by_bucket.resize(layout.buckets().size());
        for (const OwnedRange& range : partition.ranges_of(scope.shards.rank())) {
            ranges_by_bucket[*bucket_of[range.entry]].push_back(range);
        }
        thread.emplace(layout.buckets().size(), [this](std::size_t bucket) { reduce(bucket); });
        // Last, since they hold `this`: nothing may throw any more.
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            torch::autograd::impl::set_post_acc_grad_hooks(
                parameters[i].tensor, std::make_unique<AfterAccumulation>([this, i] { gradient_arrived(i); }));
        }
    }

    ~State() {
        for (const ReducedParameter& parameter : parameters) {
            torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr);
        }
    }

    bool is_sharded() const { return partition.stage() >= ZeroStage::gradients; }

    /// On the bucket thread.
    void reduce(std::size_t bucket) {
        const std::string name = base::str("bucket ", bucket);
        if (is_sharded()) {
            reduce_to_shard(bucket, name);
            return;
        }
        const Buffer buffer = gradients->buffer(layout.buckets()[bucket]);
        if (partition.is_cut()) {
            reduce_owned_part(buffer, bucket, name);
        } else {
            scope.all.all_reduce(buffer, ReduceOp::sum, name);
        }
    }

    /// Afterwards this rank's part of the bucket is summed over all ranks.
    void reduce_owned_part(const Buffer& buffer, std::size_t bucket, const std::string& name) {
        const std::span<const Slice> slices = partition.slices_of_bucket(bucket);
        scope.shards.reduce_scatter(buffer, slices, ReduceOp::sum, name);
        if (scope.replicas) {
            const Slice& own = slices[static_cast<std::size_t>(index_of(scope.shards.rank()))];
            scope.replicas->all_reduce(part_of(buffer, own), ReduceOp::sum, name);
        }
    }

    /// Gradients are tensors of their own until here, and are freed as soon as they are copied.
    void reduce_to_shard(std::size_t bucket, const std::string& name) {
        const at::NoGradGuard no_grad;
        transient->zero(bucket);  // of what another bucket left between tensors
        for (const std::size_t i : parameters_in[bucket]) {
            at::Tensor& gradient = parameters[i].tensor.mutable_grad();
            const at::Tensor place = transient->view(bucket, i, parameters[i].tensor);
            if (gradient.defined()) {
                place.copy_(gradient);
                gradient = at::Tensor();
            }
        }
        reduce_owned_part(transient->buffer(bucket), bucket, name);
        for (const OwnedRange& range : ranges_by_bucket[bucket]) {
            const at::Tensor sum = shard->of(range), part = transient->flat(bucket, range);
            if (is_first_micro_step) {
                sum.copy_(part);
            } else {
                sum.add_(part);
            }
        }
    }

    void begin_reduced_backward() {
        missing.clear();
        std::ranges::transform(parameters_in, std::back_inserter(missing), &std::vector<std::size_t>::size);
        has_arrived.assign(parameters.size(), false);
        core_seconds_before = thread->core_seconds();
        leaves_during_backward = true;
    }

    /// On the thread of the backward pass.
    void gradient_arrived(std::size_t parameter) {
        if (!leaves_during_backward) {
            return;
        }
        LOCKSTEP_CHECK(!has_arrived[parameter], parameters[parameter].name, " heard twice in one backward pass");
        has_arrived[parameter] = true;
        if (!is_sharded()) {
            take_back_gradient(parameter);
        }
        if (const auto bucket = bucket_of[parameter]; bucket && --missing[*bucket] == 0) {
            complete(*bucket);
        }
    }

    /// What no gradient reached in this pass (unused parameters, an empty micro-batch) is complete as it is.
    void end_reduced_backward() {
        leaves_during_backward = false;
        for (std::size_t bucket = 0; bucket < missing.size(); ++bucket) {
            if (missing[bucket] == 0) {
                continue;
            }
            if (!is_sharded()) {
                std::ranges::for_each(parameters_in[bucket], [this](std::size_t i) { take_back_gradient(i); });
            }
            complete(bucket);
        }
        core_seconds += thread->core_seconds() - core_seconds_before;
        if (gathered) {
            gathered->end_pass();  // before the wait: others may need this rank's parameters to get to their buckets
        }
        if (is_sharded()) {
            // The next micro-step's gradients would be added to those that the thread still has to copy.
            wait_for_buckets();
        }
        is_first_micro_step = false;
    }

    void complete(std::size_t bucket) {
        thread->complete(bucket);
        if (gathered) {
            gathered->bucket_is_complete(bucket);
        }
    }

    void wait_for_buckets() {
        waited_seconds += base::seconds_of([this] { thread->wait(); });
    }

    /// Autograd adds in place, but a program may have replaced or dropped a gradient (zero_grad, a hook, a graph of the
    /// gradient); then ours is stale.
    void take_back_gradient(std::size_t parameter) {
        const at::NoGradGuard no_grad;
        at::Tensor& gradient = parameters[parameter].tensor.mutable_grad();
        const at::Tensor& view = views[parameter];
        if (!gradient.defined()) {
            view.zero_();
        } else if (gradient.data_ptr() != view.data_ptr() || gradient.strides() != view.strides()) {
            view.copy_(gradient);
        }
        gradient = view;
    }

    /// One small reduction: every head's denominator and parts, and how long each rank waited.
    Denominators reduce_totals() {
        const double start = base::monotonic_seconds();
        std::vector<double> totals;
        for (std::size_t head = 0; head < denominators.size(); ++head) {
            totals.push_back(denominators[head].item<double>());
            const at::Tensor on_host = parts[head].cpu().contiguous();
            totals.insert(totals.end(), on_host.const_data_ptr<double>(),
                          on_host.const_data_ptr<double>() + on_host.numel());
        }
        const auto places = static_cast<std::ptrdiff_t>(scope.all.size());
        totals.resize(totals.size() + static_cast<std::size_t>(places));
        *(totals.end() - places + index_of(scope.all.rank())) = waited_seconds;
        scope.all.all_reduce(Buffer::of(std::span(totals)), ReduceOp::sum, "denominators");

        const auto [least, most] = std::minmax_element(totals.end() - places, totals.end());
        exposed.communication_seconds = *least + base::monotonic_seconds() - start;
        exposed.core_seconds = core_seconds;
        exposed.skew_seconds = *most - *least;
        Denominators result;
        auto next = totals.begin();
        for (const at::Tensor& head_parts : parts) {
            result.per_head.push_back(*next++);
            result.parts.emplace_back(next, next + head_parts.numel());
            next += head_parts.numel();
        }
        return result;
    }
};

GradientReducer::GradientReducer(const ShardScope& scope, std::vector<ReducedParameter> parameters, double bucket_mib,
                                 ZeroStage stage)
    : state_(std::make_unique<State>(scope, std::move(parameters), bucket_mib, stage)) {}

GradientReducer::~GradientReducer() = default;

void GradientReducer::backward(const LossSums& sums, bool is_last_micro_step) {
    LOCKSTEP_CHECK(!state_->is_complete, "finish() comes after the last micro-step");
    const std::size_t heads = sums.sums.size();
    LOCKSTEP_CHECK_EQ(sums.denominators.size(), heads);
    LOCKSTEP_CHECK_EQ(sums.parts.size(), heads);
    LOCKSTEP_CHECK(state_->denominators.empty() || state_->denominators.size() == heads, heads, " heads");

    std::vector<at::Tensor> roots;
    std::ranges::copy_if(sums.sums, std::back_inserter(roots),
                         [](const at::Tensor& sum) { return sum.defined() && sum.requires_grad(); });
    const bool is_reduced = is_last_micro_step || state_->is_sharded();
    if (is_reduced) {
        state_->begin_reduced_backward();
    }
    if (!roots.empty()) {
        torch::autograd::backward(roots);
    }
    if (is_reduced) {
        state_->end_reduced_backward();
    }

    const at::NoGradGuard no_grad;
    state_->denominators.resize(heads);
    state_->parts.resize(heads);
    for (std::size_t head = 0; head < heads; ++head) {
        accumulate(state_->denominators[head], sums.denominators[head]);
        accumulate(state_->parts[head], sums.parts[head]);
    }
    state_->is_complete = is_last_micro_step;
}

void GradientReducer::report_to(GatheredParameters& parameters) {
    state_->gathered = &parameters;
}

Denominators GradientReducer::finish() {
    LOCKSTEP_CHECK(state_->is_complete, "finish() before the last micro-step");
    const at::NoGradGuard no_grad;
    if (!state_->is_sharded()) {
        state_->wait_for_buckets();
    }
    Denominators totals = state_->reduce_totals();
    state_->denominators.clear();
    state_->parts.clear();
    state_->is_complete = false;
    return totals;
}

void GradientReducer::zero() {
    state_->is_first_micro_step = true;
    state_->waited_seconds = 0;
    state_->core_seconds = 0;
    if (state_->gradients) {
        state_->gradients->zero();
    }
}

const FlatLayout& GradientReducer::layout() const {
    return state_->layout;
}

const Partition& GradientReducer::partition() const {
    return state_->partition;
}

at::Tensor GradientReducer::owned_gradient(const OwnedRange& range) const {
    if (state_->shard) {
        return state_->shard->of(range);
    }
    return state_->gradients->flat(range.entry)
        .narrow(0, static_cast<std::int64_t>(range.begin), static_cast<std::int64_t>(range.count));
}

const FlatTensors& GradientReducer::gradients() const {
    LOCKSTEP_CHECK(state_->gradients.has_value(), "sharded gradients are nowhere whole");
    return *state_->gradients;
}

std::uint64_t GradientReducer::gradient_bytes() const {
    return state_->shard ? state_->shard->bytes() : state_->gradients->bytes();
}

ExposedTime GradientReducer::exposed() const {
    return state_->exposed;
}

}  // namespace lockstep::comm
