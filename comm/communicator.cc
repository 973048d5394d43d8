#include "comm/communicator.h"

#include <algorithm>

#include "base/error.h"

namespace lockstep::comm {

std::size_t size_of(DataType type) {
    switch (type) {
        case DataType::f64:
        case DataType::i64:
            return 8;
        case DataType::f32:
        case DataType::i32:
            return 4;
        case DataType::f16:
        case DataType::bf16:
            return 2;
        case DataType::u8:
            return 1;
    }
    LOCKSTEP_CHECK(false, "data type ", static_cast<int>(type));
}

std::string_view name_of(DataType type) {
    switch (type) {
        case DataType::f32:
            return "f32";
        case DataType::f64:
            return "f64";
        case DataType::f16:
            return "f16";
        case DataType::bf16:
            return "bf16";
        case DataType::i32:
            return "i32";
        case DataType::i64:
            return "i64";
        case DataType::u8:
            return "u8";
    }
    LOCKSTEP_CHECK(false, "data type ", static_cast<int>(type));
}

std::string_view name_of(ReduceOp op) {
    switch (op) {
        case ReduceOp::sum:
            return "sum";
        case ReduceOp::average:
            return "average";
        case ReduceOp::min:
            return "min";
        case ReduceOp::max:
            return "max";
    }
    LOCKSTEP_CHECK(false, "reduction ", static_cast<int>(op));
}

Slice slice_of(std::size_t count, std::int32_t size, Rank rank) {
    LOCKSTEP_CHECK(0 <= index_of(rank) && index_of(rank) < size, "rank ", index_of(rank), " of ", size);
    const auto ranks = static_cast<std::size_t>(size);
    const auto index = static_cast<std::size_t>(index_of(rank));
    const std::size_t smaller = count / ranks;
    const std::size_t larger_slices = count % ranks;
    const std::size_t begin = index * smaller + std::min(index, larger_slices);
    return {begin, begin + smaller + (index < larger_slices ? 1 : 0)};
}

namespace {

class SingleCommunicator final : public Communicator {
  public:
    Rank rank() const override { return Rank{0}; }
    std::int32_t size() const override { return 1; }
    void all_reduce(Buffer, ReduceOp, std::string_view) override {}
    void reduce_scatter(Buffer, ReduceOp, std::string_view) override {}
    void all_gather(Buffer, std::string_view) override {}
    void broadcast(Buffer, Rank root, std::string_view name) override {
        LOCKSTEP_CHECK_EQ(index_of(root), 0, "root of broadcast ", name);
    }
    void barrier(std::string_view) override {}
    std::vector<std::vector<std::byte>> all_gather_bytes(std::span<const std::byte> mine, std::string_view) override {
        return {{mine.begin(), mine.end()}};
    }
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
    return std::make_unique<SingleCommunicator>();
}

}  // namespace lockstep::comm
