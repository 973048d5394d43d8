#include "comm/rank_log.h"

#include <unistd.h>

#include <utility>

#include "base/resources.h"
#include "base/text.h"

namespace lockstep::comm {

RankLog::RankLog(std::shared_ptr<RankStatus> status) : status_(std::move(status)) {
    status_->process_start.store(start_of_process(getpid()), std::memory_order_release);
    status_->process.store(getpid(), std::memory_order_release);
    enter("start", 0);
    status_->state.store(RankState::runs, std::memory_order_release);
}

void RankLog::enter(std::string_view phase, std::int64_t step) {
    status_->phase.write(phase);
    status_->step.store(step, std::memory_order_release);
    if (keeps_spans_) {
        const double now = base::monotonic_seconds();
        const std::scoped_lock lock(spans_mutex_);
        keep(phase_, now);
        phase_ = {"phases", std::string(phase), now, now};
    }
}

/// With the lock held. Nothing is under way afterwards.
void RankLog::keep(Span& span, double end) {
    if (!span.name.empty()) {
        span.end = end;
        spans_.push_back(std::exchange(span, {}));
    }
}

void RankLog::start_spans() {
    keeps_spans_ = true;
}

std::vector<Span> RankLog::take_spans() {
    keeps_spans_ = false;
    const double now = base::monotonic_seconds();
    const std::scoped_lock lock(spans_mutex_);
    keep(phase_, now);
    span_of_place_.fill({});
    return std::exchange(spans_, {});
}

void RankLog::failed(std::string_view text, int exit_code, bool is_late) {
    status_->failure.write(text);
    status_->exit_code.store(exit_code, std::memory_order_release);
    status_->failed_at.store(base::monotonic_seconds(), std::memory_order_release);
    status_->state.store(is_late ? RankState::was_late : RankState::failed, std::memory_order_release);
}

void RankLog::finished() {
    status_->state.store(RankState::finished, std::memory_order_release);
}

void RankLog::record_in(const std::filesystem::path& file) {
    record_ = std::make_unique<FlightRecord>(file);
}

std::size_t RankLog::open(std::string_view purpose) {
    const std::scoped_lock lock(opening_);
    for (std::size_t place = 0; place < status_->operations.size(); ++place) {
        SharedOperation& shared = status_->operations[place];
        if (shared.is_used.load(std::memory_order_acquire) == 0) {
            shared.purpose.write(purpose);
            shared.sequence.store(0, std::memory_order_release);
            shared.since.store(base::monotonic_seconds(), std::memory_order_release);
            shared.is_under_way.store(0, std::memory_order_release);
            shared.is_used.store(1, std::memory_order_release);
            return place;
        }
    }
    return no_place;
}

void RankLog::close(std::size_t place) {
    if (place != no_place && status_->operations[place].is_under_way.load(std::memory_order_acquire) == 0) {
        const std::scoped_lock lock(opening_);
        status_->operations[place].is_used.store(0, std::memory_order_release);
    }
}

void RankLog::begin(std::size_t place, const Operation& operation) {
    if (place == no_place) {
        return;
    }
    SharedOperation& shared = status_->operations[place];
    const std::uint32_t version = shared.version.load(std::memory_order_relaxed);
    shared.version.store(version + 1, std::memory_order_release);
    shared.kind_op_type.store(static_cast<std::uint32_t>(operation.kind) |
                                  static_cast<std::uint32_t>(operation.op) << 8 |
                                  static_cast<std::uint32_t>(operation.type) << 16,
                              std::memory_order_release);
    shared.count.store(operation.count, std::memory_order_release);
    shared.sequence.store(operation.sequence, std::memory_order_release);
    shared.since.store(base::monotonic_seconds(), std::memory_order_release);
    shared.name.write(operation.name);
    shared.is_under_way.store(1, std::memory_order_release);
    shared.version.store(version + 2, std::memory_order_release);
    if (record_) {
        line_of_place_[place] = record_->begin(base::str(shared.purpose.read(), ": ", operation.describe()));
    }
    if (keeps_spans_) {
        const double now = base::monotonic_seconds();
        const std::scoped_lock lock(spans_mutex_);
        span_of_place_[place] = {shared.purpose.read(), operation.describe(), now, now};
    }
}

void RankLog::end(std::size_t place) {
    if (place == no_place) {
        return;
    }
    status_->operations[place].is_under_way.store(0, std::memory_order_release);
    if (keeps_spans_) {
        const double now = base::monotonic_seconds();
        const std::scoped_lock lock(spans_mutex_);
        keep(span_of_place_[place], now);
    }
    if (record_) {
        record_->end(line_of_place_[place]);
    }
}

}  // namespace lockstep::comm
