#include "comm/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace lockstep::comm {
namespace {

FlatLayout some_layout(std::size_t bucket_bytes) {
    std::vector<FlatTensor> tensors;
    const std::vector<std::size_t> counts = {432, 16, 16, 0, 1, 100000, 64, 7, 4096, 2500, 33};
    for (std::size_t i = 0; i < counts.size(); ++i) {
        tensors.push_back({"tensor" + std::to_string(i), counts[i], static_cast<std::int32_t>(i % 3 == 2 ? 1 : 0),
                           i == 8 ? DataType::f64 : DataType::f32});
    }
    return {tensors, bucket_bytes};
}

TEST(Partition, EveryElementHasOneOwnerAndOnePlaceInItsShard) {
    for (const std::size_t bucket_bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{1} << 30}) {
        const FlatLayout layout = some_layout(bucket_bytes);
        for (const ZeroStage stage : {ZeroStage::state, ZeroStage::gradients}) {
            for (const std::int32_t ranks : {1, 2, 3, 4, 7}) {
                const Partition partition(layout, ranks, stage);
                std::vector<std::vector<int>> owners;
                for (const FlatLayout::Entry& entry : layout.entries()) {
                    owners.emplace_back(entry.count, 0);
                }
                for (std::int32_t rank = 0; rank < ranks; ++rank) {
                    std::vector<std::vector<int>> used;
                    for (std::size_t segment = 0; segment < layout.segments().size(); ++segment) {
                        used.emplace_back(partition.shard_count(segment, Rank{rank}), 0);
                    }
                    for (const OwnedRange& range : partition.ranges_of(Rank{rank})) {
                        std::vector<int>& shard = used[layout.entries()[range.entry].segment];
                        ASSERT_GT(range.count, 0U);
                        ASSERT_LE(range.begin + range.count, owners[range.entry].size());
                        ASSERT_LE(range.begin_in_shard + range.count, shard.size());
                        for (std::size_t i = 0; i < range.count; ++i) {
                            ++owners[range.entry][range.begin + i];
                            ++shard[range.begin_in_shard + i];
                        }
                    }
                    for (const std::vector<int>& shard : used) {
                        EXPECT_TRUE(std::ranges::all_of(shard, [](int times) { return times <= 1; }))
                            << "rank " << rank;
                    }
                }
                for (std::size_t entry = 0; entry < owners.size(); ++entry) {
                    EXPECT_TRUE(std::ranges::all_of(owners[entry], [](int times) { return times == 1; }))
                        << layout.entries()[entry].name << " of " << ranks << " ranks";
                }
            }
        }
    }
}

TEST(Partition, SlicesCoverTheirBucketAtCacheLines) {
    const FlatLayout layout = some_layout(4096);
    const Partition partition(layout, 3, ZeroStage::state);
    for (std::size_t bucket = 0; bucket < layout.buckets().size(); ++bucket) {
        const std::size_t width = size_of(layout.segments()[layout.buckets()[bucket].segment].type);
        std::size_t end = 0;
        ASSERT_EQ(partition.slices_of_bucket(bucket).size(), 3U);
        for (const Slice& slice : partition.slices_of_bucket(bucket)) {
            EXPECT_EQ(slice.begin, end);
            EXPECT_TRUE(slice.begin * width % 64 == 0 || slice.count() == 0) << slice.begin;
            end = slice.end;
        }
        EXPECT_EQ(end, layout.buckets()[bucket].count());
    }
}

TEST(Partition, UncutEveryRankOwnsEverythingWhereItLies) {
    const FlatLayout layout = some_layout(4096);
    const Partition partition(layout, 3, ZeroStage::none);
    for (const std::int32_t rank : {0, 2}) {
        const std::vector<OwnedRange> ranges = partition.ranges_of(Rank{rank});
        ASSERT_EQ(ranges.size(), layout.entries().size() - 1) << "all but the empty one";
        for (const OwnedRange& range : ranges) {
            const FlatLayout::Entry& entry = layout.entries()[range.entry];
            EXPECT_EQ(range.begin, 0U);
            EXPECT_EQ(range.count, entry.count);
            EXPECT_EQ(range.begin_in_shard, entry.begin);
        }
    }
}

TEST(Partition, BytesFollowTheFormulaWithinThreePercent) {
    std::vector<FlatTensor> tensors;
    for (std::size_t i = 0; i < 60; ++i) {
        tensors.push_back({"tensor" + std::to_string(i), i % 3 == 0 ? 64 : 9 * 1024 * (1 + i % 5), 0, DataType::f32});
    }
    const FlatLayout layout(tensors, 256 << 10);
    for (const std::int32_t ranks : {2, 3, 4, 8}) {
        const Partition partition(layout, ranks, ZeroStage::state);
        const TrainingBytes predicted = predicted_bytes(layout, ranks, ZeroStage::state, 1, true);
        for (std::int32_t rank = 0; rank < ranks; ++rank) {
            const auto bytes = static_cast<double>(4 * partition.shard_count(0, Rank{rank}));
            EXPECT_NEAR(bytes, static_cast<double>(predicted.state), 0.03 * bytes) << rank << " of " << ranks;
        }
    }
    const TrainingBytes whole = predicted_bytes(layout, 4, ZeroStage::none, 2, true);
    EXPECT_EQ(whole.all(), 5 * whole.parameters);
    const TrainingBytes sharded = predicted_bytes(layout, 4, ZeroStage::gradients, 2, false);
    EXPECT_EQ(sharded.parameters, whole.parameters);
    EXPECT_EQ(sharded.gradients, whole.parameters / 4);
    EXPECT_EQ(sharded.state, whole.parameters / 2);
    EXPECT_EQ(sharded.average, 0U);
}

}  // namespace
}  // namespace lockstep::comm
