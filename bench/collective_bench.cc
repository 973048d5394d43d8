#include "bench/collective_bench.h"

#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/resources.h"
#include "base/text.h"
#include "comm/mpi.h"
#include "comm/mpi_check.h"
#include "comm/reduce.h"

namespace lockstep::bench {

namespace {

using comm::Buffer;
using comm::Communicator;
using comm::DataType;
using comm::OperationKind;
using comm::Rank;
using comm::ReduceOp;

constexpr auto bench_timeout = std::chrono::minutes(10);
/// Below, an operation is too short for the clock: many run back to back and share the time.
constexpr std::size_t single_bytes = 64 << 10;
constexpr std::size_t batch_of_small = 50;
/// Operations over which the bytes of network interfaces are counted.
constexpr int counted_operations = 3;

MPI_Datatype mpi_type_of(DataType type) {
    switch (type) {
        case DataType::f32:
            return MPI_FLOAT;
        case DataType::f64:
            return MPI_DOUBLE;
        case DataType::i32:
            return MPI_INT32_T;
        case DataType::i64:
            return MPI_INT64_T;
        case DataType::u8:
            return MPI_UINT8_T;
        default:
            return MPI_DATATYPE_NULL;  // MPI has no 16-bit floating-point type
    }
}

struct Contender {
    std::string name;
    std::shared_ptr<std::byte> memory;
    std::function<void(const Buffer&)> run;
    bool only_first_rank = false;
    bool is_verified = true;
    std::shared_ptr<Communicator> ranks = nullptr;  ///< made for it alone
};

/// Whole numbers below a modulus that keeps their sum over the ranks exact in the type.
double value_at(DataType type, std::int32_t ranks, std::int32_t rank, std::size_t i) {
    const double most = type == DataType::bf16 || type == DataType::u8 ? 255 : type == DataType::f16 ? 2047 : 1e6;
    const auto modulus = static_cast<std::size_t>(std::clamp(most / ranks + 1, 1.0, 13.0));
    return static_cast<double>((i * 7 + static_cast<std::size_t>(rank) * 3) % modulus);
}

template <typename T, typename Value>
void fill(const Buffer& buffer, Value value) {
    auto* const values = static_cast<T*>(buffer.data);
    for (std::size_t i = 0; i < buffer.count; ++i) {
        values[i] = static_cast<T>(value(i));
    }
}

template <typename T, typename Value>
std::int64_t differences(const Buffer& buffer, Value expected) {
    std::int64_t wrong = 0;
    const auto* const values = static_cast<const T*>(buffer.data);
    for (std::size_t i = 0; i < buffer.count; ++i) {
        wrong += values[i] == static_cast<T>(expected(i)) ? 0 : 1;
    }
    return wrong;
}

/// Each rank's slice against what its owner brought: value(owner, element).
template <typename T, typename Value>
std::int64_t differences_of_slices(const Buffer& buffer, std::int32_t ranks, Value value) {
    std::int64_t wrong = 0;
    for (std::int32_t owner = 0; owner < ranks; ++owner) {
        const comm::Slice slice = comm::slice_of(buffer.count, ranks, Rank{owner});
        const Buffer part{static_cast<T*>(buffer.data) + slice.begin, slice.count(), buffer.type};
        wrong += differences<T>(part, [&](std::size_t i) { return value(owner, slice.begin + i); });
    }
    return wrong;
}

struct Half {
    std::uint16_t bits;
    explicit Half(double value) : bits(comm::float_to_f16(static_cast<float>(value))) {}
    bool operator==(const Half&) const = default;
};

struct Bfloat {
    std::uint16_t bits;
    explicit Bfloat(double value) : bits(comm::float_to_bf16(static_cast<float>(value))) {}
    bool operator==(const Bfloat&) const = default;
};

template <typename Visit>
auto with_type(DataType type, Visit visit) {
    switch (type) {
        case DataType::f32:
            return visit.template operator()<float>();
        case DataType::f64:
            return visit.template operator()<double>();
        case DataType::f16:
            return visit.template operator()<Half>();
        case DataType::bf16:
            return visit.template operator()<Bfloat>();
        case DataType::i32:
            return visit.template operator()<std::int32_t>();
        case DataType::i64:
            return visit.template operator()<std::int64_t>();
        case DataType::u8:
            return visit.template operator()<std::uint8_t>();
    }
    LOCKSTEP_CHECK(false, "data type ", static_cast<int>(type));
}

class Bench {
  public:
    Bench(const CollectivePlan& plan, const comm::JobCommunicators& job)
        : plan_(plan),
          job_(job),
          composed_(job.make("bench")),
          flat_(comm::mpi_is_running() ? comm::make_mpi_communicator("bench over MPI", bench_timeout)
                                       : comm::make_single_communicator()),
          is_composed_(job.topology().nodes() < job.topology().ranks()),
          is_one_node_(job.topology().nodes() == 1) {}

    std::vector<CollectiveRow> run() {
        std::vector<CollectiveRow> rows;
        for (const OperationKind operation : plan_.operations) {
            for (const DataType type : plan_.types) {
                for (const std::size_t bytes : plan_.bytes) {
                    const std::size_t count = std::max<std::size_t>(1, bytes / size_of(type));
                    const auto timed = time_size(operation, type, count);
                    rows.insert(rows.end(), timed.begin(), timed.end());
                }
            }
        }
        return rows;
    }

  private:
    std::vector<CollectiveRow> time_size(OperationKind operation, DataType type, std::size_t count) {
        std::vector<Contender> contenders = contenders_for(operation, type, count);
        std::vector<std::optional<std::int64_t>> wrong;
        double slowest_one = 1e-9;
        for (Contender& contender : contenders) {
            const Buffer buffer{contender.memory.get(), count, type};
            wrong.push_back(contender.is_verified ? std::optional(verify(contender, operation, buffer)) : std::nullopt);
            // The first call warms up; the second says how many fit into the time.
            static_cast<void>(time_once(contender, buffer));
            slowest_one =
                std::max(slowest_one, slowest(time_once(contender, buffer)) * static_cast<double>(batch_of(buffer)));
        }
        const auto rounds = static_cast<std::size_t>(std::clamp(plan_.seconds_per_size / slowest_one, 5.0, 2000.0));
        std::vector<std::vector<double>> times(contenders.size());
        for (std::size_t round = 0; round < rounds; ++round) {
            for (std::size_t turn = 0; turn < contenders.size(); ++turn) {
                const std::size_t i = (round + turn) % contenders.size();
                times[i].push_back(time_once(contenders[i], {contenders[i].memory.get(), count, type}));
            }
        }
        std::vector<CollectiveRow> rows;
        for (std::size_t i = 0; i < contenders.size(); ++i) {
            rows.push_back(row_of(contenders[i], operation, type, count, times[i], wrong[i]));
        }
        return rows;
    }

    CollectiveRow row_of(const Contender& contender, OperationKind operation, DataType type, std::size_t count,
                         std::vector<double>& times, std::optional<std::int64_t> wrong) {
        if (contender.only_first_rank && composed_->rank() != Rank{0}) {
            std::ranges::fill(times, 0.0);
        }
        composed_->all_reduce(Buffer::of(std::span(times)), ReduceOp::max, "times");
        if (wrong) {
            composed_->all_reduce(Buffer::of(std::span(&*wrong, 1)), ReduceOp::sum, "wrong elements");
        }
        std::ranges::sort(times);
        const std::size_t middle = times.size() / 2;
        const double median = times.size() % 2 == 1 ? times[middle] : (times[middle - 1] + times[middle]) / 2;
        const double p99 = times[std::min(times.size() - 1, times.size() * 99 / 100)];
        const Buffer buffer{nullptr, count, type};
        return {operation,      contender.name, type,
                buffer.bytes(), times.size(),   batch_of(buffer),
                times.front(),  median,         p99,
                times.back(),   wrong,          network_bytes_of(contender, {contender.memory.get(), count, type})};
    }

    std::vector<Contender> contenders_for(OperationKind operation, DataType type, std::size_t count) {
        const std::size_t bytes = count * size_of(type);
        std::vector<Contender> contenders;
        const auto add = [&](std::string name, Communicator& ranks, bool is_shared) {
            contenders.push_back({std::move(name), is_shared ? shared_memory(bytes) : own_memory(bytes),
                                  [&ranks, operation](const Buffer& buffer) { call(ranks, operation, buffer); }});
        };
        if (is_composed_) {
            add(is_one_node_ ? "shared" : "hierarchical", *composed_, true);
            add(is_one_node_ ? "staged" : "hierarchical staged", *composed_, false);
        }
        add(comm::mpi_is_running() ? "mpi" : "alone", *flat_, false);
        if (comm::mpi_is_running() && operation == OperationKind::all_reduce) {
            for (const comm::MpiAllReduce algorithm : plan_.algorithms) {
                add_own(contenders, base::str("mpi ", name_of(algorithm)), bytes,
                        comm::make_mpi_communicator("bench", bench_timeout, nullptr, algorithm));
            }
        }
        if (type == DataType::f32 && job_.uses_mpi() && operation != OperationKind::broadcast &&
            operation != OperationKind::all_gather) {
            for (const DataType wire : plan_.wires) {
                add_own(contenders, base::str(contenders.front().name, " ", name_of(wire)), bytes,
                        job_.make("bench", {.wire = wire}), operation);
            }
        }
        const bool mpi_can = mpi_type_of(type) != MPI_DATATYPE_NULL && count <= std::numeric_limits<int>::max();
        if (plan_.with_mpi && comm::mpi_is_running() && mpi_can && operation == OperationKind::all_reduce) {
            contenders.push_back({"peer:mpi", own_memory(bytes), [](const Buffer& buffer) {
                                      comm::check_mpi(
                                          MPI_Allreduce(MPI_IN_PLACE, buffer.data, static_cast<int>(buffer.count),
                                                        mpi_type_of(buffer.type), MPI_SUM, MPI_COMM_WORLD),
                                          "MPI_Allreduce");
                                  }});
        }
        const auto target = own_memory(bytes);
        contenders.push_back({"copy", own_memory(bytes),
                              [target](const Buffer& buffer) {
                                  std::memcpy(target.get(), buffer.data, buffer.bytes());
                                  // The compiler must not see that nobody reads the copy.
                                  asm volatile("" : : "r"(target.get()) : "memory");
                              },
                              /*only_first_rank=*/true, /*is_verified=*/false});
        return contenders;
    }

    void add_own(std::vector<Contender>& contenders, std::string name, std::size_t bytes,
                 std::shared_ptr<Communicator> ranks, OperationKind operation = OperationKind::all_reduce) {
        Contender contender{std::move(name), own_memory(bytes),
                            [&own = *ranks, operation](const Buffer& buffer) { call(own, operation, buffer); }};
        contender.ranks = std::move(ranks);
        contenders.push_back(std::move(contender));
    }

    /// Collective. All ranks of a machine read the same counters.
    std::optional<double> network_bytes_of(const Contender& contender, const Buffer& buffer) {
        if (job_.machines().nodes() == 1 || contender.only_first_rank || batch_of(buffer) > 1) {
            return std::nullopt;
        }
        composed_->barrier("before the counters");
        const std::uint64_t before = base::network_bytes_sent();
        composed_->barrier("counters are read");
        for (int i = 0; i < counted_operations; ++i) {
            contender.run(buffer);
        }
        composed_->barrier("all is sent");
        auto sent = static_cast<double>(base::network_bytes_sent() - before) / counted_operations;
        composed_->all_reduce(Buffer::of(std::span(&sent, 1)), ReduceOp::max, "bytes sent");
        return sent;
    }

    static void call(Communicator& ranks, OperationKind operation, const Buffer& buffer) {
        switch (operation) {
            case OperationKind::all_reduce:
                return ranks.all_reduce(buffer, ReduceOp::sum, "bench");
            case OperationKind::reduce_scatter:
                return ranks.reduce_scatter(buffer, ReduceOp::sum, "bench");
            case OperationKind::all_gather:
                return ranks.all_gather(buffer, "bench");
            case OperationKind::broadcast:
                return ranks.broadcast(buffer, Rank{0}, "bench");
            default:
                LOCKSTEP_CHECK(false, "no bench of ", name_of(operation));
        }
    }

    /// Elements of this rank that are wrong after one operation.
    std::int64_t verify(const Contender& contender, OperationKind operation, const Buffer& buffer) {
        const std::int32_t rank = index_of(composed_->rank());
        const std::int32_t size = composed_->size();
        return with_type(buffer.type, [&]<typename T>() {
            const auto value = [&](std::int32_t owner, std::size_t i) { return value_at(buffer.type, size, owner, i); };
            fill<T>(buffer, [&](std::size_t i) { return value(rank, i); });
            contender.run(buffer);
            const auto sum = [&](std::size_t i) {
                double total = 0;
                for (std::int32_t peer = 0; peer < size; ++peer) {
                    total += value(peer, i);
                }
                return total;
            };
            const comm::Slice own = comm::slice_of(buffer.count, size, Rank{rank});
            const Buffer part{static_cast<T*>(buffer.data) + own.begin, own.count(), buffer.type};
            switch (operation) {
                case OperationKind::all_reduce:
                    return differences<T>(buffer, sum);
                case OperationKind::reduce_scatter:
                    return differences<T>(part, [&](std::size_t i) { return sum(own.begin + i); });
                case OperationKind::all_gather:
                    return differences_of_slices<T>(buffer, size, value);
                case OperationKind::broadcast:
                    return differences<T>(buffer, [&](std::size_t i) { return value(0, i); });
                default:
                    LOCKSTEP_CHECK(false, "no bench of ", name_of(operation));
            }
        });
    }

    static std::size_t batch_of(const Buffer& buffer) { return buffer.bytes() <= single_bytes ? batch_of_small : 1; }

    /// Seconds of one operation on this rank, from a common start.
    double time_once(const Contender& contender, const Buffer& buffer) {
        const bool takes_part = !contender.only_first_rank || composed_->rank() == Rank{0};
        const std::size_t batch = batch_of(buffer);
        composed_->barrier("start");
        const double start = base::monotonic_seconds();
        if (takes_part) {
            for (std::size_t i = 0; i < batch; ++i) {
                contender.run(buffer);
            }
        }
        return (base::monotonic_seconds() - start) / static_cast<double>(batch);
    }

    double slowest(double seconds) {
        composed_->all_reduce(Buffer::of(std::span(&seconds, 1)), ReduceOp::max, "time of one");
        return seconds;
    }

    /// Taken once for the largest size, since shared memory is given back only at the end.
    std::shared_ptr<std::byte> shared_memory(std::size_t bytes) {
        if (bytes > shared_bytes_) {
            shared_bytes_ = std::max(bytes, std::ranges::max(plan_.bytes) + 8);
            shared_ = composed_->allocate(shared_bytes_, "bench");
        }
        return shared_;
    }

    static std::shared_ptr<std::byte> own_memory(std::size_t bytes) {
        return comm::make_single_communicator()->allocate(bytes, "bench");
    }

    const CollectivePlan& plan_;
    const comm::JobCommunicators& job_;
    std::unique_ptr<Communicator> composed_;
    std::unique_ptr<Communicator> flat_;
    bool is_composed_;
    bool is_one_node_;
    std::shared_ptr<std::byte> shared_;
    std::size_t shared_bytes_ = 0;
};

}  // namespace

double CollectiveRow::algorithm_bandwidth() const {
    return static_cast<double>(bytes) / median;
}

double CollectiveRow::bus_bandwidth(std::int32_t ranks) const {
    const auto n = static_cast<double>(ranks);
    switch (operation) {
        case OperationKind::all_reduce:
            return algorithm_bandwidth() * 2 * (n - 1) / n;
        case OperationKind::reduce_scatter:
        case OperationKind::all_gather:
            return algorithm_bandwidth() * (n - 1) / n;
        default:
            return algorithm_bandwidth();
    }
}

std::vector<CollectiveRow> bench_collectives(const CollectivePlan& plan, const comm::JobCommunicators& job) {
    return Bench(plan, job).run();
}

}  // namespace lockstep::bench
