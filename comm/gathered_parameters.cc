#include "comm/gathered_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "comm/flat_tensors.h"
#include "comm/shard.h"

namespace lockstep::comm {

struct GatheredParameters::State {
    Communicator& communicator;
    const FlatLayout& layout;
    const Partition& partition;
    Shard shard;
    std::vector<at::Tensor> whole;                      ///< by bucket; without memory where it isn't gathered
    std::vector<std::vector<std::size_t>> buckets_of;   ///< by unit
    std::vector<std::vector<OwnedRange>> owned_ranges;  ///< by bucket

    // A pass visits the units at positions 0, 1, ...: forward to the last one, then back to the first.
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t wanted = 0;             ///< positions that may be gathered
    std::size_t gathered = 0;           ///< positions that are
    std::size_t next_forward = 0;       ///< the unit that comes next
    bool is_discarding = false;         ///< nobody uses what is still to be gathered in this pass
    std::vector<bool> is_resident;      ///< by unit
    std::vector<std::size_t> complete;  ///< by unit: buckets whose gradients are complete
    bool holds_all = false;
    std::uint64_t resident_bytes = 0, most_resident_bytes = 0;
    bool is_stopping = false;
    std::exception_ptr failure;
    std::jthread thread;  // last: it uses the rest

    State(Communicator& ranks, const FlatLayout& the_layout, const Partition& the_partition,
          std::span<const at::Tensor> parameters)
        : communicator(ranks), layout(the_layout), partition(the_partition), shard(layout, partition, ranks.rank()) {
        LOCKSTEP_CHECK(partition.stage() >= ZeroStage::parameters, "parameters are not cut");
        owned_ranges.resize(layout.buckets().size());
        for (const OwnedRange& range : partition.ranges_of(communicator.rank())) {
            owned_ranges[layout.bucket_of(range.entry)].push_back(range);
        }
        take(parameters);
        is_resident.assign(buckets_of.size(), false);
        complete.assign(buckets_of.size(), 0);
        thread = std::jthread([this] { run(); });
    }

    ~State() {
        {
            const std::scoped_lock lock(mutex);
            is_stopping = true;
        }
        changed.notify_all();
    }

    std::size_t units() const { return buckets_of.size(); }
    std::size_t positions() const { return units() == 0 ? 0 : 2 * units() - 1; }
    std::size_t unit_at(std::size_t position) const {
        return position < units() ? position : 2 * (units() - 1) - position;
    }

    /// Moves the parameters into the buckets' memory, bucket by bucket, and keeps this rank's part of it.
    void take(std::span<const at::Tensor> parameters) {
        const at::NoGradGuard no_grad;
        std::vector<std::vector<std::size_t>> entries(layout.buckets().size());
        for (std::size_t entry = 0; entry < layout.entries().size(); ++entry) {
            if (layout.entries()[entry].count > 0) {
                entries[layout.bucket_of(entry)].push_back(entry);
            }
        }
        for (std::size_t bucket = 0; bucket < layout.buckets().size(); ++bucket) {
            const FlatLayout::Bucket& place = layout.buckets()[bucket];
            buckets_of.resize(std::max(buckets_of.size(), place.unit + 1));
            buckets_of[place.unit].push_back(bucket);
            whole.push_back(at::empty({static_cast<std::int64_t>(place.count())},
                                      scalar_type_of(layout.segments()[place.segment].type)));
            whole.back().zero_();
            for (const std::size_t entry : entries[bucket]) {
                const at::Tensor& parameter = parameters[entry];
                const auto begin = static_cast<std::int64_t>(layout.entries()[entry].begin - place.begin);
                const at::Tensor view = whole.back().as_strided(parameter.sizes(), parameter.strides(), begin);
                view.copy_(parameter);
                parameter.set_data(view);
            }
            communicator.broadcast(buffer_of(whole.back()), Rank{0}, "initial parameters");
            for (const OwnedRange& range : owned_ranges[bucket]) {
                shard.of(range).copy_(part_of(bucket, range));
            }
            give_memory_back(bucket);
        }
    }

    at::Tensor part_of(std::size_t bucket, const OwnedRange& range) const {
        const std::size_t begin = layout.entries()[range.entry].begin - layout.buckets()[bucket].begin + range.begin;
        return whole[bucket].narrow(0, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(range.count));
    }

    void give_memory_back(std::size_t bucket) const {
        at::native::resize_bytes_cpu(whole[bucket].storage().unsafeGetStorageImpl(), 0);
    }

    std::uint64_t bytes_of(std::size_t unit) const {
        std::uint64_t bytes = 0;
        for (const std::size_t bucket : buckets_of[unit]) {
            bytes += whole[bucket].nbytes();
        }
        return bytes;
    }

    /// Collective.
    void gather(std::size_t unit) {
        const at::NoGradGuard no_grad;
        for (const std::size_t bucket : buckets_of[unit]) {
            at::native::resize_bytes_cpu(whole[bucket].storage().unsafeGetStorageImpl(), whole[bucket].nbytes());
            for (const OwnedRange& range : owned_ranges[bucket]) {
                // Not by copy_: the values that autograd saved are these, and must not count as changed.
                const at::Tensor values = shard.of(range);
                std::copy_n(static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes(),
                            static_cast<std::byte*>(part_of(bucket, range).mutable_data_ptr()));
            }
            communicator.all_gather(buffer_of(whole[bucket]), partition.slices_of_bucket(bucket),
                                    base::str("parameters of unit ", unit));
        }
    }

    /// Under the lock.
    void mark_resident(std::size_t unit) {
        is_resident[unit] = true;
        resident_bytes += bytes_of(unit);
        most_resident_bytes = std::max(most_resident_bytes, resident_bytes);
    }

    /// Under the lock.
    void release(std::size_t unit) {
        if (is_resident[unit]) {
            std::ranges::for_each(buckets_of[unit], [this](std::size_t bucket) { give_memory_back(bucket); });
            is_resident[unit] = false;
            resident_bytes -= bytes_of(unit);
        }
    }

    /// On the thread.
    void run() {
        std::unique_lock lock(mutex);
        while (true) {
            changed.wait(lock, [this] { return is_stopping || gathered < wanted; });
            if (is_stopping) {
                return;
            }
            const std::size_t unit = unit_at(gathered);
            const bool is_there = is_resident[unit];
            lock.unlock();
            try {
                LOCKSTEP_CHECK(!is_there, "unit ", unit, " is gathered twice");
                gather(unit);
                lock.lock();
            } catch (...) {
                lock.lock();
                failure = std::current_exception();
                changed.notify_all();
                return;
            }
            mark_resident(unit);
            if (is_discarding) {
                release(unit);
            }
            ++gathered;
            changed.notify_all();
        }
    }

    /// Returns when the unit at `position` is there; the one after it may come meanwhile.
    void need(std::size_t position) {
        std::unique_lock lock(mutex);
        wanted = std::max(wanted, std::min(position + 2, positions()));
        changed.notify_all();
        wait_for(lock, position + 1);
    }

    void wait_for(std::unique_lock<std::mutex>& lock, std::size_t count) {
        changed.wait(lock, [&] { return gathered >= count || failure; });
        if (failure) {
            std::rethrow_exception(failure);
        }
    }
};

GatheredParameters::GatheredParameters(Communicator& communicator, const FlatLayout& layout, const Partition& partition,
                                       std::span<const at::Tensor> parameters)
    : state_(std::make_unique<State>(communicator, layout, partition, parameters)) {}

GatheredParameters::~GatheredParameters() = default;

at::Tensor GatheredParameters::owned(const OwnedRange& range) const {
    return state_->shard.of(range);
}

void GatheredParameters::before_forward(std::size_t unit) {
    State& s = *state_;
    if (s.holds_all) {
        return;
    }
    LOCKSTEP_CHECK_EQ(unit, s.next_forward, "units come in order, and a pass ends with end_pass()");
    ++s.next_forward;
    s.need(unit);
}

void GatheredParameters::after_forward(std::size_t unit, std::span<const at::Tensor> outputs) {
    State& s = *state_;
    if (s.holds_all || unit + 1 == s.units()) {
        return;  // the last one is used again at once
    }
    const std::size_t position = 2 * (s.units() - 1) - unit;
    for (const at::Tensor& output : outputs) {
        if (output.requires_grad()) {
            output.register_hook([&s, position](const at::Tensor&) { s.need(position); });
        }
    }
    const std::scoped_lock lock(s.mutex);
    s.release(unit);
}

void GatheredParameters::bucket_is_complete(std::size_t bucket) {
    State& s = *state_;
    const std::size_t unit = s.layout.buckets()[bucket].unit;
    const std::scoped_lock lock(s.mutex);
    if (++s.complete[unit] == s.buckets_of[unit].size()) {
        s.release(unit);
    }
}

void GatheredParameters::end_pass() {
    State& s = *state_;
    std::unique_lock lock(s.mutex);
    for (std::size_t unit = 0; unit < s.units(); ++unit) {
        s.release(unit);
    }
    s.is_discarding = true;
    s.wanted = s.positions();
    s.changed.notify_all();
    s.wait_for(lock, s.positions());
    s.is_discarding = false;
    s.wanted = s.gathered = s.next_forward = 0;
    std::ranges::fill(s.complete, std::size_t{0});
}

void GatheredParameters::hold_all() {
    State& s = *state_;
    LOCKSTEP_CHECK(!s.holds_all && s.next_forward == 0 && s.wanted == 0, "in a pass");
    for (std::size_t unit = 0; unit < s.units(); ++unit) {
        s.gather(unit);
    }
    s.holds_all = true;
}

void GatheredParameters::drop_all() {
    State& s = *state_;
    LOCKSTEP_CHECK(s.holds_all, "nothing is held");
    for (std::size_t bucket = 0; bucket < s.whole.size(); ++bucket) {
        s.give_memory_back(bucket);
    }
    s.holds_all = false;
}

std::uint64_t GatheredParameters::shard_bytes() const {
    return state_->shard.bytes();
}

std::uint64_t GatheredParameters::most_gathered_bytes() const {
    const std::scoped_lock lock(state_->mutex);
    return state_->most_resident_bytes;
}

}  // namespace lockstep::comm
