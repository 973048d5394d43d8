#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace lockstep::comm {

class RankLog;

/// It is others that failed: they did not come in time, or gave up before.
class PeerError : public base::Error {
  public:
    using base::Error::Error;
};

/// A process's place in a communicator. A type of its own, so that it is not mixed up with counts and positions.
enum class Rank : std::int32_t {};
constexpr std::int32_t index_of(Rank rank) {
    return static_cast<std::int32_t>(rank);
}

enum class DataType : std::uint8_t { f32, f64, f16, bf16, i32, i64, u8 };
/// Integer sums wrap around; an integer average rounds toward zero. A NaN on any rank makes minimum and maximum NaN.
enum class ReduceOp : std::uint8_t { sum, average, min, max };

std::size_t size_of(DataType type);
std::string_view name_of(DataType type);
std::string_view name_of(ReduceOp op);

template <typename T>
constexpr DataType data_type_of();
template <>
constexpr DataType data_type_of<float>() {
    return DataType::f32;
}
template <>
constexpr DataType data_type_of<double>() {
    return DataType::f64;
}
template <>
constexpr DataType data_type_of<std::int32_t>() {
    return DataType::i32;
}
template <>
constexpr DataType data_type_of<std::int64_t>() {
    return DataType::i64;
}
template <>
constexpr DataType data_type_of<std::uint8_t>() {
    return DataType::u8;
}

/// Elements in memory that somebody else owns; contiguous.
struct Buffer {
    void* data = nullptr;
    std::size_t count = 0;
    DataType type = DataType::f32;

    std::size_t bytes() const { return count * size_of(type); }
    template <typename T>
    static Buffer of(std::span<T> values) {
        return {values.data(), values.size(), data_type_of<T>()};
    }
};

/// Elements [begin, end) of a buffer, such as the part that a rank reduces, owns or contributes.
struct Slice {
    std::size_t begin, end;
    std::size_t count() const { return end - begin; }
    bool operator==(const Slice&) const = default;
};

/// The slice of a buffer, sharing its memory.
Buffer part_of(const Buffer& buffer, const Slice& slice);

/// The slice that belongs to `rank` when `count` elements are cut evenly for `size` ranks: sizes differ by at most one,
/// larger ones first. No divisibility rule.
Slice slice_of(std::size_t count, std::int32_t size, Rank rank);
/// slice_of for every rank.
std::vector<Slice> even_slices(std::size_t count, std::int32_t size);

enum class OperationKind : std::uint8_t {
    set_up,
    all_reduce,
    reduce_scatter,
    all_gather,
    broadcast,
    barrier,
    all_gather_bytes
};
std::string_view name_of(OperationKind kind);

/// One call of a collective, as its messages and its deadline see it.
struct Operation {
    OperationKind kind = OperationKind::set_up;
    ReduceOp op = ReduceOp::sum;
    DataType type = DataType::u8;
    std::size_t count = 0;
    std::string name;
    std::uint64_t sequence = 0;  ///< in its communicator, counted from 1
    std::chrono::steady_clock::time_point deadline;

    std::size_t bytes() const { return count * size_of(type); }
    /// "all_reduce (sum of f32) "bucket 3", operation 12, 25.0 MiB".
    std::string describe() const;
};

/// A rank of a communicator, as messages name it.
struct Member {
    std::int32_t world_rank = 0;  ///< in the whole job
    std::string host;

    /// "rank 3 on node7".
    std::string name() const;
};

/// What this rank sent since its communicator was made, as far as the communicator counts it.
struct SentData {
    std::uint64_t bytes = 0;  ///< payload of messages
    /// Of values that were narrowed to 16 bits: the sums of squares of what rounding changed, and of the values.
    double squared_error = 0, squared_values = 0;

    /// Root of the mean square of what rounding changed, relative to that of the values.
    double relative_error() const;
    SentData operator-(const SentData& earlier) const;
    SentData operator+(const SentData& other) const;
};

/// What the collectives of one purpose (gradients, batch norm, control) have in common, whoever carries them.
struct CommunicatorIdentity {
    std::string purpose;  ///< a name for messages
    Rank rank{0};         ///< of this process or thread, in the group
    std::vector<Member> members;
    std::chrono::milliseconds timeout{0};    ///< deadline of one operation
    std::shared_ptr<RankLog> log = nullptr;  ///< where operations are written before they wait; none: nowhere
};

/// A group of ranks that call the same operations in the same order. Every method that takes a name is collective over
/// the group, blocks until this rank's part is done, is called by one thread at a time, and carries its name for
/// messages. An operation that outlasts the deadline throws PeerError with the operation's name and sequence
/// number, bytes, rank and host; the communicator then refuses further calls, and the buffer must be kept until the job
/// ends (see run_ranks), since a late peer may still write to it. Results of reductions are bitwise the same on all
/// ranks and from run to run.
class Communicator {
  public:
    virtual ~Communicator();
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    Rank rank() const { return identity_.rank; }
    std::int32_t size() const { return static_cast<std::int32_t>(identity_.members.size()); }
    const CommunicatorIdentity& identity() const { return identity_; }

    /// In place. 16-bit types accumulate in FP32. For an average of integers their sum must fit the type.
    void all_reduce(Buffer buffer, ReduceOp op, std::string_view name);

    /// `slices`, the same on every rank, gives each rank a part of the buffer; parts don't overlap and may be empty.
    /// Afterwards this rank's own part is reduced over all ranks; the rest is undefined.
    void reduce_scatter(Buffer buffer, std::span<const Slice> slices, ReduceOp op, std::string_view name);
    /// With even_slices.
    void reduce_scatter(Buffer buffer, ReduceOp op, std::string_view name);

    /// Each rank brings its own part of the buffer (see reduce_scatter); afterwards all parts are filled everywhere,
    /// and elements in no part are untouched.
    void all_gather(Buffer buffer, std::span<const Slice> slices, std::string_view name);
    /// With even_slices.
    void all_gather(Buffer buffer, std::string_view name);

    void broadcast(Buffer buffer, Rank root, std::string_view name);
    void barrier(std::string_view name);

    /// Concatenates every rank's bytes (of any length) in rank order, on all ranks.
    std::vector<std::vector<std::byte>> all_gather_bytes(std::span<const std::byte> mine, std::string_view name);

    /// The same of texts.
    std::vector<std::string> all_gather_texts(std::string_view mine, std::string_view name);

    /// Not collective; by the thread that calls operations.
    virtual SentData sent() const;

    /// Zeroed memory, aligned to a page, on which collectives of this communicator copy least; any other memory is
    /// right, too. Collective: all ranks ask for the same size. It may outlive the communicator.
    virtual std::shared_ptr<std::byte> allocate(std::size_t bytes, std::string_view name);

  protected:
    explicit Communicator(CommunicatorIdentity identity);

    virtual void do_all_reduce(const Buffer& buffer, ReduceOp op) = 0;
    virtual void do_reduce_scatter(const Buffer& buffer, std::span<const Slice> slices, ReduceOp op) = 0;
    virtual void do_all_gather(const Buffer& buffer, std::span<const Slice> slices) = 0;
    virtual void do_broadcast(const Buffer& buffer, Rank root) = 0;
    virtual void do_barrier() = 0;
    virtual std::vector<std::vector<std::byte>> do_all_gather_bytes(std::span<const std::byte> mine) = 0;

    /// From the call of an operation to its success. After a failure no further one is let in, since the ranks are no
    /// longer in step.
    class OperationScope {
      public:
        /// Fills in the sequence number and the deadline.
        OperationScope(Communicator& owner, Operation operation);
        ~OperationScope();
        OperationScope(const OperationScope&) = delete;
        OperationScope& operator=(const OperationScope&) = delete;

      private:
        Communicator& owner_;
        int exceptions_;
    };

    /// The operation under way, or the last one.
    const Operation& operation() const { return operation_; }
    /// An operation has failed, or is under way.
    bool in_operation() const { return in_operation_; }
    /// "gradients: all_reduce (sum of f32) "bucket 3", operation 12, 25.0 MiB, on rank 1 on node7".
    std::string describe() const;
    /// Member::name of a rank of this communicator.
    std::string name_of_member(Rank rank) const;
    /// The deadline has passed while waiting for `behind`.
    [[noreturn]] void throw_late(std::span<const Rank> behind) const;
    void set_hosts(std::vector<std::string> hosts);

  private:
    void check_slices(const Buffer& buffer, std::span<const Slice> slices) const;

    CommunicatorIdentity identity_;
    Operation operation_;
    bool in_operation_ = false;
    std::size_t place_in_log_ = 0;
};

/// Size one: everything is already reduced. For programs that run without mpirun.
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace lockstep::comm
