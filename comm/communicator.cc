#include "comm/communicator.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>

#include "base/error.h"
#include "base/resources.h"
#include "base/text.h"
#include "comm/rank_log.h"

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

Buffer part_of(const Buffer& buffer, const Slice& slice) {
    return {static_cast<std::byte*>(buffer.data) + slice.begin * size_of(buffer.type), slice.count(), buffer.type};
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

std::vector<Slice> even_slices(std::size_t count, std::int32_t size) {
    std::vector<Slice> slices;
    slices.reserve(static_cast<std::size_t>(size));
    for (std::int32_t rank = 0; rank < size; ++rank) {
        slices.push_back(slice_of(count, size, Rank{rank}));
    }
    return slices;
}

std::string_view name_of(OperationKind kind) {
    switch (kind) {
        case OperationKind::set_up:
            return "set-up";
        case OperationKind::all_reduce:
            return "all_reduce";
        case OperationKind::reduce_scatter:
            return "reduce_scatter";
        case OperationKind::all_gather:
            return "all_gather";
        case OperationKind::broadcast:
            return "broadcast";
        case OperationKind::barrier:
            return "barrier";
        case OperationKind::all_gather_bytes:
            return "all_gather_bytes";
    }
    LOCKSTEP_CHECK(false, "operation ", static_cast<int>(kind));
}

std::string Member::name() const {
    return base::str("rank ", world_rank, " on ", host);
}

double SentData::relative_error() const {
    return squared_values > 0 ? std::sqrt(squared_error / squared_values) : 0;
}

SentData SentData::operator-(const SentData& earlier) const {
    return {bytes - earlier.bytes, squared_error - earlier.squared_error, squared_values - earlier.squared_values};
}

SentData SentData::operator+(const SentData& other) const {
    return {bytes + other.bytes, squared_error + other.squared_error, squared_values + other.squared_values};
}

std::string Operation::describe() const {
    const bool reduces = kind == OperationKind::all_reduce || kind == OperationKind::reduce_scatter;
    return base::str(name_of(kind), reduces ? base::str(" (", name_of(op), " of ", name_of(type), ")") : "", " \"",
                     name, "\", operation ", sequence, ", ", base::human_bytes(static_cast<double>(bytes())));
}

Communicator::Communicator(CommunicatorIdentity identity) : identity_(std::move(identity)) {
    if (identity_.log) {
        place_in_log_ = identity_.log->open(identity_.purpose);
    }
}

Communicator::~Communicator() {
    if (identity_.log) {
        identity_.log->close(place_in_log_);
    }
}

Communicator::OperationScope::OperationScope(Communicator& owner, Operation operation)
    : owner_(owner), exceptions_(std::uncaught_exceptions()) {
    if (owner.in_operation_) {
        throw base::Error(base::str(name_of(operation.kind), " \"", operation.name, "\" on communicator \"",
                                    owner.identity_.purpose,
                                    "\" is not possible after this failed or unfinished one: ", owner.describe()));
    }
    operation.sequence = owner.operation_.sequence + 1;
    operation.deadline = std::chrono::steady_clock::now() + owner.identity_.timeout;
    owner.operation_ = std::move(operation);
    owner.in_operation_ = true;
    if (owner.identity_.log) {
        owner.identity_.log->begin(owner.place_in_log_, owner.operation_);
    }
}

Communicator::OperationScope::~OperationScope() {
    if (std::uncaught_exceptions() == exceptions_) {
        owner_.in_operation_ = false;
        if (owner_.identity_.log) {
            owner_.identity_.log->end(owner_.place_in_log_);
        }
    }
}

void Communicator::all_reduce(Buffer buffer, ReduceOp op, std::string_view name) {
    const OperationScope scope(*this,
                               {OperationKind::all_reduce, op, buffer.type, buffer.count, std::string(name), 0, {}});
    do_all_reduce(buffer, op);
}

void Communicator::reduce_scatter(Buffer buffer, std::span<const Slice> slices, ReduceOp op, std::string_view name) {
    check_slices(buffer, slices);
    const OperationScope scope(
        *this, {OperationKind::reduce_scatter, op, buffer.type, buffer.count, std::string(name), 0, {}});
    do_reduce_scatter(buffer, slices, op);
}

void Communicator::reduce_scatter(Buffer buffer, ReduceOp op, std::string_view name) {
    reduce_scatter(buffer, even_slices(buffer.count, size()), op, name);
}

void Communicator::all_gather(Buffer buffer, std::span<const Slice> slices, std::string_view name) {
    check_slices(buffer, slices);
    const OperationScope scope(*this,
                               {OperationKind::all_gather, {}, buffer.type, buffer.count, std::string(name), 0, {}});
    do_all_gather(buffer, slices);
}

void Communicator::all_gather(Buffer buffer, std::string_view name) {
    all_gather(buffer, even_slices(buffer.count, size()), name);
}

void Communicator::broadcast(Buffer buffer, Rank root, std::string_view name) {
    LOCKSTEP_CHECK(0 <= index_of(root) && index_of(root) < size(), "root ", index_of(root), " of broadcast ", name);
    const OperationScope scope(*this,
                               {OperationKind::broadcast, {}, buffer.type, buffer.count, std::string(name), 0, {}});
    do_broadcast(buffer, root);
}

void Communicator::barrier(std::string_view name) {
    const OperationScope scope(*this, {OperationKind::barrier, {}, DataType::u8, 0, std::string(name), 0, {}});
    do_barrier();
}

std::vector<std::vector<std::byte>> Communicator::all_gather_bytes(std::span<const std::byte> mine,
                                                                   std::string_view name) {
    const OperationScope scope(
        *this, {OperationKind::all_gather_bytes, {}, DataType::u8, mine.size(), std::string(name), 0, {}});
    return do_all_gather_bytes(mine);
}

std::vector<std::string> Communicator::all_gather_texts(std::string_view mine, std::string_view name) {
    std::vector<std::string> texts;
    for (const auto& bytes : all_gather_bytes(std::as_bytes(std::span(mine)), name)) {
        texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return texts;
}

SentData Communicator::sent() const {
    return {};
}

std::shared_ptr<std::byte> Communicator::allocate(std::size_t bytes, std::string_view name) {
    constexpr std::size_t page = 4096;
    const std::size_t rounded = std::max((bytes + page - 1) / page * page, page);
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(page, rounded));
    if (memory == nullptr) {
        throw base::Error(base::str(base::process_name(), ": no memory for ", name, ", ",
                                    base::human_bytes(static_cast<double>(rounded))));
    }
    std::fill_n(memory, rounded, std::byte{0});
    return {memory, [](std::byte* bytes_of_it) { std::free(bytes_of_it); }};
}

std::string Communicator::describe() const {
    return base::str(identity_.purpose, ": ", operation_.describe(), ", on ", name_of_member(rank()));
}

std::string Communicator::name_of_member(Rank rank) const {
    return identity_.members.at(static_cast<std::size_t>(index_of(rank))).name();
}

void Communicator::throw_late(std::span<const Rank> behind) const {
    std::vector<std::string> names;
    for (const Rank rank : behind) {
        names.push_back(name_of_member(rank));
    }
    throw PeerError(
        base::str(describe(), " is not done after ",
                  base::human_duration(std::chrono::duration<double>(identity_.timeout).count()), "; waiting for ",
                  base::join(names, ", "),
                  ". Look there for the cause; where a rank is only slow, raise the communication timeout"));
}

void Communicator::set_hosts(std::vector<std::string> hosts) {
    LOCKSTEP_CHECK_EQ(hosts.size(), identity_.members.size());
    for (std::size_t i = 0; i < hosts.size(); ++i) {
        identity_.members[i].host = std::move(hosts[i]);
    }
}

void Communicator::check_slices(const Buffer& buffer, std::span<const Slice> slices) const {
    LOCKSTEP_CHECK_EQ(slices.size(), identity_.members.size(), "one slice for each rank");
    std::vector<Slice> sorted(slices.begin(), slices.end());
    std::erase_if(sorted, [](const Slice& slice) { return slice.count() == 0; });
    std::ranges::sort(sorted, {}, &Slice::begin);
    std::size_t end = 0;
    for (const Slice& slice : sorted) {
        LOCKSTEP_CHECK(end <= slice.begin && slice.begin <= slice.end && slice.end <= buffer.count, "slice ",
                       slice.begin, "..", slice.end, " of ", buffer.count, " elements, after one that ends at ", end);
        end = slice.end;
    }
}

namespace {

class SingleCommunicator final : public Communicator {
  public:
    SingleCommunicator()
        : Communicator({"single", Rank{0}, {{0, base::host_name()}}, std::chrono::hours(1), nullptr}) {}

  private:
    void do_all_reduce(const Buffer&, ReduceOp) override {}
    void do_reduce_scatter(const Buffer&, std::span<const Slice>, ReduceOp) override {}
    void do_all_gather(const Buffer&, std::span<const Slice>) override {}
    void do_broadcast(const Buffer&, Rank) override {}
    void do_barrier() override {}
    std::vector<std::vector<std::byte>> do_all_gather_bytes(std::span<const std::byte> mine) override {
        return {{mine.begin(), mine.end()}};
    }
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
    return std::make_unique<SingleCommunicator>();
}

}  // namespace lockstep::comm
