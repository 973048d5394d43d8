#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/job_communicators.h"

namespace lockstep::bench {

struct CollectivePlan {
    std::vector<std::size_t> bytes;
    std::vector<comm::DataType> types = {comm::DataType::f32};
    std::vector<comm::OperationKind> operations = {comm::OperationKind::all_reduce};
    double seconds_per_size = 0.5;  ///< of timing, for each algorithm
    bool with_mpi = true;           ///< MPI's own collectives as "peer:mpi"
};

/// One line of the table. Times in seconds: of each repetition the slowest rank's.
struct CollectiveRow {
    comm::OperationKind operation;
    std::string algorithm;  ///< "shared", "staged", "mpi", "hierarchical", "peer:mpi", or "copy": a plain memcpy
    comm::DataType type;
    std::size_t bytes;
    std::size_t repetitions;
    double least, median, p99, most;
    std::int64_t wrong;  ///< elements that differ from the closed form, over all ranks; checked before timing

    double algorithm_bandwidth() const;              ///< bytes / median, in bytes a second
    double bus_bandwidth(std::int32_t ranks) const;  ///< the standard factor: 2(n-1)/n for an all-reduce, and so on
};

/// Times every algorithm that the job's shape has. For each size the algorithms take turns, repetition by repetition,
/// so that what else the machine does meets all of them. Collective; rows are complete on the first rank.
std::vector<CollectiveRow> bench_collectives(const CollectivePlan& plan, const comm::JobCommunicators& job);

}  // namespace lockstep::bench
