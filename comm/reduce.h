#pragma once

#include <bit>
#include <cmath>
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
/// Here, so that loops over them can be made to fill the vector unit.
inline float bf16_to_float(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t float_to_bf16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if (std::isnan(value)) {
        return static_cast<std::uint16_t>((bits >> 16) |
                                          0x0040);  // quiet, so that dropped payload bits can't leave infinity
    }
    const std::uint32_t tie_to_even = (bits >> 16) & 1;
    return static_cast<std::uint16_t>((bits + 0x7fff + tie_to_even) >> 16);
}

inline float f16_to_float(std::uint16_t bits) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1f;
    const std::uint32_t fraction = bits & 0x3ff;
    if (exponent == 0x1f) {
        return std::bit_cast<float>(sign | 0x7f800000 | (fraction << 13));
    }
    if (exponent == 0) {  // zero and subnormals: units of 2^-24, exact in FP32
        const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
        return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
    }
    return std::bit_cast<float>(sign | ((exponent + (127 - 15)) << 23) | (fraction << 13));
}

inline std::uint16_t float_to_f16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
    const std::uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return static_cast<std::uint16_t>(sign | 0x7e00);
    }
    if (magnitude >= std::bit_cast<std::uint32_t>(65520.0F)) {  // halfway between the largest finite value and 2^16
        return static_cast<std::uint16_t>(sign | 0x7c00);
    }
    if (magnitude < std::bit_cast<std::uint32_t>(0x1p-14F)) {
        // Adding 0.5 puts the unit of 2^-24 at the last place of the fraction, so the FPU does the rounding.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
        return static_cast<std::uint16_t>(sign |
                                          (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F)));
    }
    const std::uint32_t tie_to_even = (magnitude >> 13) & 1;
    const std::uint32_t rebased = magnitude - ((127U - 15U) << 23);
    return static_cast<std::uint16_t>(sign | ((rebased + 0xfff + tie_to_even) >> 13));
}

}  // namespace lockstep::comm
