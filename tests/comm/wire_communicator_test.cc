// Ranks are threads over one segment here; what carries the 16-bit values does not matter.
#include "comm/wire_communicator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "comm/reduce.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/thread_node.h"

namespace lockstep::comm {
namespace {

void on_wire(std::int32_t size, DataType wire, const std::function<void(Communicator&)>& body) {
    std::vector<Rank> members;
    for (std::int32_t rank = 0; rank < size; ++rank) {
        members.push_back(Rank{rank});
    }
    tests::ThreadNode node(members);
    tests::on_rank_threads(size, [&](Rank rank) {
        body(*make_wire_communicator(node.join("wire", rank, std::chrono::minutes(5)), wire));
    });
}

class Wire : public testing::TestWithParam<std::tuple<std::int32_t, DataType>> {};

/// Small whole numbers are exact in 16 bits, so every operation is as without it; FP64 and integers always are.
TEST_P(Wire, EveryCollectiveGivesTheClosedForm) {
    const auto [size, wire] = GetParam();
    on_wire(size, wire, [](Communicator& ranks) {
        for (const DataType type : {DataType::f64, DataType::i32, DataType::i64, DataType::u8}) {
            tests::expect_closed_forms(ranks, type, 10007, tests::Memory::shared);
        }
        tests::expect_bytes_of_any_length(ranks);
        std::vector<float> values(1000, static_cast<float>(index_of(ranks.rank()) + 1));
        ranks.all_gather(Buffer::of(std::span(values)), "untouched");
        ranks.broadcast(Buffer::of(std::span(values)), Rank{0}, "untouched");
        EXPECT_EQ(ranks.sent().squared_values, 0);
    });
}

/// Values over many powers of two, with every reduction: within what the type's digits allow, and with the same bits on
/// all ranks.
TEST_P(Wire, ReductionsAreOfTheRoundedValues) {
    const auto [size, wire] = GetParam();
    const double unit = wire == DataType::bf16 ? 0x1p-8 : 0x1p-11;  // of 8 and 11 significant bits: half of the last
    on_wire(size, wire, [&, size = size](Communicator& ranks) {
        constexpr std::size_t count = 20011;
        const auto value = [&](std::int32_t rank, std::size_t i) {
            return static_cast<float>(std::sin(static_cast<double>(i) + rank) * 3e-3 + 4e-3);
        };
        for (const bool is_scattered : {false, true}) {
            for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::max}) {
                std::vector<float> values(count);
                for (std::size_t i = 0; i < count; ++i) {
                    values[i] = value(index_of(ranks.rank()), i);
                }
                Slice own{0, count};
                if (is_scattered) {
                    ranks.reduce_scatter(Buffer::of(std::span(values)), op, "test");
                    own = slice_of(count, size, ranks.rank());
                } else {
                    ranks.all_reduce(Buffer::of(std::span(values)), op, "test");
                    EXPECT_TRUE(tests::same_on_all_ranks(ranks, std::as_bytes(std::span(values))));
                }
                for (std::size_t i = own.begin; i < own.end; ++i) {
                    double expected = op == ReduceOp::max ? value(0, i) : 0, magnitude = 0;
                    for (std::int32_t rank = 0; rank < size; ++rank) {
                        const double one = value(rank, i);
                        expected = op == ReduceOp::max ? std::max(expected, one) : expected + one;
                        magnitude += std::abs(one);
                    }
                    expected = op == ReduceOp::average ? expected / size : expected;
                    // Contributions are rounded once, and the result once.
                    ASSERT_NEAR(values[i], expected, 2.01 * unit * magnitude) << name_of(op) << ", element " << i;
                }
            }
        }
        const double error = ranks.sent().relative_error();
        EXPECT_GT(error, 0.1 * unit);
        EXPECT_LT(error, unit);
    });
}

INSTANTIATE_TEST_SUITE_P(Sizes, Wire,
                         testing::Combine(testing::Values(1, 2, 3, 5), testing::Values(DataType::bf16, DataType::f16)),
                         [](const auto& info) {
                             return base::str(name_of(std::get<1>(info.param)), "On", std::get<0>(info.param));
                         });

/// Gradients of 1e-9 or 1e9 are nothing or infinity in f16 without a scale.
TEST(WireF16, AnAgreedScaleKeepsAnyMagnitude) {
    on_wire(3, DataType::f16, [](Communicator& ranks) {
        for (const float magnitude : {1e-38F, 1e-9F, 1.0F, 6e4F, 1e9F, 1e38F}) {
            // One rank's values are a thousand times smaller: the scale is all ranks', not its own.
            const float own = ranks.rank() == Rank{1} ? magnitude / 1024 : magnitude;
            std::vector<float> values(100, own);
            ranks.all_reduce(Buffer::of(std::span(values)), ReduceOp::sum, "test");
            const double expected = static_cast<double>(magnitude) * (2 + 1.0 / 1024);
            EXPECT_NEAR(values[0] / expected, 1, 0x1p-10) << magnitude;
            EXPECT_TRUE(tests::same_on_all_ranks(ranks, std::as_bytes(std::span(values)))) << magnitude;
        }
    });
}

TEST(WireF16, WhatIsNoNumberStaysSo) {
    for (const DataType wire : {DataType::f16, DataType::bf16}) {
        on_wire(2, wire, [](Communicator& ranks) {
            const bool is_first = ranks.rank() == Rank{0};
            std::vector<float> values = {1, is_first ? std::numeric_limits<float>::infinity() : 1,
                                         is_first ? 1 : std::numeric_limits<float>::quiet_NaN(), 0};
            ranks.all_reduce(Buffer::of(std::span(values)), ReduceOp::sum, "test");
            EXPECT_EQ(values[0], 2);
            EXPECT_EQ(values[1], std::numeric_limits<float>::infinity());
            EXPECT_TRUE(std::isnan(values[2])) << values[2];
            EXPECT_EQ(values[3], 0);
            EXPECT_EQ(ranks.sent().relative_error(), 0) << "an infinite value has no error that could be added up";
        });
    }
}

TEST(WireTypes, HaveTheRecipesNames) {
    EXPECT_EQ(wire_type_of("fp32"), DataType::f32);
    EXPECT_EQ(wire_type_of("bf16"), DataType::bf16);
    EXPECT_EQ(wire_type_of("fp16"), DataType::f16);
    EXPECT_THROW(wire_type_of("f16"), base::UsageError);
}

}  // namespace
}  // namespace lockstep::comm
