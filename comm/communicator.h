#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm {

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

/// A group of ranks that call the same operations in the same order. Every method but rank() and size() is collective
/// over the group, blocks until this rank's part is done, is called by one thread at a time, and carries a name for
/// messages. An operation that outlasts the deadline throws base::Error with the operation's name and sequence number,
/// bytes, rank and host; the communicator then refuses further calls, and the buffer must be kept until the job ends
/// (see run_ranks), since a late peer may still write to it. Results of reductions are bitwise the same on all ranks
/// and from run to run.
class Communicator {
  public:
    virtual ~Communicator() = default;
    virtual Rank rank() const = 0;
    virtual std::int32_t size() const = 0;

    /// In place. 16-bit types accumulate in FP32.
    virtual void all_reduce(Buffer buffer, ReduceOp op, std::string_view name) = 0;
    /// `buffer` holds size() slices (slice_of); afterwards this rank's slice is reduced, the rest is undefined.
    virtual void reduce_scatter(Buffer buffer, ReduceOp op, std::string_view name) = 0;
    /// `buffer` holds size() slices (slice_of), of which this rank fills its own; afterwards all are filled.
    virtual void all_gather(Buffer buffer, std::string_view name) = 0;
    virtual void broadcast(Buffer buffer, Rank root, std::string_view name) = 0;
    virtual void barrier(std::string_view name) = 0;

    /// Concatenates every rank's bytes (of any length) in rank order, on all ranks.
    virtual std::vector<std::vector<std::byte>> all_gather_bytes(std::span<const std::byte> mine,
                                                                 std::string_view name) = 0;
};

/// Elements [begin, end) of the slice that belongs to `rank` when `count` elements are cut for `size` ranks: sizes
/// differ by at most one, larger ones first. No divisibility rule.
struct Slice {
    std::size_t begin, end;
    std::size_t count() const { return end - begin; }
};
Slice slice_of(std::size_t count, std::int32_t size, Rank rank);

/// Size one: everything is already reduced. For programs that run without mpirun.
std::unique_ptr<Communicator> make_single_communicator();

}  // namespace lockstep::comm
