#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "comm/flat_layout.h"
#include "comm/partition.h"

namespace lockstep::comm {

/// One rank's memory for the elements that it owns: under a partition that is not cut, flat memory like FlatTensors.
class Shard {
  public:
    Shard(const FlatLayout& layout, const Partition& partition, Rank rank);

    /// One-dimensional, of the range's count.
    at::Tensor of(const OwnedRange& range) const;
    std::size_t bytes() const;

  private:
    std::vector<std::size_t> segment_of_entry_;
    std::vector<at::Tensor> segments_;
};

}  // namespace lockstep::comm
