#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace lockstep::comm {

/// The arithmetic of every reduction: destination[i] = sources[0][i] op sources[1][i] op ..., strictly in the order of
/// the sources, whatever the count and the alignment, so that an element's result depends on nothing but the ranks'
/// values. 16-bit types accumulate in FP32 and are rounded once. `destination` may be one of the sources. Not
/// collective.
void reduce_in_order(std::span<const std::byte* const> sources, std::byte* destination, std::size_t count,
                     DataType type, ReduceOp op);

/// data[i] = data[i] / divisor, as the average of reduce_in_order divides: 16-bit types in FP32, integers toward zero.
void divide(std::byte* data, std::size_t count, DataType type, std::int32_t divisor);

/// IEEE 754 binary16 and bfloat16 (the upper half of binary32), rounding to nearest, ties to even. NaN stays NaN.
float f16_to_float(std::uint16_t bits);
float bf16_to_float(std::uint16_t bits);
std::uint16_t float_to_f16(float value);
std::uint16_t float_to_bf16(float value);

}  // namespace lockstep::comm
