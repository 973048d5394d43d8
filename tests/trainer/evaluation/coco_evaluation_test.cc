// What compare_with_pycocotools.py can't say: that the cut of the images and the threads change no bit, and what is
// refused.
#include "trainer/evaluation/coco_evaluation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "tests/base/scratch.h"
#include "tests/trainer/evaluation/made_up_detections.h"

namespace lockstep::trainer::coco {
namespace {

using base::contains;
using base::Error;
using base::message_of;
using tests::Cut;
using tests::MadeUpDetections;
using tests::make_up_detections;
using tests::numbers_of;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<std::uint64_t> bits_of(const Result& result) {
    return tests::bits_of(numbers_of(result));
}

/// Cut, matched apart, sent as bytes and merged, the last part first.
Result result_of_parts(const MadeUpDetections& all, const Cut& cut, std::size_t parts) {
    std::vector<EvaluationShard> shards;
    for (std::size_t part = parts; part-- > 0;) {
        shards.push_back(EvaluationShard::from_bytes(part_of(all, cut, part).match().to_bytes()));
    }
    return accumulate(merge(shards));
}

TEST(CocoEvaluationTest, MadeUpDetectionsAreNeitherPerfectNorHopeless) {
    const Result result = accumulate(make_up_detections(300, 12).match());
    for (std::size_t i = 0; i < stat_names.size(); ++i) {
        EXPECT_GT(result.stats[i], 0.1) << stat_names[i];
        EXPECT_LT(result.stats[i], 0.9) << stat_names[i];
    }
}

TEST(CocoEvaluationTest, AnyCutOfTheImagesGivesTheSameBits) {
    const MadeUpDetections all = make_up_detections(300, 12);
    const auto whole = bits_of(accumulate(all.match()));
    for (const std::size_t parts : {2, 3, 7, 300}) {
        for (const auto& [name, cut] : cuts_into(parts, all)) {
            EXPECT_TRUE(bits_of(result_of_parts(all, cut, parts)) == whole) << parts << " parts, " << name;
        }
    }
}

TEST(CocoEvaluationTest, AnyNumberOfThreadsGivesTheSameBits) {
    const MadeUpDetections all = make_up_detections(300, 12);
    const auto alone = bits_of(accumulate(all.match(1), 1));
    for (const unsigned threads : {0U, 2U, 3U, 5U, 16U}) {
        EXPECT_TRUE(bits_of(accumulate(all.match(threads), threads)) == alone) << threads << " threads";
    }
}

/// Threads take the images in parts of 64: no image may be lost or taken twice where one part ends.
TEST(CocoEvaluationTest, ImagesAroundTheEndOfAPartCountOnce) {
    for (const std::size_t images : {1, 63, 64, 65, 127, 128, 129}) {
        const MadeUpDetections all = make_up_detections(images, 3);
        Cut each_apart(images);
        std::iota(each_apart.begin(), each_apart.end(), 0);
        const Result whole = accumulate(all.match(3), 3);
        EXPECT_TRUE(bits_of(whole) == bits_of(result_of_parts(all, each_apart, images))) << images << " images";
    }
}

TEST(CocoEvaluationTest, ComparingBitsIsNotBlindToNaN) {
    EXPECT_THROW(tests::bits_of(std::vector{0.5, nan}), std::logic_error);
    EXPECT_NE(tests::bits_of(std::vector{0.0}), tests::bits_of(std::vector{-0.0}));
}

TEST(CocoEvaluationTest, NothingAtAllIsMinusOne) {
    const Result result = accumulate(MadeUpDetections{}.match());
    for (std::size_t i = 0; i < stat_names.size(); ++i) {
        EXPECT_EQ(result.stats[i], -1) << stat_names[i];
    }
}

struct Refusal {
    const char* what;
    std::function<void(MadeUpDetections&)> spoil;
    const char* fragment;
};

TEST(CocoEvaluationTest, RefusesWhatCantBeEvaluated) {
    const Refusal refusals[] = {
        {"an image twice", [](auto& all) { all.image_ids.push_back(all.image_ids[0]); }, "image 0 is evaluated more"},
        {"a category twice", [](auto& all) { all.categories.push_back(4); }, "category 4 is evaluated more than once"},
        {"a box of no image", [](auto& all) { all.boxes[2].image_id = -7; }, "box 2: image -7 is not among"},
        {"a detection of no image", [](auto& all) { all.detections[3].image_id = -7; }, "detection 3: image -7 is not"},
        {"a score that is NaN", [](auto& all) { all.detections[3].score = nan; }, "the score is nan"},
        {"an infinite score", [](auto& all) { all.detections[3].score = -infinity; }, "the score is -inf"},
        {"a coordinate that is NaN", [](auto& all) { all.detections[3].box.width = nan; },
         "a coordinate is not finite"},
        {"an infinite coordinate", [](auto& all) { all.detections[3].box.y = infinity; }, "a coordinate is not finite"},
        {"a box's NaN", [](auto& all) { all.boxes[2].box.x = nan; }, "box 2 (annotation 3): a coordinate or the area"},
        {"an infinite area", [](auto& all) { all.boxes[2].area = infinity; }, "box 2 (annotation 3): a coordinate or"},
    };
    for (const Refusal& refusal : refusals) {
        MadeUpDetections all = make_up_detections(20, 3);
        refusal.spoil(all);
        EXPECT_TRUE(contains(message_of<Error>([&] { all.match(); }), refusal.fragment)) << refusal.what;
    }
}

TEST(CocoEvaluationTest, RefusesLimitsThatDontRise) {
    for (const Options& options : {Options{.max_detections = {0, 10, 100}}, Options{.max_detections = {1, 100, 10}},
                                   Options{.max_detections = {1, 10, 10}}}) {
        EXPECT_TRUE(contains(message_of<base::UsageError>([&] { require_valid(options); }), "must be three numbers"))
            << options.max_detections[0] << ' ' << options.max_detections[1] << ' ' << options.max_detections[2];
    }
}

TEST(CocoEvaluationTest, RefusesShardsThatDontBelongTogether) {
    const EvaluationShard shard = make_up_detections(20, 3).match();
    const auto message = [&](EvaluationShard other) {
        return message_of<Error>([&] { merge(std::vector{shard, std::move(other)}); });
    };
    EXPECT_TRUE(contains(message(shard), "image 0 is evaluated more than once"));
    EXPECT_TRUE(contains(message(make_up_detections(20, 4).match()), "differ in categories or detection limits"));
    EvaluationShard other = MadeUpDetections{.categories = shard.categories}.match();
    EXPECT_EQ(message(other), "(nothing was thrown)");
    other.max_detections = {1, 10, 99};
    EXPECT_TRUE(contains(message(other), "differ in categories or detection limits"));
}

TEST(CocoEvaluationTest, RefusesDamagedBytes) {
    const std::vector<std::byte> good = make_up_detections(4, 2).match().to_bytes();
    for (std::size_t size = 0; size < good.size(); ++size) {
        EXPECT_THROW(EvaluationShard::from_bytes(std::span(good).first(size)), Error) << size << " bytes";
    }
    const auto message = [](const std::vector<std::byte>& bytes) {
        return message_of<Error>([&] { EvaluationShard::from_bytes(bytes); });
    };
    std::vector<std::byte> bad = good;
    bad.push_back(std::byte{0});
    EXPECT_TRUE(contains(message(bad), "bytes left over"));
    bad = good;
    bad[0] ^= std::byte{1};
    EXPECT_TRUE(contains(message(bad), "of another kind"));
    EvaluationShard shard = make_up_detections(4, 2).match();
    for (const std::int32_t category_index : {-1, 2}) {
        shard.detections.at(0).category_index = category_index;
        EXPECT_TRUE(contains(message(shard.to_bytes()), "a category that it doesn't have")) << category_index;
    }
}

}  // namespace
}  // namespace lockstep::trainer::coco
