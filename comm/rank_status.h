#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "comm/communicator.h"

namespace lockstep::comm {

/// Text of at most `Bytes` bytes in memory that processes share: one writes, others read without a lock, in words, so
/// that there is no race. Read in the middle of a write, it is a mixture.
template <std::size_t Bytes>
class SharedText {
  public:
    void write(std::string_view text) {
        std::array<std::uint64_t, words> packed{};
        std::memcpy(packed.data(), text.data(), std::min(text.size(), Bytes - 1));
        for (std::size_t i = 0; i < words; ++i) {
            words_[i].store(packed[i], std::memory_order_release);
        }
    }
    std::string read() const {
        std::array<std::uint64_t, words> packed{};
        for (std::size_t i = 0; i < words; ++i) {
            packed[i] = words_[i].load(std::memory_order_acquire);
        }
        std::array<char, Bytes> text{};
        std::memcpy(text.data(), packed.data(), Bytes);
        text.back() = '\0';
        return text.data();
    }

  private:
    static constexpr std::size_t words = Bytes / sizeof(std::uint64_t);
    static_assert(Bytes % sizeof(std::uint64_t) == 0);
    static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<double>::is_always_lock_free);
    std::array<std::atomic<std::uint64_t>, words> words_;
};

enum class RankState : std::uint32_t { absent, runs, failed, was_late, finished };

/// The operation that a communicator of the rank is in, or was in last. A version that is odd, or has changed since,
/// tells a reader to read again.
struct SharedOperation {
    std::atomic<std::uint32_t> version;
    std::atomic<std::uint32_t> is_used;
    std::atomic<std::uint32_t> is_under_way;
    std::atomic<std::uint32_t> kind_op_type;
    std::atomic<std::uint64_t> count;
    std::atomic<std::uint64_t> sequence;
    std::atomic<double> since;  ///< seconds of the machine's monotonic clock
    SharedText<48> purpose;
    SharedText<64> name;
};

/// What a rank says of itself, in memory of its machine that outlives it. Zeroed memory is a valid one. Written by the
/// rank through RankLog, read by anyone.
struct RankStatus {
    static constexpr std::size_t room_for_operations = 16;

    std::atomic<std::int64_t> process;
    std::atomic<std::uint64_t> process_start;  ///< tells the process from a later one of the same number
    std::atomic<RankState> state;
    std::atomic<std::int32_t> exit_code;
    std::atomic<double> failed_at;  ///< seconds of the machine's monotonic clock
    SharedText<1024> failure;
    std::atomic<std::int64_t> step;
    SharedText<48> phase;
    std::array<SharedOperation, room_for_operations> operations;
};

/// A readable copy of a SharedOperation.
struct SeenOperation {
    std::string purpose;
    Operation operation;
    bool is_under_way = false;
    double seconds = 0;  ///< since it began

    /// "gradients: all_reduce (sum of f32) "bucket 3", operation 40, 2.1 MiB, since 3.2 s".
    std::string describe() const;
};

/// A readable copy of a RankStatus.
struct SeenRank {
    Member member;
    RankState state = RankState::absent;
    bool is_gone = false;          ///< it has not finished, and its process is not there
    bool is_stopped = false;       ///< by a signal or a debugger
    bool is_out_of_reach = false;  ///< nothing was heard of its machine for a while
    std::int64_t process = 0;
    std::int32_t exit_code = 0;
    double failed_at = 0;  ///< seconds of this machine's monotonic clock
    std::string failure;
    std::string phase;
    std::int64_t step = 0;
    std::vector<SeenOperation> operations;
};

/// Looks at the process, too.
SeenRank see(const RankStatus& status, Member member);
/// Whether its process is gone without having finished; cheaper than see().
bool has_died(const RankStatus& status);

/// When the process was started, in the kernel's ticks; 0 where there is no such process, or only its remains.
std::uint64_t start_of_process(std::int64_t process);

}  // namespace lockstep::comm
