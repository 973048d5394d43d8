#include "comm/hierarchical_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "comm/reduce.h"

namespace lockstep::comm {

std::int32_t lanes_of(const Topology& topology) {
    std::size_t lanes = topology.ranks_of_node(0).size();
    for (std::int32_t node = 1; node < topology.nodes(); ++node) {
        lanes = std::min(lanes, topology.ranks_of_node(node).size());
    }
    return static_cast<std::int32_t>(lanes);
}

std::vector<Rank> ranks_of_lane(const Topology& topology, std::int32_t lane) {
    std::vector<Rank> ranks;
    ranks.reserve(static_cast<std::size_t>(topology.nodes()));
    for (std::int32_t node = 0; node < topology.nodes(); ++node) {
        ranks.push_back(topology.ranks_of_node(node).at(static_cast<std::size_t>(lane)));
    }
    return ranks;
}

namespace {

/// A message this small costs less when one rank of the node carries it whole.
constexpr std::size_t small_bytes = 16 << 10;

class HierarchicalCommunicator final : public Communicator {
  public:
    HierarchicalCommunicator(CommunicatorIdentity identity, Topology topology, std::unique_ptr<Communicator> inside,
                             std::unique_ptr<Communicator> across, std::shared_ptr<DeviceMemory> device)
        : Communicator(std::move(identity)),
          topology_(std::move(topology)),
          inside_(std::move(inside)),
          across_(std::move(across)),
          device_(std::move(device)),
          lanes_(lanes_of(topology_)),
          node_(topology_.node_of(rank())),
          local_rank_(topology_.local_rank_of(rank())),
          is_node_uneven_(static_cast<std::int32_t>(topology_.ranks_of_node(node_).size()) > lanes_) {
        LOCKSTEP_CHECK_EQ(topology_.ranks(), size());
        LOCKSTEP_CHECK_EQ(static_cast<std::size_t>(inside_->size()), topology_.ranks_of_node(node_).size());
        LOCKSTEP_CHECK_EQ(index_of(inside_->rank()), local_rank_);
        LOCKSTEP_CHECK_EQ(across_ != nullptr, local_rank_ < lanes_, "local rank ", local_rank_, " of ", lanes_,
                          " lanes");
        LOCKSTEP_CHECK(!across_ || (across_->size() == topology_.nodes() && index_of(across_->rank()) == node_),
                       "the communicator across nodes is not this lane's");
    }

    std::shared_ptr<std::byte> allocate(std::size_t bytes, std::string_view name) override {
        return inside_->allocate(bytes, name);
    }

    /// Across nodes; nothing is sent inside one.
    SentData sent() const override { return across_ ? across_->sent() : SentData{}; }

  private:
    void do_all_reduce(const Buffer& buffer, ReduceOp op) override {
        const ReduceOp part_op = op == ReduceOp::average ? ReduceOp::sum : op;
        if (buffer.bytes() <= small_bytes) {
            inside_->all_reduce(buffer, part_op, operation().name);
            if (local_rank_ == 0) {
                across_->all_reduce(buffer, part_op, operation().name);
            }
            inside_->broadcast(buffer, Rank{0}, operation().name);
            finish(buffer, op);
            return;
        }
        const std::vector<Slice> lanes = by_local_rank(even_slices(buffer.count, lanes_));
        inside_->reduce_scatter(buffer, lanes, part_op, operation().name);
        if (across_) {
            const Buffer mine = part_of(buffer, lanes[static_cast<std::size_t>(local_rank_)]);
            across_->all_reduce(mine, part_op, operation().name);
            finish(mine, op);
        }
        inside_->all_gather(buffer, lanes, operation().name);
    }

    void do_reduce_scatter(const Buffer& buffer, std::span<const Slice> slices, ReduceOp op) override {
        const ReduceOp part_op = op == ReduceOp::average ? ReduceOp::sum : op;
        const LaneOrder order = lane_order(buffer, slices);
        const Buffer work = order.is_packed ? packed(buffer, slices, order) : buffer;
        inside_->reduce_scatter(work, by_local_rank(order.lanes), part_op, operation().name);
        if (across_) {
            const std::vector<Slice>& nodes = order.nodes_of_lane[static_cast<std::size_t>(local_rank_)];
            const Slice lane = order.lanes[static_cast<std::size_t>(local_rank_)];
            across_->reduce_scatter(part_of(work, lane), relative(nodes, lane.begin), part_op, operation().name);
            finish(part_of(work, nodes[static_cast<std::size_t>(node_)]), op);
        }
        if (is_node_uneven_) {
            inside_->all_gather(work, by_local_rank(parts_of_this_node(order)), operation().name);
        }
        if (order.is_packed) {
            const auto self = static_cast<std::size_t>(index_of(rank()));
            copy(work, order.places[self], buffer, slices[self]);
        }
    }

    void do_all_gather(const Buffer& buffer, std::span<const Slice> slices) override {
        const LaneOrder order = lane_order(buffer, slices);
        const Buffer work = order.is_packed ? packed(buffer, slices, order) : buffer;
        if (is_node_uneven_) {
            std::vector<Slice> own;
            for (const Rank neighbour : topology_.ranks_of_node(node_)) {
                own.push_back(order.places[static_cast<std::size_t>(index_of(neighbour))]);
            }
            inside_->all_gather(work, own, operation().name);
        }
        if (across_) {
            const Slice lane = order.lanes[static_cast<std::size_t>(local_rank_)];
            const std::vector<Slice>& nodes = order.nodes_of_lane[static_cast<std::size_t>(local_rank_)];
            across_->all_gather(part_of(work, lane), relative(nodes, lane.begin), operation().name);
        }
        inside_->all_gather(work, by_local_rank(order.lanes), operation().name);
        if (order.is_packed) {
            for (std::size_t owner = 0; owner < slices.size(); ++owner) {
                copy(work, order.places[owner], buffer, slices[owner]);
            }
        }
    }

    void do_broadcast(const Buffer& buffer, Rank root) override {
        const std::int32_t root_node = topology_.node_of(root);
        const std::int32_t root_local = topology_.local_rank_of(root);
        const bool root_has_lane = root_local < lanes_;
        const std::int32_t lane = root_has_lane ? root_local : 0;
        if (node_ == root_node && !root_has_lane) {
            inside_->broadcast(buffer, Rank{root_local}, operation().name);
        }
        if (local_rank_ == lane) {
            across_->broadcast(buffer, Rank{root_node}, operation().name);
        }
        if (node_ != root_node || root_has_lane) {
            inside_->broadcast(buffer, Rank{lane}, operation().name);
        }
    }

    void do_barrier() override {
        inside_->barrier(operation().name);
        if (local_rank_ == 0) {
            across_->barrier(operation().name);
        }
        inside_->barrier(operation().name);
    }

    std::vector<std::vector<std::byte>> do_all_gather_bytes(std::span<const std::byte> mine) override {
        std::vector<std::byte> whole;
        const auto of_node = inside_->all_gather_bytes(mine, operation().name);
        if (local_rank_ == 0) {
            for (const auto& node : across_->all_gather_bytes(joined(of_node), operation().name)) {
                whole.insert(whole.end(), node.begin(), node.end());
            }
        }
        whole = std::move(inside_->all_gather_bytes(whole, operation().name).front());

        std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(size()));
        std::size_t next = 0;
        for (std::int32_t node = 0; node < topology_.nodes(); ++node) {
            for (const Rank owner : topology_.ranks_of_node(node)) {
                std::uint64_t length = 0;
                std::memcpy(&length, whole.data() + next, sizeof(length));
                next += sizeof(length);
                const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(next);
                all[static_cast<std::size_t>(index_of(owner))].assign(begin,
                                                                      begin + static_cast<std::ptrdiff_t>(length));
                next += length;
            }
        }
        return all;
    }

    static std::vector<std::byte> joined(const std::vector<std::vector<std::byte>>& parts) {
        std::vector<std::byte> bytes;
        for (const auto& part : parts) {
            const std::uint64_t length = part.size();
            const auto header = std::as_bytes(std::span(&length, 1));
            bytes.insert(bytes.end(), header.begin(), header.end());
            bytes.insert(bytes.end(), part.begin(), part.end());
        }
        return bytes;
    }

    void finish(const Buffer& part, ReduceOp op) const {
        auto* const data = static_cast<std::byte*>(part.data);
        if (op == ReduceOp::average && device_ != nullptr) {
            std::vector<std::byte> on_host(part.bytes());
            device_->copy(on_host.data(), data, on_host.size(), operation().deadline);
            divide(on_host.data(), part.count, part.type, size());
            device_->copy(data, on_host.data(), on_host.size(), operation().deadline);
        } else if (op == ReduceOp::average) {
            divide(data, part.count, part.type, size());
        }
    }

    /// Every rank's slice in the order of lane, then node, then local rank (a rank without a lane lends itself to one
    /// of its node's), so that what a lane or a node reduces is one piece.
    struct LaneOrder {
        std::vector<Slice> lanes;                       ///< by lane
        std::vector<std::vector<Slice>> nodes_of_lane;  ///< by lane and node, within the lane's piece
        std::vector<Slice> places;                      ///< by rank, within its node's piece
        bool is_packed = false;                         ///< the slices don't lie like this in the buffer: copy them
        std::size_t count = 0;                          ///< elements of all slices
    };

    LaneOrder lane_order(const Buffer& buffer, std::span<const Slice> slices) const {
        std::vector<Rank> order;
        for (std::int32_t lane = 0; lane < lanes_; ++lane) {
            for (std::int32_t node = 0; node < topology_.nodes(); ++node) {
                const std::vector<Rank>& neighbours = topology_.ranks_of_node(node);
                for (auto local = static_cast<std::size_t>(lane); local < neighbours.size();
                     local += static_cast<std::size_t>(lanes_)) {
                    order.push_back(neighbours[local]);
                }
            }
        }
        LaneOrder result;
        result.places.resize(slices.size());
        std::size_t base = buffer.count;  // where the pieces lie in the buffer, if they lie in this order
        for (const Rank owner : order) {
            const Slice& slice = slices[static_cast<std::size_t>(index_of(owner))];
            if (slice.count() > 0) {
                base = std::min(base, slice.begin);
            }
        }
        std::size_t next = base;
        for (const Rank owner : order) {
            const Slice& slice = slices[static_cast<std::size_t>(index_of(owner))];
            result.is_packed = result.is_packed || (slice.count() > 0 && slice.begin != next);
            next += slice.count();
        }
        result.count = next - base;
        next = result.is_packed ? 0 : base;
        std::size_t position = 0;
        for (std::int32_t lane = 0; lane < lanes_; ++lane) {
            const std::size_t lane_begin = next;
            std::vector<Slice> nodes;
            for (std::int32_t node = 0; node < topology_.nodes(); ++node) {
                const std::size_t node_begin = next;
                const std::size_t neighbours = topology_.ranks_of_node(node).size();
                for (auto local = static_cast<std::size_t>(lane); local < neighbours;
                     local += static_cast<std::size_t>(lanes_)) {
                    const auto owner = static_cast<std::size_t>(index_of(order[position++]));
                    result.places[owner] = {next, next + slices[owner].count()};
                    next = result.places[owner].end;
                }
                nodes.push_back({node_begin, next});
            }
            result.lanes.push_back({lane_begin, next});
            result.nodes_of_lane.push_back(std::move(nodes));
        }
        return result;
    }

    /// A copy of the buffer's slices in lane order; valid until the next one.
    Buffer packed(const Buffer& buffer, std::span<const Slice> slices, const LaneOrder& order) {
        const std::size_t bytes = order.count * size_of(buffer.type);
        if (scratch_bytes_ < bytes) {
            scratch_ = device_ != nullptr
                           ? device_->allocate(bytes)
                           : std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
            scratch_bytes_ = bytes;
        }
        const Buffer work{scratch_.get(), order.count, buffer.type};
        for (std::size_t owner = 0; owner < slices.size(); ++owner) {
            copy(buffer, slices[owner], work, order.places[owner]);
        }
        return work;
    }

    void copy(const Buffer& from, const Slice& source, const Buffer& to, const Slice& destination) const {
        const std::size_t width = size_of(from.type);
        const std::size_t bytes = source.count() * width;
        std::byte* const target = static_cast<std::byte*>(to.data) + destination.begin * width;
        const std::byte* const origin = static_cast<const std::byte*>(from.data) + source.begin * width;
        if (device_ != nullptr) {
            device_->copy(target, origin, bytes, operation().deadline);
        } else if (bytes > 0) {
            std::memcpy(target, origin, bytes);
        }
    }

    /// What the lanes reduced for this node's ranks.
    std::vector<Slice> parts_of_this_node(const LaneOrder& order) const {
        std::vector<Slice> parts;
        parts.reserve(order.nodes_of_lane.size());
        for (const std::vector<Slice>& nodes : order.nodes_of_lane) {
            parts.push_back(nodes[static_cast<std::size_t>(node_)]);
        }
        return parts;
    }

    /// One slice for each rank of the node: the lanes', then none.
    std::vector<Slice> by_local_rank(std::vector<Slice> of_lanes) const {
        of_lanes.resize(topology_.ranks_of_node(node_).size(), Slice{0, 0});
        return of_lanes;
    }

    static std::vector<Slice> relative(std::vector<Slice> slices, std::size_t begin) {
        for (Slice& slice : slices) {
            slice = {slice.begin - begin, slice.end - begin};
        }
        return slices;
    }

    Topology topology_;
    std::unique_ptr<Communicator> inside_;
    std::unique_ptr<Communicator> across_;
    std::shared_ptr<DeviceMemory> device_;  ///< of buffers and scratch; null: the host's
    std::int32_t lanes_;
    std::int32_t node_;
    std::int32_t local_rank_;
    bool is_node_uneven_;
    std::shared_ptr<std::byte> scratch_;
    std::size_t scratch_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_hierarchical_communicator(CommunicatorIdentity identity, Topology topology,
                                                             std::unique_ptr<Communicator> inside,
                                                             std::unique_ptr<Communicator> across,
                                                             std::shared_ptr<DeviceMemory> device) {
    return std::make_unique<HierarchicalCommunicator>(std::move(identity), std::move(topology), std::move(inside),
                                                      std::move(across), std::move(device));
}

}  // namespace lockstep::comm
