#include "trainer/models/model_factory.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "trainer/models/model_state.h"
#include "trainer/models/resnet.h"
#include "trainer/models/yolov10.h"

namespace lockstep::trainer {
namespace {

template <typename Make>
std::string complaint(const Make& make) {
    try {
        make();
    } catch (const base::UsageError& error) {
        return error.what();
    }
    return "no error";
}

void expect_contains(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
}

TEST(ModelFactory, MakesEveryName) {
    const std::int64_t detector_counts[] = {2'707'820,         8'067'126 + 774,   16'485'286 + 1158,
                                            20'452'566 + 1542, 25'766'870 + 1542, 31'656'806 + 1926};
    for (std::size_t i = 0; i < detector_names().size(); ++i) {
        EXPECT_EQ(parameter_count(*make_detector({.name = detector_names()[i], .classes = 2, .image_size = 64}, 1)),
                  detector_counts[i])
            << detector_names()[i];
    }
    const std::int64_t classifier_counts[] = {11'689'512, 21'797'672, 25'557'032, 44'549'160};
    for (std::size_t i = 0; i < classifier_names().size(); ++i) {
        EXPECT_EQ(
            parameter_count(*make_classifier({.name = classifier_names()[i], .classes = 1000, .image_size = 224}, 1)),
            classifier_counts[i])
            << classifier_names()[i];
    }
}

TEST(ModelFactory, SuggestsTheNearestName) {
    expect_contains(complaint([] { make_detector({.name = "yolov10q"}, 1); }), "did you mean \"yolov10");
    expect_contains(complaint([] { make_detector({.name = "yolo10n"}, 1); }), "did you mean \"yolov10n\"?");
    expect_contains(complaint([] { make_classifier({.name = "resnet51"}, 1); }), "did you mean \"resnet");
    const std::string unlike = complaint([] { make_detector({.name = "transformer"}, 1); });
    EXPECT_EQ(unlike.find("did you mean"), std::string::npos) << unlike;
    expect_contains(unlike, "yolov10n, yolov10s, yolov10m, yolov10b, yolov10l, yolov10x");
}

TEST(ModelFactory, RefusesImpossibleSpecs) {
    expect_contains(complaint([] { make_detector({.name = "yolov10n", .classes = 0}, 1); }), "0 classes");
    expect_contains(complaint([] { make_detector({.name = "yolov10n", .image_size = 100}, 1); }), "multiple of 32");
    expect_contains(complaint([] { make_detector({.name = "yolov10n", .image_size = 0}, 1); }), "image size 0");
    expect_contains(complaint([] { make_detector({.name = "yolov10n", .image_size = -32}, 1); }), "image size -32");
    expect_contains(complaint([] { make_detector({.name = "yolov10n", .small_images = true}, 1); }), "small_images");
    expect_contains(complaint([] { make_classifier({.name = "resnet18", .classes = -1}, 1); }), "-1 classes");
    expect_contains(complaint([] { make_classifier({.name = "resnet18", .image_size = 0}, 1); }), "image size 0");
}

}  // namespace
}  // namespace lockstep::trainer
