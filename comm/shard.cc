#include "comm/shard.h"

#include <ATen/ops/zeros.h>

#include "comm/flat_tensors.h"

namespace lockstep::comm {

Shard::Shard(const FlatLayout& layout, const Partition& partition, Rank rank) {
    for (const FlatLayout::Entry& entry : layout.entries()) {
        segment_of_entry_.push_back(entry.segment);
    }
    for (std::size_t segment = 0; segment < layout.segments().size(); ++segment) {
        segments_.push_back(at::zeros({static_cast<std::int64_t>(partition.shard_count(segment, rank))},
                                      scalar_type_of(layout.segments()[segment].type)));
    }
}

at::Tensor Shard::of(const OwnedRange& range) const {
    return segments_[segment_of_entry_[range.entry]].narrow(0, static_cast<std::int64_t>(range.begin_in_shard),
                                                            static_cast<std::int64_t>(range.count));
}

std::size_t Shard::bytes() const {
    std::size_t sum = 0;
    for (const at::Tensor& segment : segments_) {
        sum += segment.nbytes();
    }
    return sum;
}

}  // namespace lockstep::comm
