#pragma once

#include <barrier>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/shared_memory_communicator.h"
#include "tests/comm/collective_checks.h"

namespace lockstep::comm::tests {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool is_sanitized = true;
#else
constexpr bool is_sanitized = false;
#endif

/// All types; one of each kind where a sanitizer makes everything ten times slower.
inline std::vector<DataType> types_to_check() {
    if (is_sanitized) {
        return {DataType::f32, DataType::bf16, DataType::i64};
    }
    return {std::begin(all_types), std::end(all_types)};
}

/// Ranks as threads of one process: they share a segment by holding the same object, so that the thread sanitizer sees
/// every access to it.
class ThreadNode {
  public:
    /// `members`: their ranks in the job.
    explicit ThreadNode(std::vector<Rank> members)
        : members_(std::move(members)), meeting_(static_cast<std::ptrdiff_t>(members_.size())) {}

    /// Collective over the members' threads.
    std::unique_ptr<Communicator> join(std::string purpose, Rank local_rank, std::chrono::milliseconds timeout) {
        CommunicatorIdentity identity{std::move(purpose), local_rank, {}, timeout};
        for (const Rank member : members_) {
            identity.members.push_back({index_of(member), "node7"});
        }
        return make_shared_memory_communicator(std::move(identity),
                                               std::make_unique<Exchange>(*this, index_of(local_rank)),
                                               Patience::for_crowded_cores());
    }

  private:
    class Exchange final : public SegmentExchange {
      public:
        Exchange(ThreadNode& node, std::int32_t rank) : node_(node), rank_(static_cast<std::size_t>(rank)) {}
        std::size_t ranks() const override { return node_.members_.size(); }
        SharedSegment share(std::size_t bytes_per_rank) override {
            if (rank_ == 0) {
                node_.segment_ = SharedSegment::create(bytes_per_rank * node_.members_.size());
            }
            node_.meeting_.arrive_and_wait();
            SharedSegment segment = *node_.segment_;
            segment.reserve(bytes_per_rank * rank_, bytes_per_rank);
            node_.meeting_.arrive_and_wait();
            return segment;
        }

      private:
        ThreadNode& node_;
        std::size_t rank_;
    };

    std::vector<Rank> members_;
    std::barrier<> meeting_;
    std::optional<SharedSegment> segment_;
};

/// body(rank) on a thread for each of `size` ranks; returns when all have ended.
inline void on_rank_threads(std::int32_t size, const std::function<void(Rank)>& body) {
    std::vector<std::jthread> threads;
    for (std::int32_t rank = 0; rank < size; ++rank) {
        threads.emplace_back([&body, rank] { body(Rank{rank}); });
    }
}

}  // namespace lockstep::comm::tests
