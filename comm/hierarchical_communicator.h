#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/device_memory.h"
#include "comm/topology.h"

namespace lockstep::comm {

/// The ranks of several nodes, composed of a communicator inside each node and communicators across nodes, so that
/// every byte crosses the network once in each direction.
///
/// A lane is the set of ranks of one local rank, one on each node; there are as many lanes as the smallest node has
/// ranks. An all-reduce is a reduce-scatter inside the node (each lane gets a slice), an all-reduce of the slice across
/// nodes, in all lanes at once, and an all-gather inside. A reduction rounds once inside and once across: 16-bit sums
/// leave a node as 16 bits, which is what halves the traffic.
///
/// `inside` are the ranks of this rank's node in the topology's order. `across` are the ranks of this rank's lane in
/// the order of nodes; null where the rank has no lane (lane_of). Neither is looked at for what carries it. `device`:
/// where buffers lie that both communicators take; null: in the host's memory. An average over a device's memory is
/// divided by the host, a copy to and fro. Collective.
std::unique_ptr<Communicator> make_hierarchical_communicator(CommunicatorIdentity identity, Topology topology,
                                                             std::unique_ptr<Communicator> inside,
                                                             std::unique_ptr<Communicator> across,
                                                             std::shared_ptr<DeviceMemory> device = nullptr);

/// How many lanes there are.
std::int32_t lanes_of(const Topology& topology);
/// The ranks of `lane`, by node.
std::vector<Rank> ranks_of_lane(const Topology& topology, std::int32_t lane);

}  // namespace lockstep::comm
