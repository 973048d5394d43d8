#include "comm/topology.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace lockstep::comm {

Topology::Topology(const std::vector<std::int32_t>& node_label_of_rank, std::vector<std::string> host_of_rank)
    : host_of_rank_(std::move(host_of_rank)) {
    LOCKSTEP_CHECK_EQ(node_label_of_rank.size(), host_of_rank_.size());
    std::unordered_map<std::int32_t, std::int32_t> node_of_label;
    for (const std::int32_t label : node_label_of_rank) {
        const auto [found, is_new] = node_of_label.try_emplace(label, nodes());
        if (is_new) {
            ranks_of_node_.emplace_back();
        }
        const std::int32_t node = found->second;
        ranks_of_node_[node].push_back(Rank{ranks()});
        node_of_rank_.push_back(node);
    }
}

std::int32_t Topology::node_of(Rank rank) const {
    return node_of_rank_.at(index_of(rank));
}

std::int32_t Topology::local_rank_of(Rank rank) const {
    const std::vector<Rank>& neighbours = ranks_of_node(node_of(rank));
    return static_cast<std::int32_t>(std::ranges::find(neighbours, rank) - neighbours.begin());
}

const std::vector<Rank>& Topology::ranks_of_node(std::int32_t node) const {
    return ranks_of_node_.at(node);
}

const std::string& Topology::host_of(Rank rank) const {
    return host_of_rank_.at(index_of(rank));
}

}  // namespace lockstep::comm
