#include "comm/communicator.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace lockstep::comm {
namespace {

TEST(SliceOf, CutsWithoutGapsIntoSizesThatDifferByOneAtMost) {
    for (const std::size_t count : {0, 1, 2, 7, 8, 1000, 10007}) {
        for (std::int32_t size = 1; size <= 9; ++size) {
            std::size_t expected_begin = 0;
            std::size_t previous_count = slice_of(count, size, Rank{0}).count();
            for (std::int32_t rank = 0; rank < size; ++rank) {
                const Slice slice = slice_of(count, size, Rank{rank});
                EXPECT_EQ(slice.begin, expected_begin) << count << " over " << size << ", rank " << rank;
                EXPECT_LE(slice.count(), previous_count);
                EXPECT_LE(count / size, slice.count());
                EXPECT_LE(slice.count(), count / size + 1);
                expected_begin = slice.end;
                previous_count = slice.count();
            }
            EXPECT_EQ(expected_begin, count);
        }
    }
}

TEST(SliceOf, RefusesRanksOutsideTheGroup) {
    EXPECT_THROW(slice_of(10, 2, Rank{2}), base::InternalError);
    EXPECT_THROW(slice_of(10, 2, Rank{-1}), base::InternalError);
}

TEST(DataType, HasSizeAndName) {
    EXPECT_EQ(size_of(DataType::f16), 2U);
    EXPECT_EQ(size_of(DataType::bf16), 2U);
    EXPECT_EQ(size_of(data_type_of<float>()), sizeof(float));
    EXPECT_EQ(size_of(data_type_of<double>()), sizeof(double));
    EXPECT_EQ(size_of(data_type_of<std::int32_t>()), sizeof(std::int32_t));
    EXPECT_EQ(size_of(data_type_of<std::int64_t>()), sizeof(std::int64_t));
    EXPECT_EQ(size_of(data_type_of<std::uint8_t>()), sizeof(std::uint8_t));
    EXPECT_EQ(name_of(DataType::bf16), "bf16");
    EXPECT_EQ(name_of(ReduceOp::average), "average");
}

TEST(SingleCommunicator, LeavesEverythingAsItIs) {
    const auto single = make_single_communicator();
    EXPECT_EQ(single->rank(), Rank{0});
    EXPECT_EQ(single->size(), 1);
    const std::vector<float> given = {1.5F, -2.0F, 3.25F};
    std::vector<float> values = given;
    const Buffer buffer = Buffer::of(std::span(values));
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max}) {
        single->all_reduce(buffer, op, "test");
        single->reduce_scatter(buffer, op, "test");
    }
    single->all_gather(buffer, "test");
    single->broadcast(buffer, Rank{0}, "test");
    single->barrier("test");
    EXPECT_EQ(values, given);
    const std::string text = "bytes";
    const auto all = single->all_gather_bytes(std::as_bytes(std::span(text)), "test");
    ASSERT_EQ(all.size(), 1U);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(all[0].data()), all[0].size()), text);
    EXPECT_THROW(single->broadcast(buffer, Rank{1}, "test"), base::InternalError);
}

}  // namespace
}  // namespace lockstep::comm
