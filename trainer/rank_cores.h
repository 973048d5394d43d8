#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/topology.h"

namespace lockstep::trainer {

/// How many threads this rank should run: OMP_NUM_THREADS where a launcher or a person has set it, else its part of the
/// node's CPUs, whether the launcher has bound the ranks to CPUs of their own or lets them share. At least 1.
/// From then on LibTorch uses as many. Collective.
unsigned use_cores_of_rank(comm::Communicator& communicator, const comm::Topology& topology);

/// A CPU that several ranks may use counts for each of them by its part. `cpus_of_ranks`: the numbers of the CPUs in
/// the affinity mask of each rank of a node. Whole cores, at least 1.
unsigned part_of_cpus(std::span<const std::vector<std::int32_t>> cpus_of_ranks, std::size_t rank);

}  // namespace lockstep::trainer
