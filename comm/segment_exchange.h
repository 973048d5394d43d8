#pragma once

#include <cstddef>
#include <memory>

#include "comm/communicator.h"
#include "comm/shared_segment.h"

namespace lockstep::comm {

/// How the ranks of one node come to share a segment. They may be processes, or threads of one process.
class SegmentExchange {
  public:
    virtual ~SegmentExchange() = default;
    /// Of the node.
    virtual std::size_t ranks() const = 0;
    /// Collective: a new zeroed segment of `bytes_per_rank` (the same everywhere) for each rank, made by the first one,
    /// mapped by all, with its pages reserved, each part by its own rank. Throws base::Error on every rank if one
    /// can't.
    virtual SharedSegment share(std::size_t bytes_per_rank) = 0;
};

/// For processes: the handle goes over `meeting`, a communicator of exactly the node's ranks.
std::unique_ptr<SegmentExchange> exchange_over(std::unique_ptr<Communicator> meeting);

}  // namespace lockstep::comm
