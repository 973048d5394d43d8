#include "comm/flat_layout.h"

#include <gtest/gtest.h>

#include <map>

namespace lockstep::comm {
namespace {

std::vector<FlatTensor> some_tensors() {
    std::vector<FlatTensor> tensors;
    const std::vector<std::size_t> counts = {432, 16, 16, 0, 1, 100000, 64, 7, 4096, 2500, 33};
    for (std::size_t i = 0; i < counts.size(); ++i) {
        tensors.push_back({"tensor" + std::to_string(i), counts[i], static_cast<std::int32_t>(i % 3 == 2 ? 1 : 0),
                           i == 8 ? DataType::f64 : DataType::f32});
    }
    return tensors;
}

TEST(FlatLayout, TensorsDoNotOverlapAndStartOnCacheLines) {
    const auto tensors = some_tensors();
    const FlatLayout layout(tensors, 4096);
    ASSERT_EQ(layout.entries().size(), tensors.size());
    ASSERT_EQ(layout.segments().size(), 3U) << "head 0 f32, head 1 f32, head 1 f64";
    std::map<std::size_t, std::size_t> next_free;
    for (std::size_t i = tensors.size(); i-- > 0;) {  // reverse model order, as in memory
        const FlatLayout::Entry& entry = layout.entries()[i];
        const FlatLayout::Segment& segment = layout.segments()[entry.segment];
        EXPECT_EQ(entry.name, tensors[i].name);
        EXPECT_EQ(entry.count, tensors[i].count);
        EXPECT_EQ(segment.head, tensors[i].head);
        EXPECT_EQ(segment.type, tensors[i].type);
        EXPECT_EQ(entry.begin * size_of(segment.type) % 64, 0U) << entry.name;
        EXPECT_GE(entry.begin, next_free[entry.segment]) << entry.name;
        EXPECT_LE(entry.begin + entry.count, segment.count) << entry.name;
        next_free[entry.segment] = entry.begin + entry.count;
    }
}

TEST(FlatLayout, BucketsCoverEachSegmentOnceAndCutBetweenTensors) {
    for (const std::size_t bucket_bytes : {1, 256, 4096, 1 << 30}) {
        const FlatLayout layout(some_tensors(), bucket_bytes);
        std::map<std::size_t, std::size_t> covered;
        for (const FlatLayout::Bucket& bucket : layout.buckets()) {
            EXPECT_EQ(bucket.begin, covered[bucket.segment]) << bucket_bytes;
            EXPECT_LT(bucket.begin, bucket.end);
            covered[bucket.segment] = bucket.end;
            for (const FlatLayout::Entry& entry : layout.entries()) {
                if (entry.segment == bucket.segment && entry.count > 0) {
                    const bool starts_inside = bucket.begin <= entry.begin && entry.begin < bucket.end;
                    const std::size_t end = entry.begin + entry.count;
                    const bool ends_inside = bucket.begin < end && end <= bucket.end;
                    EXPECT_EQ(starts_inside, ends_inside) << entry.name << " is cut";
                }
            }
        }
        for (std::size_t i = 0; i < layout.segments().size(); ++i) {
            EXPECT_EQ(covered[i], layout.segments()[i].count) << bucket_bytes;
        }
    }
    EXPECT_EQ(FlatLayout(some_tensors(), 1 << 30).buckets().size(), 3U);
}

TEST(FlatLayout, OfNothingIsEmpty) {
    const FlatLayout layout({}, 1024);
    EXPECT_TRUE(layout.segments().empty());
    EXPECT_TRUE(layout.buckets().empty());
}

}  // namespace
}  // namespace lockstep::comm
