#include "comm/partition.h"

#include <algorithm>

#include "base/error.h"

namespace lockstep::comm {

namespace {

/// Even slices whose bounds are multiples of a cache line, so that no two ranks write to one.
std::vector<Slice> slices_at_cache_lines(std::size_t count, std::int32_t ranks, std::size_t width) {
    const std::size_t line = cache_line_bytes / width;
    std::vector<Slice> slices = even_slices((count + line - 1) / line, ranks);
    for (Slice& slice : slices) {
        slice = {std::min(slice.begin * line, count), std::min(slice.end * line, count)};
    }
    return slices;
}

}  // namespace

Partition::Partition(const FlatLayout& layout, std::int32_t ranks, ZeroStage stage) : layout_(&layout), stage_(stage) {
    LOCKSTEP_CHECK(ranks > 0, ranks, " ranks");
    if (is_cut()) {
        for (const FlatLayout::Bucket& bucket : layout.buckets()) {
            slices_.push_back(
                slices_at_cache_lines(bucket.count(), ranks, size_of(layout.segments()[bucket.segment].type)));
        }
    }
}

std::span<const Slice> Partition::slices_of_bucket(std::size_t bucket) const {
    return slices_.at(bucket);
}

std::vector<OwnedRange> Partition::ranges_of(Rank rank) const {
    std::vector<OwnedRange> ranges;
    std::vector<std::size_t> used(layout_->segments().size(), 0);  // of the shard, by segment
    for (std::size_t index = 0; index < layout_->buckets().size(); ++index) {
        const FlatLayout::Bucket& bucket = layout_->buckets()[index];
        Slice owned{bucket.begin, bucket.end};
        if (is_cut()) {
            const Slice slice = slices_[index][static_cast<std::size_t>(index_of(rank))];
            owned = {bucket.begin + slice.begin, bucket.begin + slice.end};
        }
        for (std::size_t entry = 0; entry < layout_->entries().size(); ++entry) {
            const FlatLayout::Entry& place = layout_->entries()[entry];
            const std::size_t begin = std::max(owned.begin, place.begin);
            const std::size_t end = std::min(owned.end, place.begin + place.count);
            if (place.segment == bucket.segment && begin < end) {
                ranges.push_back({entry, begin - place.begin, end - begin, used[bucket.segment] + begin - owned.begin});
            }
        }
        used[bucket.segment] += owned.count();
    }
    return ranges;
}

std::size_t Partition::shard_count(std::size_t segment, Rank rank) const {
    std::size_t count = 0;
    for (std::size_t index = 0; index < layout_->buckets().size(); ++index) {
        const FlatLayout::Bucket& bucket = layout_->buckets()[index];
        if (bucket.segment == segment) {
            count += is_cut() ? slices_[index][static_cast<std::size_t>(index_of(rank))].count() : bucket.count();
        }
    }
    return count;
}

TrainingBytes predicted_bytes(const FlatLayout& layout, std::int32_t ranks, ZeroStage stage, std::size_t state_arrays,
                              bool keeps_average) {
    std::uint64_t whole = 0;
    for (const FlatLayout::Segment& segment : layout.segments()) {
        whole += segment.count * size_of(segment.type);
    }
    const auto by_share = [&](bool is_cut) {
        const auto count = static_cast<std::uint64_t>(ranks);
        return is_cut ? (whole + count - 1) / count : whole;
    };
    const std::uint64_t share = by_share(stage != ZeroStage::none);
    return {.parameters = by_share(stage >= ZeroStage::parameters),
            .gradients = by_share(stage >= ZeroStage::gradients),
            .state = share * state_arrays,
            .average = keeps_average ? share : 0};
}

}  // namespace lockstep::comm
