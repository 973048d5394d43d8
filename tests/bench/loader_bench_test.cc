#include "bench/loader_bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/file.h"
#include "bench/page_cache.h"
#include "sharding/dataset_writer.h"
#include "sharding/image.h"
#include "tests/sharding/scratch.h"

namespace lockstep::bench {
namespace {

using sharding::DecodeMode;
using sharding::Encoding;
using sharding::ReadPath;
using test::contains;

class LoaderBench : public test::Scratch {
  protected:
    LoaderPlan plan(Encoding encoding) const {
        sharding::write_dataset(
            path("set"), {.encoding = encoding, .classes = {"thing"}, .source = "test"},
            [&](sharding::DatasetWriter& writer) {
                for (std::uint8_t id = 0; id < 12; ++id) {
                    sharding::Image image = sharding::Image::blank(64, 48);
                    std::ranges::fill(image.pixels, id);
                    add(writer, encoding == Encoding::raw ? image.pixels : sharding::encode_jpeg(image, 90));
                }
            });
        std::filesystem::create_directories(path("scratch"));
        LoaderPlan plan;
        plan.dataset = path("set");
        plan.scratch = path("scratch");
        plan.options.image_size = 32;
        plan.options.effective_batch = 5;
        plan.options.threads = 3;
        plan.options.augmentation.enabled = true;
        plan.options.augmentation.mosaic = 1;
        plan.options.augmentation.hsv_value = 0.4;
        plan.seconds = 0.002;
        plan.rounds = 2;
        plan.copy = [](const sharding::MicroBatch&) {};
        return plan;
    }

  private:
    static void add(sharding::DatasetWriter& writer, const std::vector<std::uint8_t>& bytes) {
        const sharding::Box box{
            .x1 = 10, .y1 = 5, .x2 = 64, .y2 = 48, .area = 10, .class_index = 0, .flags = 0, .annotation_id = 0};
        writer.add({.id = 0, .image_id = 1, .width = 64, .height = 48, .label = -1, .bytes = bytes, .boxes = {&box, 1}},
                   "image");
    }
};

TEST_F(LoaderBench, MeasuresEveryPartInEveryWayAndLeavesNothingBehind) {
    for (const Encoding encoding : {Encoding::encoded, Encoding::raw}) {
        std::filesystem::remove_all(path("set"));
        const LoaderPlan all = plan(encoding);
        const LoaderMeasurement measured = bench_loader(all);
        std::set<std::string> ways;
        for (const LoaderRow& row : measured.rows) {
            const std::string way =
                base::str(name_of(row.part), " ", name_of(row.decode), " ", static_cast<int>(row.encoding), " ",
                          name_of(row.read), " ", row.threads, " ", row.without);
            ways.insert(way);
            EXPECT_GT(row.images, 0u) << way;
            EXPECT_GT(row.images_per_second, 0) << way;
            EXPECT_LE(row.least, row.images_per_second) << way;
            EXPECT_GE(row.most, row.images_per_second) << way;
            EXPECT_GT(row.pss_bytes, 1u << 20) << way;
            // A mosaic has four; what needs no augmentation has one.
            EXPECT_EQ(row.samples_per_image, row.part == LoaderPart::all ? 4 : 1) << way;
        }
        // Threads 1, 2 and 3; decode and all by two paths, each encoded in full, encoded scaled, and raw.
        const auto rows = [&](LoaderPart part) {
            return std::ranges::count_if(measured.rows,
                                         [&](const LoaderRow& row) { return row.part == part && row.without.empty(); });
        };
        const std::size_t from_storage_and_memory = 2;
        EXPECT_EQ(rows(LoaderPart::decode), 3 * 2 * 3 * from_storage_and_memory);
        EXPECT_EQ(rows(LoaderPart::all), 3 * 2 * 3 * from_storage_and_memory);
        EXPECT_EQ(rows(LoaderPart::augment), 3);
        EXPECT_EQ(rows(LoaderPart::assemble), 3);
        EXPECT_EQ(rows(LoaderPart::copy), 1);
        EXPECT_EQ(ways.count(base::str("augment full ", static_cast<int>(encoding), " mmap 1 mosaic")), 1u);
        EXPECT_EQ(ways.count(base::str("all full 0 mmap 3 decoding")), encoding == Encoding::encoded ? 1u : 0u);
        EXPECT_EQ(measured.samples, 12u);
        EXPECT_EQ(measured.scratch_samples, 12u);
        EXPECT_TRUE(std::filesystem::is_empty(path("scratch")));
        EXPECT_TRUE(contains(explain(all, measured, 3), "Loading with 3 threads gives "));
    }
}

TEST_F(LoaderBench, FiltersLeaveOnlyWhatIsAskedFor) {
    LoaderPlan one = plan(Encoding::encoded);
    one.options.decoded_cache_bytes = 0;
    one.parts = {LoaderPart::all};
    one.decodes = {DecodeMode::scaled};
    one.encodings = {Encoding::encoded};
    one.reads = {ReadPath::hdf5};
    one.threads = {2};
    one.cold = {false};
    const LoaderMeasurement measured = bench_loader(one);
    ASSERT_EQ(measured.rows.size(), 1u);
    EXPECT_EQ(measured.rows[0].decode, DecodeMode::scaled);
    EXPECT_EQ(measured.rows[0].read, ReadPath::hdf5);
    EXPECT_EQ(measured.rows[0].threads, 2u);
    EXPECT_EQ(measured.scratch_samples, 0u) << "nothing asks for the other encoding";
    one.decodes = {DecodeMode::scaled};
    one.encodings = {Encoding::raw};
    EXPECT_THROW(bench_loader(one), base::UsageError);
}

TEST_F(LoaderBench, ColdIsSaidOnlyWhereThePagesAreProvedGone) {
    LoaderPlan cold = plan(Encoding::encoded);
    cold.parts = {LoaderPart::decode};
    cold.encodings = {Encoding::encoded};
    cold.cold = {true};
    const std::filesystem::path shard = path("set") / "shard-00000.h5";
    const bool can_be_cold = drop_from_page_cache(path("set"));
    for (const LoaderRow& row : bench_loader(cold).rows) {
        EXPECT_EQ(row.is_cold, can_be_cold);
    }
    ASSERT_TRUE(read_into_page_cache(path("set"), 1 << 30));
    EXPECT_EQ(resident_fraction(shard), 1);
    EXPECT_FALSE(read_into_page_cache(path("set"), 100)) << "larger than what may be read";

    // Where somebody has mapped and touched the files the kernel keeps them.
    const base::MappedFile mapped(shard);
    int sum = 0;
    for (const std::uint8_t byte : mapped.bytes()) {
        sum += byte;
    }
    ASSERT_GT(sum, 0);
    EXPECT_FALSE(drop_from_page_cache(path("set")));
    for (const LoaderRow& row : bench_loader(cold).rows) {
        EXPECT_FALSE(row.is_cold);
    }
    EXPECT_FALSE(bench_loader(cold).could_be_cold);
}

/// A measurement as it might be: a rate for each row of interest.
class Explained : public testing::Test {
  protected:
    Explained() {
        plan_.options.threads = 2;
        set(LoaderPart::decode, 1, 400);
        set(LoaderPart::augment, 1, 2000);
        set(LoaderPart::assemble, 1, 10000);
        set(LoaderPart::copy, 1, 5000);
        set(LoaderPart::all, 1, 300);
        set(LoaderPart::all, 2, 580);
    }
    LoaderRow& set(LoaderPart part, unsigned threads, double rate) {
        LoaderRow row;
        row.part = part;
        row.threads = threads;
        row.images_per_second = rate;
        return measured_.rows.emplace_back(row);
    }
    LoaderRow& own(LoaderPart part, unsigned threads) {
        return *std::ranges::find_if(measured_.rows, [&](const LoaderRow& row) {
            return row.part == part && row.threads == threads && !row.is_cold && row.without.empty();
        });
    }
    std::string text(unsigned cores = 2) const { return explain(plan_, measured_, cores); }

    LoaderPlan plan_;
    LoaderMeasurement measured_;
};

TEST_F(Explained, DecodingNamesTheFasterWays) {
    set(LoaderPart::all, 2, 1200).decode = DecodeMode::scaled;
    set(LoaderPart::all, 2, 2900).encoding = Encoding::raw;
    EXPECT_TRUE(contains(text(),
                         "2.50 ms to decode and 0.50 ms to augment, 0.10 ms to assemble; copying it takes the "
                         "training thread 0.20 ms"));
    EXPECT_TRUE(contains(text(), "Limit: decoding, 83 % of the loader threads' time"));
    EXPECT_TRUE(contains(text(), "data.decode = \"scaled\": 2.1 times as fast (1200 images/s)"));
    EXPECT_TRUE(contains(text(), "import with --raw --side 640: 5.0 times as fast (2900 images/s)"));
    EXPECT_FALSE(contains(text(), "data.threads")) << "all cores are in use";
    EXPECT_TRUE(contains(text(8), "data.threads: up to 8 cores may be used, and 2 are"));
}

TEST_F(Explained, WhatIsNoFasterIsNotRecommended) {
    set(LoaderPart::all, 2, 600).decode = DecodeMode::scaled;
    EXPECT_FALSE(contains(text(), "scaled"));
}

TEST_F(Explained, PartnersOfAMosaicAreDecodedToo) {
    own(LoaderPart::augment, 1).images_per_second = 200;
    EXPECT_TRUE(contains(text(), "Limit: augmentation"));
    own(LoaderPart::all, 2).samples_per_image = 4;
    EXPECT_TRUE(contains(text(), "10.00 ms to decode and 5.00 ms to augment (it shows 4.0 samples)"));
    EXPECT_TRUE(contains(text(), "Limit: decoding"));
}

TEST_F(Explained, AugmentationNamesItsDearPart) {
    own(LoaderPart::augment, 1).images_per_second = 100;
    set(LoaderPart::augment, 1, 500).without = "hsv";
    set(LoaderPart::augment, 1, 101).without = "contrast";
    EXPECT_TRUE(contains(text(), "without hsv augmenting takes 2.00 ms instead of 10.00"));
    EXPECT_FALSE(contains(text(), "without contrast"));
}

TEST_F(Explained, StorageAndCopy) {
    set(LoaderPart::all, 2, 100).is_cold = true;
    EXPECT_TRUE(contains(text(),
                         "Limit: storage. The first epoch, and every one if the data set doesn't stay in "
                         "memory, runs at 17 % of the rate from memory"));
    measured_.rows.pop_back();
    own(LoaderPart::copy, 1).images_per_second = 300;
    EXPECT_TRUE(contains(text(), "Limit: the copy into the network's input"));
}

TEST_F(Explained, SaysWhatIsMissingInsteadOfGuessing) {
    measured_.rows.clear();
    EXPECT_TRUE(contains(text(), "can't be said"));
}

}  // namespace
}  // namespace lockstep::bench
