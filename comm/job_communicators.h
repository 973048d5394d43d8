#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "comm/device_memory.h"
#include "comm/mpi.h"
#include "comm/segment_exchange.h"
#include "comm/topology.h"

namespace lockstep::comm {

/// How the ranks of the job are to be seen.
struct JobShape {
    /// "auto": as the machines are. "flat": all ranks alike, over MPI alone. "2x4": two nodes of four ranks each, in
    /// the order of ranks; ranks of one such node must share a machine.
    std::string topology = "auto";
    std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< deadline of one operation
    MpiAllReduce algorithm = MpiAllReduce::direct;                 ///< of what goes over MPI
    /// There may be communicators of buffers in CUDA devices' memory. Each rank uses the device that has its number
    /// among the ranks of its machine, and starts again from the first where there are fewer.
    bool cuda = false;
    /// What is opened for that; empty: cuda_plugin_file(). Without `cuda` nothing is.
    std::filesystem::path cuda_plugin = {};
};

/// What a communicator is for, as far as that changes how it is made.
struct CommunicatorUse {
    /// The thread that calls it waits while another one of the rank computes, so that waiting must not take the core.
    bool beside_compute = false;
    /// How FP32 reductions travel over MPI: f32 as they are, bf16 or f16 (see make_wire_communicator).
    DataType wire = DataType::f32;
    /// Buffers lie in the memory of the rank's CUDA device; see JobShape::cuda.
    bool on_device = false;
};

/// What "2x4" and so on says of `detected`. Throws base::UsageError when it doesn't fit the number of ranks, or puts
/// ranks of different machines on one node.
Topology shaped(const Topology& detected, std::string_view shape);

/// Makes the communicators of a job, one for each purpose: shared memory inside a node, MPI between nodes, both
/// composed where both are needed; the single communicator where MPI does not run.
///
/// For buffers on devices: NCCL among all ranks, or, for a topology "RxC" of several nodes, NCCL inside each node and
/// NCCL across them, composed. Where ranks share a device, which NCCL refuses, page-locked memory of the host and the
/// communicators of the host, with a warning that says so.
class JobCommunicators {
  public:
    /// Collective over all ranks. Throws base::UsageError for a topology that doesn't fit, and base::Error on all ranks
    /// where one can't use CUDA and should. `log`: where the communicators write their operations, such as JobWatch's.
    explicit JobCommunicators(JobShape shape, std::shared_ptr<RankLog> log = nullptr);
    ~JobCommunicators();

    /// As `shape` sees it.
    const Topology& topology() const;
    /// As the machines are.
    const Topology& machines() const;
    /// "shared memory", "MPI (ring all-reduce)", "hierarchical: shared memory inside 2 nodes, MPI (...) across, 4
    /// lane(s)".
    std::string describe() const;
    /// How buffers on devices go: "NCCL 2.28.9, CUDA 13.0; NCCL_DEBUG=INFO" with the settings in force, or through the
    /// host. Needs JobShape::cuda.
    std::string describe_on_device() const;
    /// This rank's device, and its memory. Needs JobShape::cuda.
    std::int32_t device() const;
    const std::shared_ptr<DeviceMemory>& device_memory() const;
    /// Whether anything goes over MPI, so that algorithm and wire type matter.
    bool uses_mpi() const;

    /// Collective over all ranks. Throws base::UsageError for a 16-bit wire over NCCL, where it can't take effect.
    std::unique_ptr<Communicator> make(const std::string& purpose, const CommunicatorUse& use = {}) const;
    /// Of the ranks of this rank's node, and of those with this rank's place on every node: for what each node does
    /// alike. Collective over all ranks. Throws base::UsageError where nodes have different numbers of ranks, or only
    /// one.
    std::unique_ptr<Communicator> make_inside_node(const std::string& purpose, const CommunicatorUse& use = {}) const;
    std::unique_ptr<Communicator> make_across_nodes(const std::string& purpose, const CommunicatorUse& use = {}) const;
    /// For memory that the ranks of this rank's node share; null on a node of one rank. Collective over all ranks; what
    /// is shared is then the node's affair.
    std::unique_ptr<SegmentExchange> memory_of_node(const std::string& purpose) const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace lockstep::comm
