// Reading and writing of data sets, checked against h5py and against tampered files.
#include "sharding/dataset.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "base/file.h"
#include "base/hash.h"
#include "base/hdf5.h"
#include "sharding/dataset_format.h"
#include "sharding/dataset_writer.h"
#include "tests/sharding/scratch.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::error_of;
using DatasetTest = test::Scratch;

std::vector<std::uint8_t> some_bytes(std::size_t size, std::uint8_t start) {
    std::vector<std::uint8_t> bytes(size);
    std::iota(bytes.begin(), bytes.end(), start);
    return bytes;
}

Box some_box(float x1, float y1, float x2, float y2, std::int32_t class_index, std::int64_t id) {
    return {.x1 = x1,
            .y1 = y1,
            .x2 = x2,
            .y2 = y2,
            .area = (x2 - x1) * (y2 - y1),
            .class_index = class_index,
            .flags = 0,
            .annotation_id = id};
}

const DatasetDescription detection{.task = Task::detection,
                                   .encoding = Encoding::encoded,
                                   .classes = {"tree", "bär"},
                                   .source = "a test",
                                   .max_shard_bytes = 1000};

struct Expected {
    std::vector<std::uint8_t> bytes;
    std::vector<Box> boxes;
};

/// Five images of 400 bytes: two to a shard of at most 1000 bytes.
std::vector<Expected> five_images() {
    std::vector<Expected> images(5);
    for (std::uint8_t i = 0; i < 5; ++i) {
        images[i].bytes = some_bytes(400, i);
    }
    images[1].boxes = {some_box(0, 0, 64, 48, 1, 7), some_box(1.5f, 2, 3, 4.25f, 0, 8)};
    images[1].boxes[0].flags = box_crowd;
    images[1].boxes[0].area = 99;
    images[4].boxes = {some_box(10, 10, 20, 20, 0, 9)};
    return images;
}

void write_five(const fs::path& directory, const DatasetDescription& description = detection) {
    write_dataset(directory, description, [](DatasetWriter& writer) {
        std::int64_t id = 100;
        for (const Expected& image : five_images()) {
            const Sample sample{.id = 0,
                                .image_id = id,
                                .width = 64,
                                .height = 48,
                                .label = -1,
                                .bytes = image.bytes,
                                .boxes = image.boxes};
            writer.add(sample, base::str("photo ", id++, ".jpg"));
        }
        writer.drop_image("unreadable", 2);
        writer.drop_box("inverted");
        writer.drop_box("inverted", 3);
    });
}

TEST_F(DatasetTest, GivesBackWhatWasWritten) {
    write_five(path("set"));
    const Dataset set = Dataset::open(path("set"));
    EXPECT_EQ(set.size(), 5u);
    EXPECT_EQ(set.shard_count(), 3u);
    EXPECT_EQ(set.task(), Task::detection);
    EXPECT_EQ(set.encoding(), Encoding::encoded);
    EXPECT_EQ(set.classes(), (std::vector<std::string>{"tree", "bär"}));
    EXPECT_EQ(set.source(), "a test");
    EXPECT_EQ(set.box_count(), 3u);
    EXPECT_EQ(set.max_boxes_per_image(), 2u);
    EXPECT_EQ(set.dropped_images(), (DropCounts{{"unreadable", 2}}));
    EXPECT_EQ(set.dropped_boxes(), (DropCounts{{"inverted", 4}}));
    EXPECT_EQ(set.content_hash(), set.compute_content_hash());
    EXPECT_GT(set.bytes_on_disk(), 5u * 400u);

    const std::vector<Expected> images = five_images();
    for (std::uint64_t id = 0; id < 5; ++id) {
        const Sample sample = set.sample(id);
        EXPECT_EQ(sample.id, id);
        EXPECT_EQ(sample.image_id, static_cast<std::int64_t>(100 + id));
        EXPECT_EQ(sample.width, 64u);
        EXPECT_EQ(sample.height, 48u);
        EXPECT_EQ(sample.label, -1);
        EXPECT_EQ(std::vector(sample.bytes.begin(), sample.bytes.end()), images[id].bytes) << id;
        EXPECT_EQ(set.file_name(id), base::str("photo ", 100 + id, ".jpg"));
        ASSERT_EQ(sample.boxes.size(), images[id].boxes.size()) << id;
        for (std::size_t b = 0; b < sample.boxes.size(); ++b) {
            const Box& got = sample.boxes[b];
            const Box& want = images[id].boxes[b];
            EXPECT_EQ((std::array{got.x1, got.y1, got.x2, got.y2, got.area}),
                      (std::array{want.x1, want.y1, want.x2, want.y2, want.area}));
            EXPECT_EQ(got.class_index, want.class_index);
            EXPECT_EQ(got.flags, want.flags);
            EXPECT_EQ(got.annotation_id, want.annotation_id);
        }
        EXPECT_NO_THROW(set.verify(id));
        EXPECT_NO_THROW(set.prefetch(id));
    }
}

TEST_F(DatasetTest, ContentHashKnowsContentAndNotShardBoundaries) {
    write_five(path("small shards"));
    DatasetDescription other = detection;
    other.max_shard_bytes = 1 << 20;
    other.source = "another source";
    write_five(path("one shard"), other);
    other.classes[0] = "bush";
    write_five(path("other class"), other);
    const Dataset a = Dataset::open(path("small shards"));
    const Dataset b = Dataset::open(path("one shard"));
    const Dataset c = Dataset::open(path("other class"));
    EXPECT_EQ(b.shard_count(), 1u);
    EXPECT_EQ(a.content_hash(), b.content_hash());
    EXPECT_NE(b.content_hash(), c.content_hash());
}

TEST_F(DatasetTest, EqualContentGivesEqualFiles) {
    write_five(path("a"));
    write_five(path("b"));
    for (const char* file : {"index.h5", "shard-00000.h5", "shard-00001.h5", "shard-00002.h5"}) {
        EXPECT_EQ(base::read_bytes(path("a") / file), base::read_bytes(path("b") / file)) << file;
    }
}

}  // namespace
}  // namespace lockstep::sharding
