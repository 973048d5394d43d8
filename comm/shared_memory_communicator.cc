#include "comm/shared_memory_communicator.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "comm/reduce.h"

namespace lockstep::comm {

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::span<std::byte>;

constexpr std::size_t line_bytes = 128;  // two cache lines: the prefetcher takes pairs
constexpr std::size_t page_bytes = 4096;
/// Of one rank, for one turn. Twice this, from two ranks, still fits into a second-level cache.
constexpr std::size_t staging_bytes = 128 << 10;
/// A reduced block goes to the other ranks while it is in the first-level cache.
constexpr std::size_t block_bytes = 8 << 10;

/// What a rank does in an operation, so that its peers notice when they do something else.
struct Call {
    OperationKind kind = OperationKind::set_up;
    ReduceOp op = ReduceOp::sum;
    DataType type = DataType::u8;
    std::int32_t root = 0;
    std::uint64_t count = 0;
    std::uint64_t slices = 0;      ///< hash of the slices
    std::int64_t allocation = -1;  ///< index of the allocation that the buffer lies in; -1: other memory
    std::uint64_t offset = 0;      ///< of the buffer in the rank's part of it

    bool same_operation(const Call& other) const {
        return kind == other.kind && op == other.op && type == other.type && root == other.root &&
               (count == other.count || kind == OperationKind::all_gather_bytes) && slices == other.slices;
    }
    bool same_place(const Call& other) const {
        return allocation >= 0 && allocation == other.allocation && offset == other.offset;
    }
};

/// A rank's part of the control segment. Everything but `phase` and the flags is written before a phase is published
/// and read after it was seen.
struct Mailbox {
    alignas(line_bytes) std::atomic<std::uint32_t> phase;  ///< how often this rank has arrived
    alignas(line_bytes) std::atomic<std::uint32_t> sleepers;
    std::atomic<std::uint32_t> has_failed;
    std::atomic<std::int64_t> process;
    std::array<char, 1000> failure;  ///< zero-terminated; set before has_failed
    alignas(line_bytes) std::array<Call, 2> calls;
    alignas(page_bytes) std::array<std::array<std::byte, staging_bytes>, 2> staging;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free,
              "atomics in shared memory must not hide a lock");

void futex_wake_all(std::atomic<std::uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

/// Returns when woken, when `word` is not `seen`, or after some time.
void futex_wait_a_while(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
    const timespec limit{0, 50'000'000};
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

/// memcpy, which must not be given the null pointer of an empty buffer.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t count) {
    if (count != 0) {
        std::memcpy(to, from, count);
    }
}

void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class SharedMemoryCommunicator final : public Communicator {
  public:
    SharedMemoryCommunicator(CommunicatorIdentity identity, std::unique_ptr<SegmentExchange> exchange,
                             Patience patience)
        : Communicator(std::move(identity)),
          exchange_(std::move(exchange)),
          rank_(static_cast<std::size_t>(index_of(rank()))),
          size_(this->identity().members.size()),
          patience_(patience),
          control_(exchange_->share(sizeof(Mailbox))) {
        LOCKSTEP_CHECK_LE(size_, staging_bytes / line_bytes, "a reduce-scatter needs a cell for each rank");
        LOCKSTEP_CHECK_EQ(control_.bytes().size(), size_ * sizeof(Mailbox), "the exchange has other ranks");
        mine().process.store(getpid());
    }

    std::shared_ptr<std::byte> allocate(std::size_t bytes, std::string_view name) override {
        const std::size_t rounded = std::max((bytes + page_bytes - 1) / page_bytes * page_bytes, page_bytes);
        try {
            allocations_.push_back({exchange_->share(rounded), rounded});
        } catch (const base::Error& error) {
            throw base::Error(base::str(identity().purpose, ": no shared memory for ", name, ": ", error.what()));
        }
        const Allocation& allocation = allocations_.back();
        return {allocation.segment.owner(), allocation.part(rank_)};
    }

  private:
    struct Allocation {
        SharedSegment segment;
        std::size_t bytes_per_rank;
        std::byte* part(std::size_t rank) const { return segment.bytes().data() + rank * bytes_per_rank; }
    };

    void do_all_reduce(const Buffer& buffer, ReduceOp op) override {
        const Call call = call_of(buffer, {});
        if (buffer.bytes() <= staging_bytes / 8) {
            // Small: data travels with the call, also from shared memory.
            const Bytes data = bytes_of(buffer);
            const std::size_t turn = stage(data);
            open(call);
            reduce_staged(turn, 0, buffer.count, data.data(), buffer.type, op);
            return;
        }
        if (open(call)) {
            reduce_in_place(call, buffer, op);
        } else if (size_ <= 2) {
            for_each_chunk(buffer, staging_bytes, [&](std::byte* chunk, std::size_t count) {
                const std::size_t turn = stage({chunk, count * size_of(buffer.type)});
                pass();
                reduce_staged(turn, 0, count, chunk, buffer.type, op);
            });
        } else {
            for_each_chunk(buffer, staging_bytes,
                           [&](std::byte* chunk, std::size_t count) { reduce_chunk(chunk, count, buffer.type, op); });
        }
    }

    /// Each rank reduces its slice of all buffers and writes it into all of them.
    void reduce_in_place(const Call& call, const Buffer& buffer, ReduceOp op) {
        const std::size_t width = size_of(buffer.type);
        const Slice own = slice_of(buffer.count, size(), rank());
        std::vector<std::byte*> parts(size_);
        std::vector<const std::byte*> sources(size_);
        for (std::size_t begin = own.begin; begin < own.end;) {
            const std::size_t count = std::min(block_bytes / width, own.end - begin);
            for (std::size_t peer = 0; peer < size_; ++peer) {
                parts[peer] = place(call, peer) + begin * width;
                sources[peer] = parts[peer];
            }
            reduce_in_order(sources, parts[rank_], count, buffer.type, op);
            for (std::size_t peer = 0; peer < size_; ++peer) {
                if (peer != rank_) {
                    copy_bytes(parts[peer], parts[rank_], count * width);
                }
            }
            begin += count;
        }
        pass();
    }

    /// Each rank reduces its slice of the staged chunk, then takes the others' results.
    void reduce_chunk(std::byte* chunk, std::size_t count, DataType type, ReduceOp op) {
        const std::size_t width = size_of(type);
        const std::size_t turn = stage({chunk, count * width});
        pass();
        const Slice own = slice_of(count, size(), rank());
        reduce_staged(turn, own.begin * width, own.count(), staging(rank_, turn).data() + own.begin * width, type, op);
        pass();
        for (std::size_t peer = 0; peer < size_; ++peer) {
            const Slice slice = slice_of(count, size(), Rank{static_cast<std::int32_t>(peer)});
            copy_bytes(chunk + slice.begin * width, staging(peer, turn).data() + slice.begin * width,
                       slice.count() * width);
        }
    }

    void do_reduce_scatter(const Buffer& buffer, std::span<const Slice> slices, ReduceOp op) override {
        const Call call = call_of(buffer, slices);
        const bool in_place = open(call);
        const std::size_t width = size_of(buffer.type);
        const Slice own = slices[rank_];
        if (in_place) {
            std::vector<const std::byte*> sources(size_);
            for (std::size_t peer = 0; peer < size_; ++peer) {
                sources[peer] = place(call, peer) + own.begin * width;
            }
            reduce_in_order(sources, place(call, rank_) + own.begin * width, own.count(), buffer.type, op);
            pass();
            return;
        }
        // In a turn, every rank lays out a piece of each rank's slice.
        const std::size_t cell = staging_bytes / size_ / line_bytes * line_bytes;
        const std::size_t piece = cell / width;
        auto* const data = static_cast<std::byte*>(buffer.data);
        for (std::size_t done = 0; done < longest(slices); done += piece) {
            const std::size_t turn = next_turn();
            const Bytes mine = staging(rank_, turn);
            for (std::size_t peer = 0; peer < size_; ++peer) {
                const Slice part = piece_of(slices[peer], done, piece);
                copy_bytes(mine.data() + peer * cell, data + part.begin * width, part.count() * width);
            }
            pass();
            const Slice part = piece_of(own, done, piece);
            reduce_staged(turn, rank_ * cell, part.count(), data + part.begin * width, buffer.type, op);
        }
    }

    void do_all_gather(const Buffer& buffer, std::span<const Slice> slices) override {
        const Call call = call_of(buffer, slices);
        const std::size_t width = size_of(buffer.type);
        auto* const data = static_cast<std::byte*>(buffer.data);
        if (open(call)) {
            for (std::size_t distance = 1; distance < size_; ++distance) {
                const std::size_t peer = (rank_ + distance) % size_;
                const Slice slice = slices[peer];
                copy_bytes(data + slice.begin * width, place(call, peer) + slice.begin * width, slice.count() * width);
            }
            pass();
            return;
        }
        std::vector<Bytes> parts;
        for (const Slice& slice : slices) {
            parts.emplace_back(data + slice.begin * width, slice.count() * width);
        }
        gather(parts);
    }

    /// Every rank fills its own part; afterwards all parts are filled everywhere.
    void gather(const std::vector<Bytes>& parts) {
        const std::size_t length = std::ranges::max(parts, {}, &Bytes::size).size();
        const auto piece_of_part = [](Bytes part, std::size_t done) {
            const std::size_t begin = std::min(done, part.size());
            return part.subspan(begin, std::min(staging_bytes, part.size() - begin));
        };
        for (std::size_t done = 0; done < length; done += staging_bytes) {
            const std::size_t turn = stage(piece_of_part(parts[rank_], done));
            pass();
            for (std::size_t peer = 0; peer < size_; ++peer) {
                if (peer != rank_) {
                    const Bytes piece = piece_of_part(parts[peer], done);
                    copy_bytes(piece.data(), staging(peer, turn).data(), piece.size());
                }
            }
        }
    }

    void do_broadcast(const Buffer& buffer, Rank root) override {
        const auto source = static_cast<std::size_t>(index_of(root));
        Call call = call_of(buffer, {});
        call.root = index_of(root);
        if (open(call)) {
            if (rank_ != source) {
                copy_bytes(static_cast<std::byte*>(buffer.data), place(call, source), buffer.bytes());
            }
            pass();
            return;
        }
        for_each_chunk(buffer, staging_bytes, [&](std::byte* chunk, std::size_t count) {
            const Bytes bytes{chunk, count * size_of(buffer.type)};
            const std::size_t turn = rank_ == source ? stage(bytes) : next_turn();
            pass();
            if (rank_ != source) {
                copy_bytes(bytes.data(), staging(source, turn).data(), bytes.size());
            }
        });
    }

    void do_barrier() override { open(call_of({}, {})); }

    std::vector<std::vector<std::byte>> do_all_gather_bytes(std::span<const std::byte> mine) override {
        open(call_of({nullptr, mine.size(), DataType::u8}, {}));
        std::vector<std::vector<std::byte>> all(size_);
        std::vector<Bytes> parts;
        for (std::size_t peer = 0; peer < size_; ++peer) {
            all[peer].resize(call_from(peer).count);
            parts.emplace_back(all[peer]);
        }
        std::ranges::copy(mine, all[rank_].begin());
        gather(parts);
        return all;
    }

    Call call_of(const Buffer& buffer, std::span<const Slice> slices) const {
        Call call{.kind = operation().kind, .op = operation().op, .type = operation().type, .count = buffer.count};
        for (const Slice& slice : slices) {
            call.slices = base::mix64(base::mix64(call.slices + slice.begin) + slice.end);
        }
        const auto* const data = static_cast<const std::byte*>(buffer.data);
        for (std::size_t i = 0; i < allocations_.size(); ++i) {
            const std::byte* const part = allocations_[i].part(rank_);
            if (part <= data && data + buffer.bytes() <= part + allocations_[i].bytes_per_rank) {
                call.allocation = static_cast<std::int64_t>(i);
                call.offset = static_cast<std::uint64_t>(data - part);
            }
        }
        return call;
    }

    /// The first meeting of an operation. True when every rank's buffer is the same part of an allocation. Throws on
    /// every rank when they call different things.
    bool open(const Call& call) {
        call_from(rank_) = call;
        pass();
        bool in_place = true;
        for (std::size_t peer = 0; peer < size_; ++peer) {
            const Call& theirs = call_from(peer);
            if (!theirs.same_operation(call)) {
                give_up(base::str(describe(), ": the ranks call different operations, or one with different sizes: ",
                                  text_of(call), " here, ", text_of(theirs), " on ", name_of_peer(peer)));
            }
            in_place = in_place && theirs.same_place(call);
        }
        return in_place;
    }

    static std::string text_of(const Call& call) {
        return base::str(name_of(call.kind), " of ", call.count, " ", name_of(call.type),
                         call.kind == OperationKind::broadcast ? base::str(" from ", call.root) : "",
                         call.slices != 0 ? base::str(" in slices ", call.slices % 10000) : "");
    }

    /// Of the operation under way. Two ranks are never more than one operation apart.
    Call& call_from(std::size_t peer) { return mailbox(peer).calls[operation().sequence % 2]; }

    std::byte* place(const Call& call, std::size_t peer) const {
        return allocations_[static_cast<std::size_t>(call.allocation)].part(peer) + call.offset;
    }

    /// Turns alternate between two halves of the staging area, over all operations: when this rank writes a half again,
    /// it has passed a phase that every peer entered after reading it.
    std::size_t next_turn() { return turn_++ % 2; }

    std::size_t stage(Bytes bytes) {
        const std::size_t turn = next_turn();
        copy_bytes(staging(rank_, turn).data(), bytes.data(), bytes.size());
        return turn;
    }

    /// destination = reduction of `count` elements at `offset` bytes of every rank's staging area.
    void reduce_staged(std::size_t turn, std::size_t offset, std::size_t count, std::byte* destination, DataType type,
                       ReduceOp op) {
        sources_.resize(size_);
        for (std::size_t peer = 0; peer < size_; ++peer) {
            sources_[peer] = staging(peer, turn).data() + offset;
        }
        reduce_in_order(sources_, destination, count, type, op);
    }

    Bytes staging(std::size_t peer, std::size_t turn) { return mailbox(peer).staging[turn]; }

    static Bytes bytes_of(const Buffer& buffer) { return {static_cast<std::byte*>(buffer.data), buffer.bytes()}; }

    /// visit(chunk, elements) for pieces of at most `limit` bytes.
    template <typename Visit>
    static void for_each_chunk(const Buffer& buffer, std::size_t limit, Visit visit) {
        const std::size_t width = size_of(buffer.type);
        const std::size_t most = limit / width;
        for (std::size_t begin = 0; begin < buffer.count; begin += most) {
            visit(static_cast<std::byte*>(buffer.data) + begin * width, std::min(most, buffer.count - begin));
        }
    }

    static Slice piece_of(const Slice& slice, std::size_t done, std::size_t piece) {
        const std::size_t begin = std::min(slice.begin + done, slice.end);
        return {begin, std::min(begin + piece, slice.end)};
    }

    static std::size_t longest(std::span<const Slice> slices) {
        std::size_t count = 0;
        for (const Slice& slice : slices) {
            count = std::max(count, slice.count());
        }
        return count;
    }

    /// Says that everything written so far may be read, and waits until every rank says the same.
    void pass() {
        ++phase_;
        mine().phase.store(phase_);  // sequentially consistent, as is `sleepers`: either we see a sleeper or it sees us
        if (mine().sleepers.load() != 0) {
            futex_wake_all(mine().phase);
        }
        for (std::size_t distance = 1; distance < size_; ++distance) {
            wait_for((rank_ + distance) % size_);
        }
    }

    bool has_arrived(std::size_t peer) {
        return static_cast<std::int32_t>(mailbox(peer).phase.load(std::memory_order_acquire) - phase_) >= 0;
    }

    void wait_for(std::size_t peer) {
        for (std::int32_t i = 0; i < patience_.spins; ++i) {
            if (has_arrived(peer)) {
                return;
            }
            relax();
        }
        for (std::int32_t i = 0; i < patience_.yields; ++i) {
            if (has_arrived(peer)) {
                return;
            }
            sched_yield();
        }
        Mailbox& theirs = mailbox(peer);
        while (!has_arrived(peer)) {
            look_for_failures(peer);
            theirs.sleepers.fetch_add(1);
            const std::uint32_t seen = theirs.phase.load();
            if (static_cast<std::int32_t>(seen - phase_) < 0 && theirs.has_failed.load() == 0) {
                futex_wait_a_while(theirs.phase, seen);
            }
            theirs.sleepers.fetch_sub(1);
        }
    }

    /// Throws when a peer has failed or gone, or the deadline has passed, unless `awaited` has arrived meanwhile: what
    /// is complete must not fail.
    void look_for_failures(std::size_t awaited) {
        for (std::size_t peer = 0; peer < size_; ++peer) {
            std::string cause;
            const auto process = static_cast<pid_t>(mailbox(peer).process.load());
            if (mailbox(peer).has_failed.load() != 0) {
                cause = base::str(" gave up: ", mailbox(peer).failure.data());
            } else if (process != 0 && kill(process, 0) != 0 && errno == ESRCH) {
                cause = base::str(" (process ", process, ") is gone");
            }
            if (!cause.empty() && !has_arrived(awaited)) {
                give_up(base::str(describe(), ": ", name_of_peer(peer), cause));
            }
        }
        if (Clock::now() > operation().deadline && !has_arrived(awaited)) {
            std::vector<Rank> behind;
            for (std::size_t peer = 0; peer < size_; ++peer) {
                if (peer == awaited || !has_arrived(peer)) {
                    behind.push_back(Rank{static_cast<std::int32_t>(peer)});
                }
            }
            try {
                throw_late(behind);
            } catch (const base::Error& error) {
                give_up(error.what());
            }
        }
    }

    /// Tells the peers and throws.
    [[noreturn]] void give_up(const std::string& text) {
        Mailbox& box = mine();
        const std::size_t length = std::min(text.size(), box.failure.size() - 1);
        std::copy_n(text.data(), length, box.failure.data());
        box.failure[length] = '\0';
        box.has_failed.store(1);
        futex_wake_all(box.phase);
        throw PeerError(text);
    }

    std::string name_of_peer(std::size_t peer) const { return name_of_member(Rank{static_cast<std::int32_t>(peer)}); }

    Mailbox& mailbox(std::size_t peer) {
        return *reinterpret_cast<Mailbox*>(control_.bytes().data() + peer * sizeof(Mailbox));
    }
    Mailbox& mine() { return mailbox(rank_); }

    std::unique_ptr<SegmentExchange> exchange_;
    std::size_t rank_;
    std::size_t size_;
    Patience patience_;
    SharedSegment control_;
    std::vector<Allocation> allocations_;
    std::uint32_t phase_ = 0;  ///< wraps around
    std::size_t turn_ = 0;
    std::vector<const std::byte*> sources_;
};

}  // namespace

std::unique_ptr<Communicator> make_shared_memory_communicator(CommunicatorIdentity identity,
                                                              std::unique_ptr<SegmentExchange> exchange,
                                                              Patience patience) {
    return std::make_unique<SharedMemoryCommunicator>(std::move(identity), std::move(exchange), patience);
}

}  // namespace lockstep::comm
