#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm {

/// Which ranks share a node. A value, the same on all ranks; uneven numbers of ranks per node are fine.
class Topology {
  public:
    /// By rank: a label that the ranks of one node share (nodes are numbered by their lowest rank), and the host's
    /// name.
    Topology(const std::vector<std::int32_t>& node_label_of_rank, std::vector<std::string> host_of_rank);

    std::int32_t ranks() const { return static_cast<std::int32_t>(node_of_rank_.size()); }
    std::int32_t nodes() const { return static_cast<std::int32_t>(ranks_of_node_.size()); }
    std::int32_t node_of(Rank rank) const;
    std::int32_t local_rank_of(Rank rank) const;                      ///< its position among its node's ranks
    const std::vector<Rank>& ranks_of_node(std::int32_t node) const;  ///< ascending
    const std::string& host_of(Rank rank) const;

  private:
    std::vector<std::int32_t> node_of_rank_;
    std::vector<std::string> host_of_rank_;
    std::vector<std::vector<Rank>> ranks_of_node_;
};

}  // namespace lockstep::comm
