#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/job_communicators.h"

namespace lockstep::bench {

struct CollectivePlan {
    std::vector<std::size_t> bytes;
    std::vector<comm::DataType> types = {comm::DataType::f32};
    std::vector<comm::OperationKind> operations = {comm::OperationKind::all_reduce};
    /// All-reduces over MPI between all ranks, beside "mpi", which is the direct one.
    std::vector<comm::MpiAllReduce> algorithms;
    std::vector<comm::DataType> wires;  ///< 16-bit types in which FP32 sums travel over MPI, as contenders of their own
    double seconds_per_size = 0.5;      ///< of timing, for each algorithm
    bool with_mpi = false;              ///< MPI_Allreduce as "peer:mpi"
};

/// One line of the table. Times in seconds: of each repetition the slowest rank's.
struct CollectiveRow {
    comm::OperationKind operation;
    /// "shared", "staged", "hierarchical", "mpi", "mpi ring" and so on, "alone", "peer:mpi", or "copy": memcpy on one
    /// rank. " bf16" or " f16" at its end is the wire type.
    std::string algorithm;
    comm::DataType type;
    std::size_t bytes;
    std::size_t repetitions;
    std::size_t batch;  ///< operations that share one reading of the clock, back to back; a time is their mean
    double least, median, p99, most;
    /// Elements that differ from the closed form, over all ranks; checked before timing. None where nothing is checked.
    std::optional<std::int64_t> wrong;
    /// Bytes of one operation that left a machine, by the counters of its network interfaces: of the machine that sent
    /// most. None on one machine, and for messages so short that others' traffic would count.
    std::optional<double> network_bytes;

    double algorithm_bandwidth() const;              ///< bytes / median, in bytes a second
    double bus_bandwidth(std::int32_t ranks) const;  ///< the standard factor: 2(n-1)/n for an all-reduce, and so on
};

/// Times every algorithm that the job's shape has. For each size the algorithms take turns, repetition by repetition,
/// in turning order, so that what else the machine does, and what is left in the caches, meets all of them. Collective;
/// rows are complete on the first rank.
std::vector<CollectiveRow> bench_collectives(const CollectivePlan& plan, const comm::JobCommunicators& job);

}  // namespace lockstep::bench
