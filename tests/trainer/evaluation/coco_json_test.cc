// What COCO files may hold, and the message for each way in which one can be damaged.
#include "trainer/evaluation/coco_json.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/error.h"
#include "tests/base/scratch.h"

namespace lockstep::trainer::coco {
namespace {

using base::contains;
using base::Error;
using base::message_of;

constexpr std::string_view good_truth =
    R"({"info": {"year": 2017}, "images": [{"id": 5, "file_name": "a.jpg"}, {"id": 3}],)"
    R"( "annotations": [{"id": 1, "image_id": 5, "category_id": 2, "bbox": [1, 2.5, 10, 20], "area": 150.5, "iscrowd": 0,)"
    R"( "segmentation": [[1, 2, 3, 4]]}], "categories": [{"id": 2, "name": "tr\u00e9e"}, {"id": 1}]})";
constexpr std::string_view good_detections =
    R"([{"image_id": 5, "category_id": 2, "bbox": [1, 2, 3, 4], "score": 0.25, "more": {"a": [1]}},)"
    R"( {"score": 1e-3, "bbox": [1.5, 2, 3, 4], "category_id": 1.0, "image_id": -3}])";

class CocoJsonTest : public testing::Test {
  protected:
    std::filesystem::path file(std::string_view text) const {
        const std::filesystem::path path = scratch_ / "file.json";
        std::ofstream(path, std::ios::binary) << text;
        return path;
    }
    std::string truth_message(std::string_view text) const {
        return message_of<Error>([&] { read_ground_truth(file(text)); });
    }
    std::string detections_message(std::string_view text) const {
        return message_of<Error>([&] { read_detections(file(text)); });
    }

    base::ScratchDirectory scratch_;
};

/// `text` with the first `before` in it replaced.
std::string with(std::string_view text, std::string_view before, std::string_view after) {
    std::string changed(text);
    const auto place = changed.find(before);
    EXPECT_NE(place, std::string::npos) << before;
    return changed.replace(place, before.size(), after);
}

TEST_F(CocoJsonTest, ReadsGroundTruth) {
    const GroundTruth truth = read_ground_truth(file(good_truth));
    EXPECT_EQ(truth.image_ids, (std::vector<std::int64_t>{3, 5}));
    EXPECT_EQ(truth.categories, (std::vector<std::int64_t>{1, 2}));
    EXPECT_EQ(truth.category_names, (std::vector<std::string>{"", "tr\u00e9e"}));
    EXPECT_TRUE(truth.warnings.empty()) << truth.warnings.front();
    ASSERT_EQ(truth.boxes.size(), 1);
    const GroundTruthBox& box = truth.boxes.front();
    EXPECT_EQ(box.id, 1);
    EXPECT_EQ(box.image_id, 5);
    EXPECT_EQ(box.category, 2);
    EXPECT_EQ(box.box.x, 1);
    EXPECT_EQ(box.box.y, 2.5);
    EXPECT_EQ(box.box.width, 10);
    EXPECT_EQ(box.box.height, 20);
    EXPECT_EQ(box.area, 150.5);
    EXPECT_FALSE(box.crowd);
    EXPECT_FALSE(box.ignore);
}

TEST_F(CocoJsonTest, ReadsDetections) {
    const std::vector<Detection> detections = read_detections(file(good_detections));
    ASSERT_EQ(detections.size(), 2);
    EXPECT_EQ(detections[0].image_id, 5);
    EXPECT_EQ(detections[0].category, 2);
    EXPECT_EQ(detections[0].score, 0.25);
    EXPECT_EQ(detections[1].image_id, -3);
    EXPECT_EQ(detections[1].category, 1);
    EXPECT_EQ(detections[1].box.x, 1.5);
    EXPECT_EQ(detections[1].box.height, 4);
    EXPECT_EQ(detections[1].score, 1e-3);
    EXPECT_TRUE(read_detections(file("[]")).empty());
}

TEST_F(CocoJsonTest, MarksMayBeNumbersTruthValuesOrNull) {
    for (const auto& [text, expected] :
         {std::pair{"1", true}, {"true", true}, {"0", false}, {"false", false}, {"null", false}}) {
        const auto changed =
            with(good_truth, R"("iscrowd": 0)", base::str(R"("ignore": )", text, R"(, "iscrowd": )", text));
        const GroundTruth truth = read_ground_truth(file(changed));
        EXPECT_EQ(truth.boxes.at(0).crowd, expected) << text;
        EXPECT_EQ(truth.boxes.at(0).ignore, expected) << text;
    }
}

struct Case {
    const char* what;
    std::string text;
    const char* fragment;
};

TEST_F(CocoJsonTest, WarnsOfWhatCountsOtherwiseThanOneWouldThink) {
    const std::string two = R"({"id": 1, "image_id": 3, "category_id": 1, "bbox": [0, 0, 1, 1], "area": 1}, )";
    const Case cases[] = {
        {"no area", with(good_truth, R"("area": 150.5,)", ""), "1 annotations have no area"},
        {"a null area", with(good_truth, "150.5", "null"), "1 annotations have no area"},
        {"an image that isn't listed", with(good_truth, R"("image_id": 5)", R"("image_id": 6)"),
         "1 annotations are of"},
        {"a class that isn't listed", with(good_truth, R"("category_id": 2)", R"("category_id": 6)"),
         "1 annotations are of"},
        {"id 0", with(good_truth, R"([{"id": 1)", R"([{"id": 0)"), "1 annotations have the id 0"},
        {"one id twice", with(good_truth, R"({"id": 1,)", two + R"({"id": 1,)"),
         "1 annotations have an id that a later"},
    };
    for (const auto& [what, text, fragment] : cases) {
        const auto warnings = read_ground_truth(file(text)).warnings;
        ASSERT_EQ(warnings.size(), 1) << what;
        EXPECT_TRUE(contains(warnings.front(), fragment)) << what;
    }
    EXPECT_EQ(read_ground_truth(file(with(good_truth, R"("area": 150.5,)", ""))).boxes.at(0).area, 200);
    for (const std::size_t i : {4, 5}) {
        EXPECT_TRUE(read_ground_truth(file(cases[i].text), true).warnings.empty()) << cases[i].what << ", ids fixed";
    }
}

TEST_F(CocoJsonTest, NamesWhatIsWrongInDetections) {
    const std::string_view good = good_detections;
    const Case cases[] = {
        {"nothing", "", "file.json: the JSON ends too early"},
        {"an object", "{}", "file.json: not COCO results: an array of detections"},
        {"a string", R"("x")", "file.json: not COCO results: an array of detections"},
        {"cut in a number", std::string(good.substr(0, 15)), "the JSON ends too early; is the file cut off?"},
        {"cut after a record", std::string(good.substr(0, good.find("}},") + 2)), "the JSON ends too early"},
        {"cut before the end", std::string(good.substr(0, good.size() - 1)), "the JSON ends too early"},
        {"text after the end", std::string(good) + "]", "something follows the end of the JSON value"},
        {"a number as a record", "[7]", "detection 0: not the expected JSON"},
        {"a comma too many", with(good, "}]", "},]"), "detection 2: not the expected JSON"},
        {"a comma missing", with(good, "}},", "}}"), "detection 1: not the expected JSON"},
        {"a colon missing in the next field", with(good, R"("score": 0.25)", R"("score" 0.25)"),
         R"(detection 0, "bbox": not the expected JSON)"},
        {"a string as an id", with(good, R"("image_id": 5)", R"("image_id": "5")"),
         R"(detection 0, "image_id": not a whole number)"},
        {"a fraction as an id", with(good, R"("image_id": 5)", R"("image_id": 5.5)"),
         R"(detection 0, "image_id": not a whole number)"},
        {"a huge id", with(good, R"("image_id": 5)", R"("image_id": 1e300)"),
         R"(detection 0, "image_id": not a whole number)"},
        {"null as a class", with(good, "1.0", "null"), R"(detection 1, "category_id": not a whole number)"},
        {"no image", with(good, R"("image_id": 5,)", ""), R"(detection 0: has no "image_id")"},
        {"no class", with(good, R"("category_id": 2,)", ""), R"(detection 0: has no "category_id")"},
        {"no box", with(good, R"("bbox": [1, 2, 3, 4],)", ""), R"(detection 0: has no "bbox")"},
        {"no score", with(good, R"("score": 1e-3, )", ""), R"(detection 1: has no "score")"},
        {"three numbers", with(good, "[1, 2, 3, 4]", "[1, 2, 3]"),
         R"(detection 0, "bbox": 3 instead of the 4 numbers)"},
        {"five numbers", with(good, "[1, 2, 3, 4]", "[1, 2, 3, 4, 5]"),
         R"(detection 0, "bbox": more than the 4 numbers)"},
        {"a number as a box", with(good, "[1, 2, 3, 4]", "1"), R"(detection 0, "bbox": not [x, y, width, height])"},
        {"null in a box", with(good, "[1.5", "[null"), R"(detection 1, "bbox": not a finite number)"},
        {"NaN as a score", with(good, "0.25", "NaN"), R"(detection 0, "score": not a finite number)"},
        {"infinity as a score", with(good, "0.25", "Infinity"), R"(detection 0, "score": not a finite number)"},
        {"minus infinity", with(good, "0.25", "-Infinity"), R"(detection 0, "score": not a finite number)"},
        {"too great a score", with(good, "0.25", "1e999"), R"(detection 0, "score": not a finite number)"},
        {"a string as a score", with(good, "0.25", R"("0.25")"), R"(detection 0, "score": not a finite number)"},
        {"too great a coordinate", with(good, "[1.5", "[1e999"), R"(detection 1, "bbox": not a finite number)"},
    };
    for (const auto& [what, text, fragment] : cases) {
        EXPECT_TRUE(contains(detections_message(text), fragment)) << what;
    }
}

TEST_F(CocoJsonTest, NamesWhatIsWrongInGroundTruth) {
    const std::string_view good = good_truth;
    const Case cases[] = {
        {"nothing", "", "file.json: the JSON ends too early"},
        {"an array", "[]", "file.json: not a COCO ground truth: an object with"},
        {"an empty object", "{}", R"(file.json: has no "images"; is this a COCO ground truth?)"},
        {"no annotations", with(good, R"("annotations")", R"("anotations")"), R"(file.json: has no "annotations")"},
        {"no categories", with(good, R"("categories")", R"("category")"), R"(file.json: has no "categories")"},
        {"cut off", std::string(good.substr(0, good.find("150"))), "the JSON ends too early; is the file cut off?"},
        {"an object as the images", with(good, R"([{"id": 5, "file_name": "a.jpg"}, {"id": 3}])", "{}"),
         R"("images": not the expected JSON)"},
        {"an image without an id", with(good, R"({"id": 3})", "{}"), R"(file.json, image 1: has no "id")"},
        {"a string as an image's id", with(good, R"({"id": 3})", R"({"id": "3"})"),
         R"(image 1, "id": not a whole number)"},
        {"a class without an id", with(good, R"({"id": 1})", "{}"), R"(file.json, category 1: has no "id")"},
        {"no id", with(good, R"("id": 1, "image_id")", R"("image_id")"), R"(annotation 0: has no "id")"},
        {"no image", with(good, R"("image_id": 5,)", ""), R"(annotation 0: has no "image_id")"},
        {"no class", with(good, R"("category_id": 2,)", ""), R"(annotation 0: has no "category_id")"},
        {"no box", with(good, R"("bbox": [1, 2.5, 10, 20],)", ""), R"(annotation 0: has no "bbox")"},
        {"three numbers", with(good, "[1, 2.5, 10, 20]", "[1, 2.5, 10]"),
         R"(annotation 0, "bbox": 3 instead of the 4)"},
        {"a string as an area", with(good, "150.5", R"("150.5")"), R"(annotation 0, "area": not a finite number)"},
        {"NaN as an area", with(good, "150.5", "NaN"), R"(annotation 0, "area": not a finite number)"},
        {"NaN as a mark", with(good, R"("iscrowd": 0)", R"("iscrowd": NaN)"),
         R"(annotation 0, "iscrowd": not a finite number)"},
        {"too great an area", with(good, "150.5", "1e999"), R"(annotation 0, "area": not a finite number)"},
        {"a word as a mark", with(good, R"("iscrowd": 0)", R"("iscrowd": "no")"),
         R"(annotation 0, "iscrowd": not a finite number)"},
    };
    for (const auto& [what, text, fragment] : cases) {
        EXPECT_TRUE(contains(truth_message(text), fragment)) << what;
    }
}

TEST_F(CocoJsonTest, AFileCutAnywhereIsRefused) {
    for (std::size_t size = 0; size < good_truth.size(); ++size) {
        EXPECT_THROW(read_ground_truth(file(good_truth.substr(0, size))), Error) << good_truth.substr(0, size);
    }
    for (std::size_t size = 0; size < good_detections.size(); ++size) {
        EXPECT_THROW(read_detections(file(good_detections.substr(0, size))), Error) << good_detections.substr(0, size);
    }
}

TEST_F(CocoJsonTest, NamesAFileThatIsNotThere) {
    EXPECT_TRUE(
        contains(message_of<Error>([&] { read_detections(scratch_ / "nowhere.json"); }), "nowhere.json can't be read"));
    EXPECT_TRUE(contains(message_of<Error>([&] { read_ground_truth(scratch_.path()); }), "can't be read"));
}

}  // namespace
}  // namespace lockstep::trainer::coco
