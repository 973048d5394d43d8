#include "comm/job_communicators.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/resources.h"
#include "base/text.h"
#include "comm/cuda_plugin.h"
#include "comm/hierarchical_communicator.h"
#include "comm/host_staged_communicator.h"
#include "comm/mpi.h"
#include "comm/mpi_check.h"
#include "comm/shared_memory_communicator.h"
#include "comm/wire_communicator.h"

namespace lockstep::comm {

namespace {

/// "2x4" as {2, 4}.
std::pair<std::int32_t, std::int32_t> parse_shape(std::string_view text) {
    std::pair<std::int32_t, std::int32_t> shape{0, 0};
    const char* const end = text.data() + text.size();
    const auto [cross, rows_error] = std::from_chars(text.data(), end, shape.first);
    if (rows_error == std::errc{} && cross != end && *cross == 'x') {
        const auto [rest, columns_error] = std::from_chars(cross + 1, end, shape.second);
        if (columns_error == std::errc{} && rest == end && shape.first > 0 && shape.second > 0) {
            return shape;
        }
    }
    throw base::UsageError(
        base::str("topology \"", text, "\" is none of auto, flat, and NODESxRANKS such as 2x4 (2 nodes of 4 ranks)"));
}

std::vector<std::string> hosts_of(const Topology& topology) {
    std::vector<std::string> hosts;
    hosts.reserve(static_cast<std::size_t>(topology.ranks()));
    for (std::int32_t rank = 0; rank < topology.ranks(); ++rank) {
        hosts.push_back(topology.host_of(Rank{rank}));
    }
    return hosts;
}

/// Whether some machine has more ranks than cores that they may use. Collective.
bool is_any_machine_crowded(Communicator& world, const Topology& machines) {
    const std::vector<std::int32_t> mine = base::allowed_cpus();
    const auto cpus_of_rank = world.all_gather_bytes(std::as_bytes(std::span(mine)), "CPUs");
    std::vector<std::int32_t> cores(static_cast<std::size_t>(world.size()));
    cores[static_cast<std::size_t>(index_of(world.rank()))] = static_cast<std::int32_t>(base::usable_cores());
    world.all_gather(Buffer::of(std::span(cores)), "cores");
    for (std::int32_t machine = 0; machine < machines.nodes(); ++machine) {
        std::set<std::int32_t> cpus;
        std::size_t quota = 0;  // each rank's control group may let it use so many cores; ranks may share one group
        for (const Rank rank : machines.ranks_of_node(machine)) {
            const auto& bytes = cpus_of_rank[static_cast<std::size_t>(index_of(rank))];
            std::vector<std::int32_t> theirs(bytes.size() / sizeof(std::int32_t));
            std::memcpy(theirs.data(), bytes.data(), theirs.size() * sizeof(std::int32_t));
            cpus.insert(theirs.begin(), theirs.end());
            const auto own = static_cast<std::size_t>(cores[static_cast<std::size_t>(index_of(rank))]);
            quota = std::max(quota, own < theirs.size() ? own : cpus.size());
        }
        if (machines.ranks_of_node(machine).size() > std::min(cpus.size(), std::max<std::size_t>(quota, 1))) {
            return true;
        }
    }
    return false;
}

/// A rank's way to its device.
struct Cuda {
    std::shared_ptr<const CudaPlugin> plugin;
    std::int32_t device = 0;
    std::shared_ptr<DeviceMemory> memory;
    std::vector<std::string> shared;  ///< see shared_devices
};

/// Collective: all ranks throw where one can't.
Cuda open_cuda(Communicator& world, const Topology& machines, const JobShape& shape) {
    Cuda cuda;
    DeviceIdentity identity;
    std::string failure;
    try {
        cuda.plugin = open_cuda_plugin(shape.cuda_plugin.empty() ? cuda_plugin_file() : shape.cuda_plugin);
        cuda.device = machines.local_rank_of(world.rank()) % cuda.plugin->devices();
        identity = cuda.plugin->identity_of(cuda.device);
        cuda.memory = cuda.plugin->memory_of(cuda.device);
    } catch (const base::Error& error) {
        failure = error.what();
    }
    const std::vector<std::string> failures = world.all_gather_texts(failure, "CUDA");
    for (std::size_t rank = 0; rank < failures.size(); ++rank) {
        if (!failures[rank].empty()) {
            throw base::Error(
                base::str("CUDA can't be used on ", world.identity().members[rank].name(), ": ", failures[rank]));
        }
    }
    const std::vector<std::string> uuids = world.all_gather_texts(identity.uuid, "devices");
    const std::vector<std::string> buses = world.all_gather_texts(identity.bus, "devices");
    std::vector<DeviceIdentity> identities;
    for (std::size_t rank = 0; rank < uuids.size(); ++rank) {
        identities.push_back({uuids[rank], buses[rank]});
    }
    cuda.shared = shared_devices(identities, machines);
    if (!cuda.shared.empty() && world.rank() == Rank{0}) {
        base::log_warning(base::str(base::join(cuda.shared, "; "),
                                    ". NCCL refuses that: all buffers on devices go through page-locked memory of the "
                                    "host and over the CPU's communicators, which is much slower. Start one rank for "
                                    "each device"));
    }
    return cuda;
}

}  // namespace

Topology shaped(const Topology& detected, std::string_view shape) {
    if (shape == "auto") {
        return detected;
    }
    std::vector<std::int32_t> node_of_rank;
    if (shape == "flat") {
        for (std::int32_t rank = 0; rank < detected.ranks(); ++rank) {
            node_of_rank.push_back(rank);
        }
        return {node_of_rank, hosts_of(detected)};
    }
    const auto [nodes, ranks_per_node] = parse_shape(shape);
    if (std::int64_t{nodes} * ranks_per_node != detected.ranks()) {
        throw base::UsageError(base::str("topology \"", shape, "\" is for ", std::int64_t{nodes} * ranks_per_node,
                                         " ranks; this job has ", detected.ranks()));
    }
    for (std::int32_t rank = 0; rank < detected.ranks(); ++rank) {
        const std::int32_t node = rank / ranks_per_node;
        node_of_rank.push_back(node);
        const Rank first{node * ranks_per_node};
        if (detected.node_of(Rank{rank}) != detected.node_of(first)) {
            throw base::UsageError(base::str("topology \"", shape, "\" puts ranks ", index_of(first), " (",
                                             detected.host_of(first), ") and ", rank, " (",
                                             detected.host_of(Rank{rank}),
                                             ") on one node, but they share no machine. Start the ranks in another "
                                             "order (mpirun --map-by slot), or use \"auto\""));
        }
    }
    return {node_of_rank, hosts_of(detected)};
}

struct JobCommunicators::State {
    JobShape shape;
    Rank rank{0};
    Topology machines;
    Topology topology;
    bool is_crowded;
    std::shared_ptr<RankLog> log;
    Cuda cuda;

    bool shares_memory() const { return topology.nodes() < topology.ranks(); }

    void require_even_nodes(const std::string& purpose) const {
        std::size_t least = topology.ranks_of_node(0).size(), most = least;
        for (std::int32_t node = 1; node < topology.nodes(); ++node) {
            least = std::min(least, topology.ranks_of_node(node).size());
            most = std::max(most, topology.ranks_of_node(node).size());
        }
        if (least < 2 || least != most) {
            throw base::UsageError(base::str(purpose,
                                             " inside each node alike: that takes the same number of ranks, two ",
                                             "or more, on every node; here nodes have ", least,
                                             least == most ? "" : base::str(" to ", most), " rank(s)"));
        }
    }

    std::unique_ptr<Communicator> inside_node(const std::string& purpose, bool beside_compute) const {
        const std::vector<Rank>& members = topology.ranks_of_node(topology.node_of(rank));
        auto meeting = make_mpi_communicator(purpose, shape.timeout, members);
        CommunicatorIdentity identity = meeting->identity();
        identity.log = log;
        const Patience patience = beside_compute ? Patience::beside_compute()
                                  : is_crowded   ? Patience::for_crowded_cores()
                                                 : Patience{};
        return make_shared_memory_communicator(std::move(identity), exchange_over(std::move(meeting)), patience);
    }

    std::unique_ptr<SegmentExchange> memory_of_node(const std::string& purpose) const {
        if (!mpi_is_running()) {
            return nullptr;
        }
        auto meeting = make_mpi_communicator(purpose, shape.timeout, topology.ranks_of_node(topology.node_of(rank)));
        return meeting->size() > 1 ? exchange_over(std::move(meeting)) : nullptr;
    }

    /// Over MPI; null where the rank has no lane.
    std::unique_ptr<Communicator> lane(const std::string& purpose, const std::shared_ptr<RankLog>& its_log,
                                       Patience patience = Patience::over_network()) const {
        // Every rank takes part in making the lanes' communicators; one without a lane makes one of its own and drops
        // it.
        const std::int32_t local = topology.local_rank_of(rank);
        const bool has_lane = local < lanes_of(topology);
        const std::vector<Rank> members = has_lane ? ranks_of_lane(topology, local) : std::vector{rank};
        // A rank that waits inside its node for one that hangs must be the first to speak, and not be blamed itself.
        constexpr std::chrono::seconds longer{3};
        auto communicator =
            make_mpi_communicator(purpose, shape.timeout + longer, members, its_log, shape.algorithm, patience);
        return has_lane ? std::move(communicator) : nullptr;
    }

    std::unique_ptr<Communicator> across_nodes(const std::string& purpose, const CommunicatorUse& use) const {
        auto communicator = lane(purpose, log, over_network(use));
        return communicator ? with_wire(std::move(communicator), use.wire) : nullptr;
    }

    static Patience over_network(const CommunicatorUse& use) {
        return use.beside_compute ? Patience::beside_compute() : Patience::over_network();
    }

    CommunicatorIdentity identity_of_all(const std::string& purpose) const {
        CommunicatorIdentity identity{purpose, rank, {}, shape.timeout, log};
        for (std::int32_t member = 0; member < topology.ranks(); ++member) {
            identity.members.push_back({member, topology.host_of(Rank{member})});
        }
        return identity;
    }

    std::unique_ptr<Communicator> on_host(const std::string& purpose, const CommunicatorUse& use) const {
        if (!mpi_is_running()) {
            return make_single_communicator();
        }
        const DataType wire = topology.nodes() > 1 ? use.wire : DataType::f32;  // nothing is rounded that goes nowhere
        if (!shares_memory()) {
            return with_wire(make_mpi_communicator(purpose, shape.timeout, log, shape.algorithm, over_network(use)),
                             wire);
        }
        if (topology.nodes() == 1) {
            return inside_node(purpose, use.beside_compute);
        }
        auto inside = inside_node(base::str(purpose, ", inside a node"), use.beside_compute);
        auto across = across_nodes(base::str(purpose, ", across nodes"), use);
        return make_hierarchical_communicator(identity_of_all(purpose), topology, std::move(inside), std::move(across));
    }

    std::unique_ptr<Communicator> on_device(const std::string& purpose, const CommunicatorUse& use) const {
        LOCKSTEP_CHECK(cuda.plugin, purpose, " is for device memory, and JobShape::cuda is off");
        if (!cuda.shared.empty()) {
            return make_host_staged_communicator(on_host(purpose, use), cuda.memory);
        }
        if (use.wire != DataType::f32 && topology.nodes() > 1) {
            throw base::UsageError(base::str("wire type ", name_of(use.wire), " of ", purpose,
                                             " can't take effect over NCCL, which sends values as they are: use fp32"));
        }
        const auto over_nccl = [&](std::unique_ptr<Communicator> meeting) {
            CommunicatorIdentity identity = meeting->identity();
            identity.log = log;
            return cuda.plugin->make_nccl_communicator(std::move(identity), std::move(meeting), cuda.device);
        };
        if (!mpi_is_running()) {
            return cuda.plugin->make_nccl_communicator(identity_of_all(purpose), make_single_communicator(),
                                                       cuda.device);
        }
        if (shape.topology == "auto" || !shares_memory() || topology.nodes() == 1) {
            return over_nccl(make_mpi_communicator(purpose, shape.timeout));
        }
        auto inside = over_nccl(make_mpi_communicator(base::str(purpose, ", inside a node"), shape.timeout,
                                                      topology.ranks_of_node(topology.node_of(rank))));
        auto meeting = lane(base::str(purpose, ", across nodes"), nullptr);
        auto across = meeting ? over_nccl(std::move(meeting)) : nullptr;
        return make_hierarchical_communicator(identity_of_all(purpose), topology, std::move(inside), std::move(across),
                                              cuda.memory);
    }

    static std::unique_ptr<Communicator> with_wire(std::unique_ptr<Communicator> communicator, DataType wire) {
        return wire == DataType::f32 ? std::move(communicator) : make_wire_communicator(std::move(communicator), wire);
    }
};

JobCommunicators::JobCommunicators(JobShape shape, std::shared_ptr<RankLog> log) {
    const bool is_job = mpi_is_running();
    const auto world = is_job ? make_mpi_communicator("start", shape.timeout, log) : make_single_communicator();
    Topology machines = is_job ? detect_topology(*world) : Topology({0}, {base::host_name()});
    Topology seen = shaped(machines, shape.topology);
    const bool crowded = is_job && is_any_machine_crowded(*world, machines);
    Cuda cuda = shape.cuda ? open_cuda(*world, machines, shape) : Cuda{};
    state_ = std::make_unique<State>(State{std::move(shape), world->rank(), std::move(machines), std::move(seen),
                                           crowded, std::move(log), std::move(cuda)});
}

JobCommunicators::~JobCommunicators() = default;

const Topology& JobCommunicators::topology() const {
    return state_->topology;
}

const Topology& JobCommunicators::machines() const {
    return state_->machines;
}

std::string JobCommunicators::describe() const {
    const std::int32_t nodes = topology().nodes();
    if (topology().ranks() == 1) {
        return "alone";
    }
    std::string over_mpi = base::str("MPI (", name_of(state_->shape.algorithm), " all-reduce)");
    if (!state_->shares_memory()) {
        return over_mpi;
    }
    return nodes == 1 ? std::string("shared memory")
                      : base::str("hierarchical: shared memory inside ", nodes, " nodes, ", over_mpi, " across, ",
                                  lanes_of(topology()), " lane(s)");
}

std::string JobCommunicators::describe_on_device() const {
    const Cuda& cuda = state_->cuda;
    LOCKSTEP_CHECK(cuda.plugin, "JobShape::cuda is off");
    if (!cuda.shared.empty()) {
        return base::str("page-locked memory of the host, since ", base::join(cuda.shared, "; "), "; then ",
                         describe());
    }
    const std::vector<std::string> settings = nccl_settings();
    return base::str(cuda.plugin->versions(), "; ",
                     settings.empty() ? "no NCCL_* setting" : base::join(settings, ", "));
}

std::int32_t JobCommunicators::device() const {
    LOCKSTEP_CHECK(state_->cuda.plugin, "JobShape::cuda is off");
    return state_->cuda.device;
}

const std::shared_ptr<DeviceMemory>& JobCommunicators::device_memory() const {
    LOCKSTEP_CHECK(state_->cuda.plugin, "JobShape::cuda is off");
    return state_->cuda.memory;
}

bool JobCommunicators::uses_mpi() const {
    return topology().nodes() > 1;
}

std::unique_ptr<Communicator> JobCommunicators::make(const std::string& purpose, const CommunicatorUse& use) const {
    return use.on_device ? state_->on_device(purpose, use) : state_->on_host(purpose, use);
}

std::unique_ptr<Communicator> JobCommunicators::make_inside_node(const std::string& purpose,
                                                                 const CommunicatorUse& use) const {
    state_->require_even_nodes(purpose);
    LOCKSTEP_CHECK(!use.on_device, purpose, " is in host memory");
    return state_->inside_node(purpose, use.beside_compute);
}

std::unique_ptr<Communicator> JobCommunicators::make_across_nodes(const std::string& purpose,
                                                                  const CommunicatorUse& use) const {
    state_->require_even_nodes(purpose);
    LOCKSTEP_CHECK(!use.on_device, purpose, " is in host memory");
    return state_->across_nodes(purpose, use);
}

std::unique_ptr<SegmentExchange> JobCommunicators::memory_of_node(const std::string& purpose) const {
    return state_->memory_of_node(purpose);
}

}  // namespace lockstep::comm
