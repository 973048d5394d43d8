#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/job_communicators.h"
#include "comm/mpi.h"

namespace lockstep::comm {

/// An all-reduce of so many bytes of FP32 as the job would do it, timed: the median over repetitions of the slowest
/// rank's time.
struct ProbedAllReduce {
    MpiAllReduce algorithm = MpiAllReduce::direct;
    std::size_t bytes = 0;
    double seconds = 0;

    double seconds_per_byte() const { return seconds / static_cast<double>(bytes); }
    /// "ring, 4.0 MiB: 35.1 ms".
    std::string describe() const;
};

struct CommunicationChoice {
    MpiAllReduce algorithm = MpiAllReduce::direct;
    std::size_t bucket_bytes = 0;
};

/// The algorithm that moves a byte fastest, where it is by more than a tenth faster than the first one given, and the
/// smallest size at which that algorithm is within a tenth of its best: small buckets leave earlier and hide more.
/// `probed` is not empty, and grouped by algorithm.
CommunicationChoice choose_communication(std::span<const ProbedAllReduce> probed);

/// Times each algorithm at growing sizes (or at `bucket_bytes` alone), until a larger one is hardly faster for each
/// byte, on communicators made for it. The result is the same on all ranks. Collective over the job; takes about as
/// long as sending 100 MiB.
std::vector<ProbedAllReduce> probe_communication(const JobShape& shape, DataType wire,
                                                 std::span<const MpiAllReduce> algorithms,
                                                 std::optional<std::size_t> bucket_bytes);

}  // namespace lockstep::comm
