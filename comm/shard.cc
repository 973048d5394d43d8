#include "comm/shard.h"

#include <ATen/ops/zeros.h>

namespace lockstep::comm {

namespace {

std::int64_t as_signed(std::size_t value) {
    return static_cast<std::int64_t>(value);
}

}  // namespace

Shard::Shard(const FlatLayout& layout, const Partition& partition, Rank rank) {
    for (const FlatLayout::Entry& entry : layout.entries()) {
        segment_of_entry_.push_back(entry.segment);
    }
    for (std::size_t segment = 0; segment < layout.segments().size(); ++segment) {
        segments_.push_back(at::zeros({as_signed(partition.shard_count(segment, rank))},
                                      layout.segments()[segment].type == DataType::f64 ? at::kDouble : at::kFloat));
    }
}

at::Tensor Shard::of(const OwnedRange& range) const {
    return segments_[segment_of_entry_[range.entry]].narrow(0, as_signed(range.begin_in_shard), as_signed(range.count));
}

std::size_t Shard::bytes() const {
    std::size_t sum = 0;
    for (const at::Tensor& segment : segments_) {
        sum += segment.nbytes();
    }
    return sum;
}

}  // namespace lockstep::comm
