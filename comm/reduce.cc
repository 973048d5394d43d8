#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "base/error.h"

namespace lockstep::comm {

namespace {

/// How a type is stored and in what it is summed. Integers sum in an unsigned or wider type, where wrapping is defined.
template <typename Stored, typename Sum = Stored>
struct Plain {
    using Storage = Stored;
    using Accumulator = Sum;
    static Accumulator load(Storage value) { return static_cast<Accumulator>(value); }
    static Storage store(Accumulator value) { return static_cast<Storage>(value); }
};

struct Half {
    using Storage = std::uint16_t;
    using Accumulator = float;
    static float load(std::uint16_t bits) { return f16_to_float(bits); }
    static std::uint16_t store(float value) { return float_to_f16(value); }
};

struct Bfloat {
    using Storage = std::uint16_t;
    using Accumulator = float;
    static float load(std::uint16_t bits) { return bf16_to_float(bits); }
    static std::uint16_t store(float value) { return float_to_bf16(value); }
};

template <typename T>
T wrapping_add(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        using Unsigned = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
        return a + b;
    }
}

template <typename T>
bool is_nan(T value) {
    if constexpr (std::is_floating_point_v<T>) {
        return std::isnan(value);
    } else {
        return false;
    }
}

template <ReduceOp Op, typename T>
T combine(T a, T b) {
    if constexpr (Op == ReduceOp::min) {
        return b < a || is_nan(b) ? b : a;
    } else if constexpr (Op == ReduceOp::max) {
        return b > a || is_nan(b) ? b : a;
    } else {
        return wrapping_add(a, b);
    }
}

template <typename Format, ReduceOp Op>
void reduce(std::span<const std::byte* const> sources, std::byte* destination, std::size_t count) {
    using Storage = typename Format::Storage;
    using Accumulator = typename Format::Accumulator;
    constexpr std::size_t block = 1024;  // elements: accumulators stay in the first-level cache
    std::array<Accumulator, block> sums;
    const auto divisor = static_cast<Accumulator>(sources.size());
    for (std::size_t begin = 0; begin < count; begin += block) {
        const std::size_t length = std::min(block, count - begin);
        const auto* first = reinterpret_cast<const Storage*>(sources[0]) + begin;
        for (std::size_t i = 0; i < length; ++i) {
            sums[i] = Format::load(first[i]);
        }
        for (const std::byte* source : sources.subspan(1)) {
            const auto* values = reinterpret_cast<const Storage*>(source) + begin;
            for (std::size_t i = 0; i < length; ++i) {
                sums[i] = combine<Op>(sums[i], Format::load(values[i]));
            }
        }
        auto* results = reinterpret_cast<Storage*>(destination) + begin;
        for (std::size_t i = 0; i < length; ++i) {
            results[i] = Format::store(Op == ReduceOp::average ? sums[i] / divisor : sums[i]);
        }
    }
}

template <typename Format>
void reduce_by(ReduceOp op, std::span<const std::byte* const> sources, std::byte* destination, std::size_t count) {
    switch (op) {
        case ReduceOp::sum:
            return reduce<Format, ReduceOp::sum>(sources, destination, count);
        case ReduceOp::average:
            return reduce<Format, ReduceOp::average>(sources, destination, count);
        case ReduceOp::min:
            return reduce<Format, ReduceOp::min>(sources, destination, count);
        case ReduceOp::max:
            return reduce<Format, ReduceOp::max>(sources, destination, count);
    }
}

template <typename Format>
void divide_all(std::byte* data, std::size_t count, std::int32_t divisor) {
    auto* const values = reinterpret_cast<typename Format::Storage*>(data);
    const auto by = static_cast<typename Format::Accumulator>(divisor);
    for (std::size_t i = 0; i < count; ++i) {
        values[i] = Format::store(Format::load(values[i]) / by);
    }
}

/// visit.operator()<Format>() for the format of `type`.
template <typename Visit>
void with_format(DataType type, Visit visit) {
    switch (type) {
        case DataType::f32:
            return visit.template operator()<Plain<float>>();
        case DataType::f64:
            return visit.template operator()<Plain<double>>();
        case DataType::f16:
            return visit.template operator()<Half>();
        case DataType::bf16:
            return visit.template operator()<Bfloat>();
        case DataType::i32:
            return visit.template operator()<Plain<std::int32_t, std::int64_t>>();
        case DataType::i64:
            return visit.template operator()<Plain<std::int64_t>>();
        case DataType::u8:
            return visit.template operator()<Plain<std::uint8_t, std::int32_t>>();
    }
}

}  // namespace

void reduce_in_order(std::span<const std::byte* const> sources, std::byte* destination, std::size_t count,
                     DataType type, ReduceOp op) {
    LOCKSTEP_CHECK(!sources.empty(), "nothing to reduce");
    with_format(type, [&]<typename Format>() { reduce_by<Format>(op, sources, destination, count); });
}

void divide(std::byte* data, std::size_t count, DataType type, std::int32_t divisor) {
    LOCKSTEP_CHECK_NE(divisor, 0);
    with_format(type, [&]<typename Format>() { divide_all<Format>(data, count, divisor); });
}

}  // namespace lockstep::comm
