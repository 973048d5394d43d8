#include "comm/flat_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"

namespace lockstep::comm {

DataType data_type_of(const at::Tensor& tensor) {
    switch (tensor.scalar_type()) {
        case at::kFloat:
            return DataType::f32;
        case at::kDouble:
            return DataType::f64;
        case at::kHalf:
            return DataType::f16;
        case at::kBFloat16:
            return DataType::bf16;
        case at::kInt:
            return DataType::i32;
        case at::kLong:
            return DataType::i64;
        case at::kByte:
            return DataType::u8;
        default:
            throw base::Error(base::str("collectives know no tensors of type ", tensor.scalar_type(),
                                        "; use float, double, half, bfloat16, int, long or byte"));
    }
}

at::ScalarType scalar_type_of(DataType type) {
    switch (type) {
        case DataType::f32:
            return at::kFloat;
        case DataType::f64:
            return at::kDouble;
        case DataType::f16:
            return at::kHalf;
        case DataType::bf16:
            return at::kBFloat16;
        case DataType::i32:
            return at::kInt;
        case DataType::i64:
            return at::kLong;
        case DataType::u8:
            return at::kByte;
    }
    LOCKSTEP_CHECK(false, "data type ", static_cast<int>(type));
}

Buffer buffer_of(const at::Tensor& tensor) {
    LOCKSTEP_CHECK(tensor.is_cpu(), "a tensor on ", tensor.device().str());
    LOCKSTEP_CHECK(tensor.is_non_overlapping_and_dense(), "a tensor with gaps or overlaps");
    return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), data_type_of(tensor)};
}

FlatTensors::FlatTensors(const FlatLayout& layout) : entries_(layout.entries()) {
    for (const FlatLayout::Segment& segment : layout.segments()) {
        segments_.push_back(at::zeros({static_cast<std::int64_t>(segment.count)}, scalar_type_of(segment.type)));
    }
}

FlatTensors::FlatTensors(const FlatLayout& layout, Communicator& communicator, std::string_view name)
    : entries_(layout.entries()) {
    for (const FlatLayout::Segment& segment : layout.segments()) {
        const auto memory = communicator.allocate(segment.count * size_of(segment.type), name);
        segments_.push_back(at::from_blob(
            memory.get(), {static_cast<std::int64_t>(segment.count)}, [memory](void*) {},
            at::TensorOptions(scalar_type_of(segment.type))));
    }
}

at::Tensor FlatTensors::view(std::size_t entry, const at::Tensor& like) const {
    const FlatLayout::Entry& place = entries_.at(entry);
    LOCKSTEP_CHECK_EQ(static_cast<std::size_t>(like.numel()), place.count, place.name);
    LOCKSTEP_CHECK(like.is_non_overlapping_and_dense(), place.name, " has gaps or overlaps");
    const at::Tensor& segment = segments_[place.segment];
    LOCKSTEP_CHECK_EQ(like.scalar_type(), segment.scalar_type(), place.name);
    return segment.as_strided(like.sizes(), like.strides(), static_cast<std::int64_t>(place.begin));
}

at::Tensor FlatTensors::flat(std::size_t entry) const {
    const FlatLayout::Entry& place = entries_.at(entry);
    return segments_[place.segment].narrow(0, static_cast<std::int64_t>(place.begin),
                                           static_cast<std::int64_t>(place.count));
}

Buffer FlatTensors::buffer(const FlatLayout::Bucket& bucket) const {
    Buffer all = buffer_of(segments_.at(bucket.segment));
    return {static_cast<std::byte*>(all.data) + bucket.begin * size_of(all.type), bucket.count(), all.type};
}

void FlatTensors::adopt(std::span<const at::Tensor> parameters) {
    LOCKSTEP_CHECK_EQ(parameters.size(), entries_.size());
    const at::NoGradGuard no_grad;
    for (std::size_t entry = 0; entry < parameters.size(); ++entry) {
        const at::Tensor place = view(entry, parameters[entry]);
        place.copy_(parameters[entry]);
        parameters[entry].set_data(place);
    }
}

std::size_t FlatTensors::bytes() const {
    std::size_t sum = 0;
    for (const at::Tensor& segment : segments_) {
        sum += segment.nbytes();
    }
    return sum;
}

void FlatTensors::zero() {
    for (const at::Tensor& segment : segments_) {
        segment.zero_();
    }
}

}  // namespace lockstep::comm
