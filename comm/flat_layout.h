#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::comm {

/// Tensors, and the parts that ranks write, start at multiples of it.
constexpr std::size_t cache_line_bytes = 64;

/// What the layout needs to know of a trainable tensor.
struct FlatTensor {
    std::string name;
    std::size_t count = 0;  ///< elements
    std::int32_t head = 0;  ///< whose loss it hears
    DataType type = DataType::f32;
    std::size_t unit = 0;  ///< of the network, ascending in model order; see GatheredParameters
};

/// Where every trainable tensor lies in flat memory: a pure function of the tensors, the same for parameters,
/// gradients, optimizer state and averages, so that one index range means the same parameter in all of them.
///
/// There is one segment per head and type. In it tensors lie in reverse model order, in which the backward pass
/// finishes them; each starts on a cache line (the gap is never read as part of a tensor and stays zero). Buckets cut a
/// segment between tensors, and hold tensors of one unit.
class FlatLayout {
  public:
    struct Segment {
        std::int32_t head;
        DataType type;
        std::size_t count;  ///< elements, gaps included
    };
    struct Entry {
        std::string name;
        std::size_t segment;
        std::size_t begin;  ///< element in the segment
        std::size_t count;
    };
    struct Bucket {
        std::size_t segment;
        std::size_t begin, end;  ///< elements in the segment
        std::size_t unit;
        std::size_t count() const { return end - begin; }
    };

    /// Tensors in model order. A bucket is closed as soon as it holds `bucket_bytes`, and where a unit ends.
    FlatLayout(const std::vector<FlatTensor>& tensors, std::size_t bucket_bytes);

    const std::vector<Segment>& segments() const { return segments_; }
    const std::vector<Entry>& entries() const { return entries_; }  ///< in model order
    /// The bucket that a tensor with elements lies in.
    std::size_t bucket_of(std::size_t entry) const;
    const std::vector<Bucket>& buckets() const { return buckets_; }  ///< in the order in which they are reduced

  private:
    std::vector<Segment> segments_;
    std::vector<Entry> entries_;
    std::vector<Bucket> buckets_;
};

}  // namespace lockstep::comm
