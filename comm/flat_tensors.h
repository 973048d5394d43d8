#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/flat_layout.h"

namespace lockstep::comm {

/// The element type for collectives; throws base::Error for a type that they do not have.
DataType data_type_of(const at::Tensor& tensor);
at::ScalarType scalar_type_of(DataType type);

/// A tensor's memory, for collectives. It must lie on the CPU and be dense (any order of dimensions, so channels_last
/// too). The tensor must outlive the buffer.
Buffer buffer_of(const at::Tensor& tensor);

/// Zeroed flat memory in a FlatLayout, one allocation per segment, and tensors as views into it.
class FlatTensors {
  public:
    explicit FlatTensors(const FlatLayout& layout);
    /// In memory of `communicator`, on which its collectives copy least. Collective.
    FlatTensors(const FlatLayout& layout, Communicator& communicator, std::string_view name);

    /// One-dimensional.
    const at::Tensor& segment(std::size_t index) const { return segments_.at(index); }
    const std::vector<at::Tensor>& segments() const { return segments_; }

    /// Entry `entry` with the shape and strides of `like`, which is dense and has the entry's count and type.
    at::Tensor view(std::size_t entry, const at::Tensor& like) const;
    /// Entry `entry`, or a bucket, as plain elements.
    at::Tensor flat(std::size_t entry) const;
    Buffer buffer(const FlatLayout::Bucket& bucket) const;

    /// Moves the parameters (in the layout's order of entries) into this memory: their values are copied and their
    /// storage is replaced, so that writing the segments writes the parameters. Gradients and graph hooks stay.
    void adopt(std::span<const at::Tensor> parameters);

    void zero();
    std::size_t bytes() const;

  private:
    std::vector<FlatLayout::Entry> entries_;
    std::vector<at::Tensor> segments_;
};

}  // namespace lockstep::comm
