#include "bench/collective_bench.h"

#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/resources.h"
#include "comm/mpi.h"
#include "comm/mpi_check.h"

namespace lockstep::bench {

namespace {

using comm::Buffer;
using comm::Communicator;
using comm::DataType;
using comm::OperationKind;
using comm::Rank;
using comm::ReduceOp;

/// Below, an operation is too short for the clock: many run back to back and share the time.
constexpr std::size_t single_bytes = 64 << 10;
constexpr std::size_t batch_of_small = 50;

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

bool is_sixteen_bit(DataType type) {
    return type == DataType::f16 || type == DataType::bf16;
}

struct Contender {
    std::string name;
    std::shared_ptr<std::byte> memory;
    std::function<void(const Buffer&)> run;
    bool only_first_rank = false;
    bool is_verified = true;
};

/// Small whole numbers, so that sums over a thousand ranks are exact in every wide type.
double value_at(std::int32_t rank, std::size_t i) {
    return static_cast<double>((i * 7 + static_cast<std::size_t>(rank) * 3) % 13);
}

template <typename T>
void fill(const Buffer& buffer, const std::function<double(std::size_t)>& value) {
    auto* const values = static_cast<T*>(buffer.data);
    for (std::size_t i = 0; i < buffer.count; ++i) {
        values[i] = static_cast<T>(value(i));
    }
}

template <typename T>
std::int64_t differences(const Buffer& buffer, const std::function<double(std::size_t)>& expected) {
    std::int64_t wrong = 0;
    const auto* const values = static_cast<const T*>(buffer.data);
    for (std::size_t i = 0; i < buffer.count; ++i) {
        wrong += values[i] == static_cast<T>(expected(i)) ? 0 : 1;
    }
    return wrong;
}

template <typename Visit>
auto with_type(DataType type, Visit visit) {
    switch (type) {
        case DataType::f64:
            return visit.template operator()<double>();
        case DataType::i32:
            return visit.template operator()<std::int32_t>();
        case DataType::i64:
            return visit.template operator()<std::int64_t>();
        case DataType::u8:
            return visit.template operator()<std::uint8_t>();
        default:
            return visit.template operator()<float>();
    }
}

class Bench {
  public:
    Bench(const CollectivePlan& plan, const comm::JobCommunicators& job)
        : plan_(plan),
          composed_(job.make("bench")),
          flat_(comm::mpi_is_running() ? comm::make_mpi_communicator("bench over MPI", std::chrono::minutes(10))
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
        std::vector<std::int64_t> wrong;
        std::vector<std::size_t> repetitions;
        std::vector<std::vector<double>> times(contenders.size());
        for (Contender& contender : contenders) {
            const Buffer buffer{contender.memory.get(), count, type};
            wrong.push_back(contender.is_verified ? verify(contender, operation, buffer) : 0);
            // The first call warms up; the second says how many fit into the time.
            static_cast<void>(time_once(contender, buffer));
            const double one = std::max(slowest(time_once(contender, buffer)), 1e-9) * batch_of(buffer);
            repetitions.push_back(
                std::clamp<std::size_t>(static_cast<std::size_t>(plan_.seconds_per_size / one), 5, 2000));
        }
        const std::size_t rounds = std::ranges::max(repetitions);
        for (std::size_t round = 0; round < rounds; ++round) {
            for (std::size_t i = 0; i < contenders.size(); ++i) {
                if (round < repetitions[i]) {
                    times[i].push_back(time_once(contenders[i], {contenders[i].memory.get(), count, type}));
                }
            }
        }
        std::vector<CollectiveRow> rows;
        for (std::size_t i = 0; i < contenders.size(); ++i) {
            rows.push_back(row_of(contenders[i], operation, type, count, times[i], wrong[i]));
        }
        return rows;
    }

    CollectiveRow row_of(const Contender& contender, OperationKind operation, DataType type, std::size_t count,
                         std::vector<double>& times, std::int64_t wrong) {
        if (contender.only_first_rank && composed_->rank() != Rank{0}) {
            std::ranges::fill(times, 0.0);
        }
        composed_->all_reduce(Buffer::of(std::span(times)), ReduceOp::max, "times");
        composed_->all_reduce(Buffer::of(std::span(&wrong, 1)), ReduceOp::sum, "wrong elements");
        std::ranges::sort(times);
        const auto at = [&](double part) {
            return times[std::min(times.size() - 1,
                                  static_cast<std::size_t>(part * static_cast<double>(times.size())))];
        };
        return {operation,     contender.name, type,     count * size_of(type), times.size(),
                times.front(), at(0.5),        at(0.99), times.back(),          wrong};
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
        add("mpi", *flat_, false);
        if (plan_.with_mpi && comm::mpi_is_running() && !is_sixteen_bit(type) &&
            operation == OperationKind::all_reduce) {
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
                return ranks.barrier("bench");
        }
    }

    /// Elements of this rank that are wrong after one operation.
    std::int64_t verify(const Contender& contender, OperationKind operation, const Buffer& buffer) {
        if (is_sixteen_bit(buffer.type)) {
            contender.run(buffer);  // exactness of 16-bit sums is the tests' business
            return 0;
        }
        const std::int32_t rank = index_of(composed_->rank());
        const std::int32_t size = composed_->size();
        return with_type(buffer.type, [&]<typename T>() {
            fill<T>(buffer, [&](std::size_t i) { return value_at(rank, i); });
            contender.run(buffer);
            const auto sum = [&](std::size_t i) {
                double total = 0;
                for (std::int32_t peer = 0; peer < size; ++peer) {
                    total += value_at(peer, i);
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
                    return differences<T>(buffer, [&](std::size_t i) {
                        std::int32_t owner = 0;
                        while (i >= comm::slice_of(buffer.count, size, Rank{owner}).end) {
                            ++owner;
                        }
                        return value_at(owner, i);
                    });
                case OperationKind::broadcast:
                    return differences<T>(buffer, [&](std::size_t i) { return value_at(0, i); });
                default:
                    return std::int64_t{0};
            }
        });
    }

    static double batch_of(const Buffer& buffer) {
        return buffer.bytes() <= single_bytes ? static_cast<double>(batch_of_small) : 1.0;
    }

    /// Seconds of one operation on this rank, from a common start.
    double time_once(const Contender& contender, const Buffer& buffer) {
        const bool takes_part = !contender.only_first_rank || composed_->rank() == Rank{0};
        const double batch = batch_of(buffer);
        composed_->barrier("start");
        const double start = base::monotonic_seconds();
        if (takes_part) {
            for (double i = 0; i < batch; ++i) {
                contender.run(buffer);
            }
        }
        return (base::monotonic_seconds() - start) / batch;
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
        const auto memory = comm::make_single_communicator()->allocate(bytes, "bench");
        std::memset(memory.get(), 0, bytes);
        return memory;
    }

    const CollectivePlan& plan_;
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
