#include <mpi.h>

#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/resources.h"
#include "base/text.h"
#include "comm/backoff.h"
#include "comm/mpi.h"
#include "comm/mpi_check.h"
#include "comm/reduce.h"

namespace lockstep::comm {

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

/// Messages in flight that are waited for together. Destroyed early (an operation failed), it takes back what is not
/// yet matched.
class Transfers {
  public:
    Transfers() = default;
    Transfers(const Transfers&) = delete;
    Transfers& operator=(const Transfers&) = delete;
    ~Transfers() {
        for (std::size_t i = 0; i < requests_.size(); ++i) {
            if (requests_[i] != MPI_REQUEST_NULL) {
                if (messages_[i].is_receive) {
                    MPI_Cancel(&requests_[i]);
                }
                MPI_Request_free(&requests_[i]);
            }
        }
    }

    void send(MPI_Comm comm, ConstBytes bytes, int peer, int tag) {
        add({peer, bytes.size(), false});
        check_mpi(MPI_Isend(bytes.data(), count_of(bytes), MPI_BYTE, peer, tag, comm, &requests_.back()), "MPI_Isend");
    }

    void receive(MPI_Comm comm, Bytes bytes, int peer, int tag) {
        add({peer, bytes.size(), true});
        check_mpi(MPI_Irecv(bytes.data(), count_of(bytes), MPI_BYTE, peer, tag, comm, &requests_.back()), "MPI_Irecv");
    }

    bool done() const { return done_ == requests_.size(); }

    /// Lets MPI work. True when at least one message got through.
    bool poll() {
        int completed = 0;
        indices_.resize(requests_.size());
        statuses_.resize(requests_.size());
        const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &completed, indices_.data(),
                                      statuses_.data());
        if (code != MPI_ERR_IN_STATUS) {
            check_mpi(code, "MPI_Testsome");
        }
        for (int i = 0; i < completed; ++i) {
            check_completed(messages_[static_cast<std::size_t>(indices_[i])], statuses_[i], code == MPI_ERR_IN_STATUS);
        }
        done_ += static_cast<std::size_t>(std::max(completed, 0));
        return completed > 0;
    }

    void clear() {
        requests_.clear();
        messages_.clear();
        done_ = 0;
    }

    /// Peers of messages that did not get through, ascending.
    std::vector<int> missing_peers() const {
        std::vector<int> peers;
        for (std::size_t i = 0; i < requests_.size(); ++i) {
            if (requests_[i] != MPI_REQUEST_NULL) {
                peers.push_back(messages_[i].peer);
            }
        }
        std::ranges::sort(peers);
        peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
        return peers;
    }

  private:
    struct Message {
        int peer;
        std::size_t bytes;
        bool is_receive;
    };

    static int count_of(ConstBytes bytes) {
        LOCKSTEP_CHECK_LE(bytes.size(), std::size_t{1} << 30, "chunks keep messages below MPI's int counts");
        return static_cast<int>(bytes.size());
    }

    void add(const Message& message) {
        messages_.push_back(message);
        requests_.push_back(MPI_REQUEST_NULL);
    }

    static void check_completed(const Message& message, const MPI_Status& status, bool has_error) {
        int error_class = MPI_SUCCESS;
        if (has_error && status.MPI_ERROR != MPI_SUCCESS) {
            MPI_Error_class(status.MPI_ERROR, &error_class);
            if (error_class != MPI_ERR_TRUNCATE) {
                check_mpi(status.MPI_ERROR, base::str("a message with rank ", message.peer));
            }
        }
        if (!message.is_receive) {
            return;
        }
        int received = 0;
        check_mpi(MPI_Get_count(&status, MPI_BYTE, &received), "MPI_Get_count");
        if (error_class == MPI_ERR_TRUNCATE || static_cast<std::size_t>(received) != message.bytes) {
            throw base::Error(base::str(
                "rank ", message.peer, " sent ", error_class == MPI_ERR_TRUNCATE ? "more" : base::str(received),
                " bytes where ", message.bytes,
                " were expected: the ranks call different operations, or one with different sizes"));
        }
    }

    std::vector<MPI_Request> requests_;
    std::vector<Message> messages_;
    std::vector<int> indices_;
    std::vector<MPI_Status> statuses_;
    std::size_t done_ = 0;
};

/// The range of `part` that belongs to chunk `index`; empty beyond the end.
template <typename T>
std::span<T> chunk_of(std::span<T> part, std::size_t chunk_bytes, std::size_t index) {
    const std::size_t begin = std::min(index * chunk_bytes, part.size());
    return part.subspan(begin, std::min(chunk_bytes, part.size() - begin));
}

std::size_t chunks_in(std::size_t bytes, std::size_t chunk_bytes) {
    return (bytes + chunk_bytes - 1) / chunk_bytes;
}

class MpiCommunicator final : public Communicator {
  public:
    MpiCommunicator(CommunicatorIdentity identity, MpiAllReduce algorithm, Patience patience)
        : Communicator(std::move(identity)),
          algorithm_(algorithm),
          patience_(patience),
          rank_(index_of(rank())),
          size_(size()) {
        for (const Member& member : this->identity().members) {
            world_ranks_.push_back(member.world_rank);
        }
        chunk_bytes_ = std::clamp<std::size_t>(scratch_limit_bytes / 2 / static_cast<std::size_t>(size_),
                                               least_chunk_bytes, most_chunk_bytes);
        chunk_bytes_ -= chunk_bytes_ % 64;  // no element is split
        const OperationScope scope(*this, {OperationKind::set_up, {}, DataType::u8, 0, "MPI_Comm_idup", 0, {}});
        duplicate_world();
    }

    ~MpiCommunicator() override {
        if (in_operation()) {
            // After a failure the peers may be anywhere: freeing the communicator is collective, and a late message may
            // still land in the scratch memory. Both stay until the process ends, which is soon.
            static_cast<void>(scratch_.release());
        } else if (std::uncaught_exceptions() == 0 && mpi_is_running()) {
            MPI_Comm_free(&comm_);
        }
    }

    void exchange_host_names() { set_hosts(all_gather_texts(base::host_name(), "host names")); }

    SentData sent() const override { return {sent_bytes_}; }

  private:
    void do_all_reduce(const Buffer& buffer, ReduceOp op) override {
        switch (algorithm_) {
            case MpiAllReduce::direct:
                return reduce_directly(buffer, op);
            case MpiAllReduce::ring:
                return reduce_around_ring(buffer, op);
            case MpiAllReduce::halving_doubling:
                return reduce_by_halving(buffer, op);
            case MpiAllReduce::central:
                return reduce_at_first_rank(buffer, op);
        }
        LOCKSTEP_CHECK(false, "algorithm ", static_cast<int>(algorithm_));
    }

    /// Every rank exchanges directly with every other one. That moves as few bytes as a ring does, and lets a slice's
    /// owner add all contributions at once: in rank order, and rounding 16-bit types only once.
    void reduce_directly(const Buffer& buffer, ReduceOp op) {
        if (buffer.bytes() * static_cast<std::size_t>(size_) <= small_exchange_bytes) {
            reduce_small(buffer, op);
        } else {
            reduce_slices(buffer, even_slices(buffer.count, size_), op, /*gather_results=*/true);
        }
    }

    /// Each slice goes once around while every rank adds its part, and once more as the sum.
    void reduce_around_ring(const Buffer& buffer, ReduceOp op) {
        const std::vector<Bytes> slices = parts_of(buffer, even_slices(buffer.count, size_));
        const auto slice_before = [&](int steps) { return slices[static_cast<std::size_t>(wrapped(rank_ - steps))]; };
        const int next = wrapped(rank_ + 1);
        const int previous = wrapped(rank_ - 1);
        for (int step = 0; step + 1 < size_; ++step) {
            exchange_and_add(slice_before(step), next, slice_before(step + 1), previous, buffer.type, op);
        }
        finish(slice_before(size_ - 1), buffer.type, op);
        for (int step = 0; step + 1 < size_; ++step) {
            exchange(slice_before(step - 1), next, slice_before(step), previous);
        }
    }

    /// Halves of halves are exchanged over half the distance each time, then the sums back the same way (Rabenseifner).
    /// Ranks beyond the largest power of two hand theirs to a partner first.
    void reduce_by_halving(const Buffer& buffer, ReduceOp op) {
        const Bytes whole = bytes_of(buffer);
        const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(size_)));
        if (rank_ >= power) {
            exchange(whole, rank_ - power, {}, rank_ - power);
            exchange({}, rank_ - power, whole, rank_ - power);
            return;
        }
        const bool has_extra = rank_ + power < size_;
        if (has_extra) {
            exchange_and_add({}, rank_ + power, whole, rank_ + power, buffer.type, op);
        }
        Slice mine{0, buffer.count};
        const auto bytes_of_slice = [&](const Slice& slice) { return parts_of(buffer, std::array{slice}).front(); };
        std::vector<Slice> theirs;
        for (int distance = power / 2; distance > 0; distance /= 2) {
            const std::size_t middle = mine.begin + mine.count() / 2;
            const bool is_lower = (rank_ & distance) == 0;
            const Slice kept = is_lower ? Slice{mine.begin, middle} : Slice{middle, mine.end};
            theirs.push_back(is_lower ? Slice{middle, mine.end} : Slice{mine.begin, middle});
            mine = kept;
            exchange_and_add(bytes_of_slice(theirs.back()), rank_ ^ distance, bytes_of_slice(mine), rank_ ^ distance,
                             buffer.type, op);
        }
        finish(bytes_of_slice(mine), buffer.type, op);
        for (int distance = 1; distance < power; distance *= 2) {
            const Slice other = theirs.back();
            theirs.pop_back();
            exchange(bytes_of_slice(mine), rank_ ^ distance, bytes_of_slice(other), rank_ ^ distance);
            mine = {std::min(mine.begin, other.begin), std::max(mine.end, other.end)};
        }
        if (has_extra) {
            exchange(whole, rank_ + power, {}, rank_ + power);
        }
    }

    /// One rank adds everything and sends it back, as parallel training in one process does it: the first rank's link
    /// carries it all.
    void reduce_at_first_rank(const Buffer& buffer, ReduceOp op) {
        std::vector<Slice> all_to_first(static_cast<std::size_t>(size_), Slice{0, 0});
        all_to_first.front() = {0, buffer.count};
        reduce_slices(buffer, all_to_first, op, /*gather_results=*/false);
        broadcast_along_tree(bytes_of(buffer), 0);
    }

    void do_reduce_scatter(const Buffer& buffer, std::span<const Slice> slices, ReduceOp op) override {
        reduce_slices(buffer, slices, op, /*gather_results=*/false);
    }

    void do_all_gather(const Buffer& buffer, std::span<const Slice> slices) override {
        gather(parts_of(buffer, slices));
    }

    void do_broadcast(const Buffer& buffer, Rank root) override {
        broadcast_along_tree(bytes_of(buffer), index_of(root));
    }

    /// Dissemination: after step k everyone has heard, directly or not, from 2^(k+1) - 1 ranks before it.
    void do_barrier() override {
        for (int distance = 1; distance < size_; distance *= 2) {
            Transfers step;
            step.receive(comm_, {}, world_rank(wrapped(rank_ - distance)), tag(Lane::results));
            step.send(comm_, {}, world_rank(wrapped(rank_ + distance)), tag(Lane::results));
            wait(step);
        }
    }

    std::vector<std::vector<std::byte>> do_all_gather_bytes(std::span<const std::byte> mine) override {
        std::vector<std::uint64_t> lengths(static_cast<std::size_t>(size_));
        lengths[static_cast<std::size_t>(rank_)] = mine.size();
        gather(parts_of({lengths.data(), lengths.size(), DataType::i64}, even_slices(lengths.size(), size_)));

        std::vector<std::vector<std::byte>> all(lengths.size());
        std::vector<Bytes> parts;
        for (std::size_t peer = 0; peer < all.size(); ++peer) {
            all[peer].resize(lengths[peer]);
            parts.emplace_back(all[peer]);
        }
        std::ranges::copy(mine, parts[static_cast<std::size_t>(rank_)].begin());
        gather(parts);
        return all;
    }

    /// Two streams of messages in one operation, told apart by their tags.
    enum class Lane : int { contributions = 0, results = 1 };

    static constexpr std::size_t scratch_limit_bytes = 8 << 20;
    /// Over links of 1 Gbit/s chunks of 1 MiB took 1.3 to 1.6 times the link's time, of 256 KiB 1.13 to 1.2 times: both
    /// directions of a link are in use only while both streams have chunks under way.
    static constexpr std::size_t least_chunk_bytes = 64 << 10;
    static constexpr std::size_t most_chunk_bytes = 256 << 10;
    /// Below this many bytes in all, one round of whole buffers beats two rounds of slices.
    static constexpr std::size_t small_exchange_bytes = 64 << 10;

    void duplicate_world() {
        MPI_Request request = MPI_REQUEST_NULL;
        check_mpi(MPI_Comm_idup(MPI_COMM_WORLD, &comm_, &request), "MPI_Comm_idup");
        Backoff backoff(patience_);
        for (int done = 0; done == 0; backoff.pause()) {
            check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
            if (done == 0 && Clock::now() > operation().deadline) {
                throw PeerError(base::str(describe(), " did not end within the time limit: some rank has not asked ",
                                          "for this communicator"));
            }
        }
        check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }

    static Bytes bytes_of(const Buffer& buffer) { return {static_cast<std::byte*>(buffer.data), buffer.bytes()}; }

    static std::vector<Bytes> parts_of(const Buffer& buffer, std::span<const Slice> slices) {
        const std::size_t width = size_of(buffer.type);
        auto* const data = static_cast<std::byte*>(buffer.data);
        std::vector<Bytes> parts;
        for (const Slice& slice : slices) {
            parts.emplace_back(data + slice.begin * width, slice.count() * width);
        }
        return parts;
    }

    /// Sends `out` to one rank while `in` comes from another one, or the same.
    void exchange(ConstBytes out, int to, Bytes in, int from) {
        std::array<Transfers, 2> window;
        const std::size_t chunks = chunks_in(std::max(out.size(), in.size()), chunk_bytes_);
        for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
            receive(window[chunk % 2], chunk_of(in, chunk_bytes_, chunk), from, Lane::results);
            send(window[chunk % 2], chunk_of(out, chunk_bytes_, chunk), to, Lane::results);
            wait(window[(chunk + 1) % 2]);
        }
        wait(window[(chunks + 1) % 2]);
    }

    /// The same, but what comes is combined with what `sum` holds; an average is only added, see finish().
    void exchange_and_add(ConstBytes out, int to, Bytes sum, int from, DataType type, ReduceOp op) {
        std::array<Transfers, 2> window;
        const Bytes scratch = scratch_of(2 * chunk_bytes_);
        const std::size_t chunks = chunks_in(std::max(out.size(), sum.size()), chunk_bytes_);
        for (std::size_t step = 0; step < chunks + 1; ++step) {
            if (step < chunks) {
                const Bytes inbox = scratch.subspan(step % 2 * chunk_bytes_, chunk_of(sum, chunk_bytes_, step).size());
                receive(window[step % 2], inbox, from, Lane::results);
                send(window[step % 2], chunk_of(out, chunk_bytes_, step), to, Lane::results);
            }
            if (step >= 1) {
                wait(window[(step - 1) % 2]);
                const Bytes own = chunk_of(sum, chunk_bytes_, step - 1);
                const std::array<const std::byte*, 2> both{scratch.data() + (step - 1) % 2 * chunk_bytes_, own.data()};
                reduce_in_order(both, own.data(), own.size() / size_of(type), type,
                                op == ReduceOp::average ? ReduceOp::sum : op);
            }
        }
    }

    void finish(Bytes sum, DataType type, ReduceOp op) const {
        if (op == ReduceOp::average) {
            divide(sum.data(), sum.size() / size_of(type), type, size_);
        }
    }

    /// Every rank fills its own part; afterwards all parts are filled everywhere.
    void gather(const std::vector<Bytes>& parts) {
        std::array<Transfers, 2> window;
        const std::size_t chunks = chunks_in(longest(parts), chunk_bytes_);
        for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
            post_gather(window[chunk % 2], parts, chunk);
            wait(window[(chunk + 1) % 2]);
        }
        wait(window[(chunks + 1) % 2]);
    }

    /// Everybody sends everything to everybody, and all compute the same.
    void reduce_small(const Buffer& buffer, ReduceOp op) {
        const std::size_t stride = buffer.bytes();
        const Bytes scratch = scratch_of(stride * static_cast<std::size_t>(size_));
        std::vector<Bytes> parts;
        std::vector<const std::byte*> sources;
        for (std::size_t peer = 0; peer < static_cast<std::size_t>(size_); ++peer) {
            parts.push_back(scratch.subspan(peer * stride, stride));
            sources.push_back(parts.back().data());
        }
        auto* const data = static_cast<std::byte*>(buffer.data);
        std::copy_n(data, stride, parts[static_cast<std::size_t>(rank_)].data());
        gather(parts);
        reduce_in_order(sources, data, buffer.count, buffer.type, op);
    }

    /// Chunk by chunk: every rank sends its contribution to the slice's owner, who reduces and, for an all-reduce,
    /// sends the result to all while the next chunk's contributions are under way.
    void reduce_slices(const Buffer& buffer, std::span<const Slice> cut, ReduceOp op, bool gather_results) {
        const std::vector<Bytes> slices = parts_of(buffer, cut);
        const std::size_t chunks = chunks_in(longest(slices), chunk_bytes_);
        const std::size_t half = chunk_bytes_ * static_cast<std::size_t>(size_);
        const Bytes scratch = scratch_of(2 * half);
        std::array<Transfers, 2> contributions;
        std::array<Transfers, 2> results;
        for (std::size_t step = 0; step < chunks + 2; ++step) {
            if (step < chunks) {
                post_contributions(contributions[step % 2], slices, scratch.subspan(step % 2 * half, half), step);
            }
            if (step >= 1 && step <= chunks) {
                const std::size_t chunk = step - 1;
                wait(contributions[chunk % 2]);
                reduce_own_chunk(slices, scratch.subspan(chunk % 2 * half, half), chunk, buffer.type, op);
                if (gather_results) {
                    post_gather(results[chunk % 2], slices, chunk);
                }
            }
            if (step >= 2) {
                wait(results[step % 2]);
            }
        }
    }

    /// `inbox` has room for one chunk from each rank.
    void post_contributions(Transfers& transfers, const std::vector<Bytes>& slices, Bytes inbox, std::size_t chunk) {
        const std::size_t own_bytes = chunk_of(slices[static_cast<std::size_t>(rank_)], chunk_bytes_, chunk).size();
        for (int distance = 1; distance < size_; ++distance) {
            const int from = wrapped(rank_ - distance);
            const int to = wrapped(rank_ + distance);
            receive(transfers, inbox.subspan(static_cast<std::size_t>(from) * chunk_bytes_, own_bytes), from,
                    Lane::contributions);
            send(transfers, chunk_of(slices[static_cast<std::size_t>(to)], chunk_bytes_, chunk), to,
                 Lane::contributions);
        }
    }

    void post_gather(Transfers& transfers, const std::vector<Bytes>& parts, std::size_t chunk) {
        for (int distance = 1; distance < size_; ++distance) {
            const int from = wrapped(rank_ - distance);
            const int to = wrapped(rank_ + distance);
            receive(transfers, chunk_of(parts[static_cast<std::size_t>(from)], chunk_bytes_, chunk), from,
                    Lane::results);
            send(transfers, chunk_of(parts[static_cast<std::size_t>(rank_)], chunk_bytes_, chunk), to, Lane::results);
        }
    }

    void reduce_own_chunk(const std::vector<Bytes>& slices, Bytes inbox, std::size_t chunk, DataType type,
                          ReduceOp op) const {
        const Bytes own = chunk_of(slices[static_cast<std::size_t>(rank_)], chunk_bytes_, chunk);
        std::vector<const std::byte*> sources;
        sources.reserve(static_cast<std::size_t>(size_));
        for (int peer = 0; peer < size_; ++peer) {
            sources.push_back(peer == rank_ ? own.data()
                                            : inbox.data() + static_cast<std::size_t>(peer) * chunk_bytes_);
        }
        reduce_in_order(sources, own.data(), own.size() / size_of(type), type, op);
    }

    /// Binomial tree. With ranks counted from the root, a rank's parent has its lowest set bit cleared, and its
    /// children have one lower bit set; the child with the largest subtree is served first.
    void broadcast_along_tree(Bytes data, int root) {
        const int position = wrapped(rank_ - root);
        const int reach =
            position == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size_))) : position & -position;
        std::vector<int> children;
        for (int bit = reach / 2; bit > 0; bit /= 2) {
            if (position + bit < size_) {
                children.push_back(wrapped(position + bit + root));
            }
        }
        const int parent = wrapped(position - reach + root);

        std::array<Transfers, 2> incoming;
        std::array<Transfers, 2> outgoing;
        const std::size_t chunks = chunks_in(data.size(), chunk_bytes_);
        for (std::size_t step = 0; step < chunks + 1; ++step) {
            if (position != 0 && step < chunks) {
                receive(incoming[step % 2], chunk_of(data, chunk_bytes_, step), parent, Lane::results);
            }
            if (step >= 1) {
                const std::size_t chunk = step - 1;
                wait(incoming[chunk % 2]);
                wait(outgoing[chunk % 2]);
                for (const int child : children) {
                    send(outgoing[chunk % 2], chunk_of(data, chunk_bytes_, chunk), child, Lane::results);
                }
            }
        }
        for (Transfers& transfers : outgoing) {
            wait(transfers);
        }
    }

    void send(Transfers& transfers, ConstBytes bytes, int peer, Lane lane) {
        if (!bytes.empty()) {
            transfers.send(comm_, bytes, world_rank(peer), tag(lane));
            sent_bytes_ += bytes.size();
        }
    }

    void receive(Transfers& transfers, Bytes bytes, int peer, Lane lane) {
        if (!bytes.empty()) {
            transfers.receive(comm_, bytes, world_rank(peer), tag(lane));
        }
    }

    void wait(Transfers& transfers) {
        Backoff backoff(patience_);
        while (!transfers.done()) {
            bool progressed = false;
            try {
                progressed = transfers.poll();
            } catch (const base::Error& error) {
                throw base::Error(base::str(describe(), ": ", error.what()));
            }
            if (progressed) {
                continue;
            }
            if (Clock::now() > operation().deadline) {
                throw_late(ranks_behind(transfers));
            }
            backoff.pause();
        }
        transfers.clear();
    }

    std::vector<Rank> ranks_behind(const Transfers& transfers) const {
        std::vector<Rank> ranks;
        for (const int peer : transfers.missing_peers()) {
            ranks.push_back(
                Rank{static_cast<std::int32_t>(std::ranges::find(world_ranks_, peer) - world_ranks_.begin())});
        }
        return ranks;
    }

    int world_rank(int peer) const { return world_ranks_[static_cast<std::size_t>(peer)]; }

    /// Consecutive operations differ, so that ranks out of step run into the deadline instead of taking wrong bytes.
    /// Within MPI's guaranteed upper bound of 32767.
    int tag(Lane lane) const { return static_cast<int>(operation().sequence % 16384) * 2 + static_cast<int>(lane); }

    int wrapped(int rank) const { return (rank % size_ + size_) % size_; }

    static std::size_t longest(const std::vector<Bytes>& parts) {
        return std::ranges::max(parts, {}, &Bytes::size).size();
    }

    /// Kept from one operation to the next; its content is not.
    Bytes scratch_of(std::size_t bytes) {
        if (scratch_bytes_ < bytes) {
            scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
            scratch_bytes_ = bytes;
        }
        return {scratch_.get(), bytes};
    }

    MpiAllReduce algorithm_;
    Patience patience_;
    int rank_;
    int size_;
    std::uint64_t sent_bytes_ = 0;
    std::vector<int> world_ranks_;
    std::size_t chunk_bytes_ = 0;
    MPI_Comm comm_ = MPI_COMM_NULL;
    std::unique_ptr<std::byte[]> scratch_;
    std::size_t scratch_bytes_ = 0;
};

}  // namespace

std::string_view name_of(MpiAllReduce algorithm) {
    switch (algorithm) {
        case MpiAllReduce::direct:
            return "direct";
        case MpiAllReduce::ring:
            return "ring";
        case MpiAllReduce::halving_doubling:
            return "halving_doubling";
        case MpiAllReduce::central:
            return "central";
    }
    LOCKSTEP_CHECK(false, "algorithm ", static_cast<int>(algorithm));
}

MpiAllReduce mpi_all_reduce_of(std::string_view name) {
    std::vector<std::string> names;
    for (const MpiAllReduce algorithm : mpi_all_reduces) {
        if (name_of(algorithm) == name) {
            return algorithm;
        }
        names.emplace_back(name_of(algorithm));
    }
    throw base::UsageError(
        base::str("unknown all-reduce algorithm \"", name, "\"; there are ", base::join(names, ", ")));
}

std::unique_ptr<Communicator> make_mpi_communicator(std::string purpose, std::chrono::milliseconds timeout,
                                                    std::span<const Rank> members, std::shared_ptr<RankLog> log,
                                                    MpiAllReduce algorithm, Patience patience) {
    LOCKSTEP_CHECK(mpi_is_running(), "communicator ", purpose, " needs a MpiGuard");
    require_thread_multiple();
    int world_rank = 0;
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank), "MPI_Comm_rank");
    CommunicatorIdentity identity{std::move(purpose), Rank{0}, {}, timeout, std::move(log)};
    for (const Rank member : members) {
        if (index_of(member) == world_rank) {
            identity.rank = Rank{static_cast<std::int32_t>(identity.members.size())};
        }
        identity.members.push_back(
            {index_of(member), index_of(member) == world_rank ? base::host_name() : "a host not known yet"});
    }
    LOCKSTEP_CHECK(std::ranges::find(members, Rank{world_rank}) != members.end(), "rank ", world_rank,
                   " is no member of ", identity.purpose);
    auto communicator = std::make_unique<MpiCommunicator>(std::move(identity), algorithm, patience);
    communicator->exchange_host_names();
    return communicator;
}

std::unique_ptr<Communicator> make_mpi_communicator(std::string purpose, std::chrono::milliseconds timeout,
                                                    std::shared_ptr<RankLog> log, MpiAllReduce algorithm,
                                                    Patience patience) {
    LOCKSTEP_CHECK(mpi_is_running(), "communicator ", purpose, " needs a MpiGuard");
    int size = 0;
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    std::vector<Rank> all;
    all.reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
        all.push_back(Rank{rank});
    }
    return make_mpi_communicator(std::move(purpose), timeout, all, std::move(log), algorithm, patience);
}

}  // namespace lockstep::comm
