#include "comm/flat_layout.h"

#include <algorithm>

#include "base/error.h"

namespace lockstep::comm {

namespace {

std::size_t rounded_up(std::size_t value, std::size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

FlatLayout::FlatLayout(const std::vector<FlatTensor>& tensors, std::size_t bucket_bytes) : entries_(tensors.size()) {
    std::vector<std::size_t> bucket_begin;  // by segment: where its open bucket starts
    const auto close_bucket = [&](std::size_t index, std::size_t unit) {
        if (bucket_begin[index] < segments_[index].count) {
            buckets_.push_back({index, bucket_begin[index], segments_[index].count, unit});
            bucket_begin[index] = segments_[index].count;
        }
    };
    const auto close_all_buckets = [&](std::size_t unit) {
        for (std::size_t index = 0; index < segments_.size(); ++index) {
            close_bucket(index, unit);
        }
    };
    std::size_t unit = tensors.empty() ? 0 : tensors.back().unit;
    for (std::size_t i = tensors.size(); i-- > 0;) {
        const FlatTensor& tensor = tensors[i];
        if (tensor.unit != unit) {
            LOCKSTEP_CHECK_LT(tensor.unit, unit, tensor.name, ": units ascend in model order");
            close_all_buckets(unit);
            unit = tensor.unit;
        }
        const auto found = std::ranges::find_if(segments_, [&](const Segment& segment) {
            return segment.head == tensor.head && segment.type == tensor.type;
        });
        const auto index = static_cast<std::size_t>(found - segments_.begin());
        if (found == segments_.end()) {
            segments_.push_back({tensor.head, tensor.type, 0});
            bucket_begin.push_back(0);
        }
        Segment& segment = segments_[index];
        const std::size_t width = size_of(tensor.type);
        entries_[i] = {tensor.name, index, segment.count, tensor.count};
        segment.count += rounded_up(tensor.count, cache_line_bytes / width);
        if ((segment.count - bucket_begin[index]) * width >= bucket_bytes) {
            close_bucket(index, unit);
        }
    }
    close_all_buckets(unit);
}

std::size_t FlatLayout::bucket_of(std::size_t entry) const {
    const Entry& place = entries_.at(entry);
    const auto found = std::ranges::find_if(buckets_, [&](const Bucket& bucket) {
        return bucket.segment == place.segment && bucket.begin <= place.begin &&
               place.begin + place.count <= bucket.end;
    });
    LOCKSTEP_CHECK(found != buckets_.end(), place.name, " is in no bucket");
    return static_cast<std::size_t>(found - buckets_.begin());
}

}  // namespace lockstep::comm
