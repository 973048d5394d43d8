#include "comm/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace lockstep::comm {
namespace {

/// A 16-bit float read off its definition: sign, biased exponent, fraction.
double value_of(std::uint16_t bits, int exponent_bits) {
    const int fraction_bits = 15 - exponent_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
        return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                             : sign * std::numeric_limits<double>::infinity();
    }
    return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias - fraction_bits)
                         : sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

struct Format {
    const char* name;
    int exponent_bits;
    float (*to_float)(std::uint16_t);
    std::uint16_t (*from_float)(float);
};

class SixteenBit : public testing::TestWithParam<Format> {};

TEST_P(SixteenBit, EveryValueIsReadAsDefinedAndSurvivesTheRoundTrip) {
    for (std::uint32_t word = 0; word <= 0xffff; ++word) {
        const auto bits = static_cast<std::uint16_t>(word);
        const double expected = value_of(bits, GetParam().exponent_bits);
        const float read = GetParam().to_float(bits);
        if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(read)) << std::hex << word;
            ASSERT_TRUE(std::isnan(GetParam().to_float(GetParam().from_float(read)))) << std::hex << word;
        } else {
            ASSERT_EQ(read, expected) << std::hex << word;
            ASSERT_EQ(GetParam().from_float(read), bits) << std::hex << word;
        }
    }
}

/// Between each two neighbours: the middle goes to the even one, a step of FP32 beside the middle to the nearer one.
TEST_P(SixteenBit, RoundsToNearestTiesToEven) {
    const int exponent_bits = GetParam().exponent_bits;
    const auto infinity = static_cast<std::uint32_t>(((1 << exponent_bits) - 1) << (15 - exponent_bits));
    for (std::uint32_t low = 0; low < infinity; ++low) {
        const double a = value_of(static_cast<std::uint16_t>(low), exponent_bits);
        // Beyond the largest finite value the neighbour is where the next one would be.
        const double spacing = low + 1 == infinity ? a - value_of(static_cast<std::uint16_t>(low - 1), exponent_bits)
                                                   : value_of(static_cast<std::uint16_t>(low + 1), exponent_bits) - a;
        const auto middle = static_cast<float>(a + spacing / 2);
        ASSERT_EQ(middle, a + spacing / 2) << "exact in FP32, " << std::hex << low;
        const auto even = static_cast<std::uint16_t>(low % 2 == 0 ? low : low + 1);
        const float below = std::nextafter(middle, 0.0F);
        const float above = std::nextafter(middle, std::numeric_limits<float>::infinity());
        for (const std::uint16_t sign : {0x0000, 0x8000}) {
            const float factor = sign == 0 ? 1.0F : -1.0F;
            ASSERT_EQ(GetParam().from_float(factor * middle), sign | even) << std::hex << low;
            ASSERT_EQ(GetParam().from_float(factor * below), sign | low) << std::hex << low;
            ASSERT_EQ(GetParam().from_float(factor * above), sign | (low + 1)) << std::hex << low;
        }
    }
}

TEST_P(SixteenBit, SumsInSinglePrecisionAndRoundsOnce) {
    // Largest value with spacing 2 in its format, and ones: each alone would be rounded away.
    const float large = GetParam().exponent_bits == 8 ? 256.0F : 2048.0F;
    const std::uint16_t first = GetParam().from_float(large);
    const std::uint16_t one = GetParam().from_float(1.0F);
    const DataType type = GetParam().exponent_bits == 8 ? DataType::bf16 : DataType::f16;
    const auto bytes = [](const std::uint16_t& value) { return reinterpret_cast<const std::byte*>(&value); };
    std::uint16_t result = 0;
    reduce_in_order(std::vector{bytes(first), bytes(one), bytes(one)}, reinterpret_cast<std::byte*>(&result), 1, type,
                    ReduceOp::sum);
    EXPECT_EQ(GetParam().to_float(result), large + 2);
    reduce_in_order(std::vector{bytes(first), bytes(one), bytes(one)}, reinterpret_cast<std::byte*>(&result), 1, type,
                    ReduceOp::average);
    EXPECT_EQ(GetParam().to_float(result), GetParam().to_float(GetParam().from_float((large + 2) / 3)));
}

INSTANTIATE_TEST_SUITE_P(Formats, SixteenBit,
                         testing::Values(Format{"f16", 5, f16_to_float, float_to_f16},
                                         Format{"bf16", 8, bf16_to_float, float_to_bf16}),
                         [](const auto& info) { return info.param.name; });

template <typename T>
std::vector<T> reduced(const std::vector<std::vector<T>>& values, ReduceOp op) {
    std::vector<const std::byte*> sources(values.size());
    std::ranges::transform(values, sources.begin(), [](const std::vector<T>& source) {
        return reinterpret_cast<const std::byte*>(source.data());
    });
    std::vector<T> result(values[0].size());
    reduce_in_order(sources, reinterpret_cast<std::byte*>(result.data()), result.size(), data_type_of<T>(), op);
    return result;
}

TEST(ReduceInOrder, AddsInTheOrderOfTheSources) {
    const std::size_t count = 3001;
    std::vector<std::vector<float>> values(5, std::vector<float>(count));
    base::Random random(1, base::RandomPurpose::test, 0, 0);
    for (auto& source : values) {
        for (float& value : source) {
            value = static_cast<float>(random.normal() * std::exp(5 * random.normal()));
        }
    }
    const std::vector<float> result = reduced(values, ReduceOp::sum);
    std::size_t order_matters = 0;
    for (std::size_t i = 0; i < count; ++i) {
        float expected = values[0][i];
        float backward = values[4][i];
        for (std::size_t source = 1; source < 5; ++source) {
            expected = expected + values[source][i];
            backward = backward + values[4 - source][i];
        }
        ASSERT_EQ(result[i], expected) << i;
        order_matters += expected != backward ? 1 : 0;
    }
    EXPECT_GT(order_matters, count / 10) << "the test would not notice another order";
}

TEST(ReduceInOrder, MayWriteOverASource) {
    std::vector<double> a = {1, 2, 3};
    const std::vector<double> b = {10, 20, 30};
    auto* const destination = reinterpret_cast<std::byte*>(a.data());
    reduce_in_order(std::vector<const std::byte*>{reinterpret_cast<const std::byte*>(b.data()), destination},
                    destination, 3, DataType::f64, ReduceOp::sum);
    EXPECT_EQ(a, (std::vector<double>{11, 22, 33}));
}

TEST(ReduceInOrder, IntegerSumsWrapAndAveragesRoundTowardZero) {
    using i32 = std::int32_t;
    using i64 = std::int64_t;
    using u8 = std::uint8_t;
    constexpr i32 max32 = std::numeric_limits<i32>::max();
    constexpr i64 max64 = std::numeric_limits<i64>::max();
    EXPECT_EQ(reduced<i32>({{max32}, {1}}, ReduceOp::sum)[0], std::numeric_limits<i32>::min());
    EXPECT_EQ(reduced<i64>({{max64}, {1}}, ReduceOp::sum)[0], std::numeric_limits<i64>::min());
    EXPECT_EQ(reduced<u8>({{200}, {100}}, ReduceOp::sum)[0], 44);
    EXPECT_EQ(reduced<u8>({{200}, {101}}, ReduceOp::average)[0], 150);
    EXPECT_EQ(reduced<i32>({{max32}, {max32}}, ReduceOp::average)[0], max32);
    EXPECT_EQ(reduced<i32>({{-3}, {-4}}, ReduceOp::average)[0], -3);
    EXPECT_EQ(reduced<i64>({{7}, {8}}, ReduceOp::average)[0], 7);
}

TEST(ReduceInOrder, NanOnAnyRankReachesTheResult) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max}) {
        const std::vector<float> result = reduced<float>({{nan, 1, 1}, {1, nan, 2}, {2, 2, 3}}, op);
        EXPECT_TRUE(std::isnan(result[0])) << name_of(op);
        EXPECT_TRUE(std::isnan(result[1])) << name_of(op);
        EXPECT_FALSE(std::isnan(result[2])) << name_of(op);
    }
}

}  // namespace
}  // namespace lockstep::comm
