#include "trainer/batch_tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace lockstep::trainer {
namespace {

/// Two images, samples 70 and 71 of their data set: three boxes in the first, one in the second.
sharding::MicroBatch two_images() {
    sharding::MicroBatch micro;
    micro.count = 2;
    micro.sample_ids = {70, 71};
    micro.boxes = {{.image = 0, .class_index = 5, .x1 = 1, .y1 = 2, .x2 = 3, .y2 = 4},
                   {.image = 0, .class_index = 6, .x1 = 10, .y1 = 20, .x2 = 30, .y2 = 40},
                   {.image = 0, .class_index = 7, .x1 = 0.25, .y1 = 0.5, .x2 = 0.75, .y2 = 1},
                   {.image = 1, .class_index = 8, .x1 = -9, .y1 = -8, .x2 = 90, .y2 = 80}};
    return micro;
}

TEST(DetectionTargets, AsManyBoxesAsThereIsRoomForFit) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
        const DetectionTargets targets = detection_targets(two_images(), 3, type);
        const at::Tensor boxes = at::tensor({1.,  2.,  3.,  4.,  10., 20., 30., 40., 0.25, 0.5, 0.75, 1.,
                                             -9., -8., 90., 80., 0.,  0.,  0.,  0.,  0.,   0.,  0.,   0.},
                                            type)
                                     .view({2, 3, 4});
        EXPECT_TRUE(at::equal(targets.boxes, boxes)) << targets.boxes;
        EXPECT_TRUE(at::equal(targets.classes, at::tensor({5, 6, 7, 8, 0, 0}, at::kLong).view({2, 3})))
            << targets.classes;
        EXPECT_TRUE(at::equal(targets.real, at::tensor({1, 1, 1, 1, 0, 0}, at::kLong).view({2, 3}).to(at::kBool)))
            << targets.real;
    }
}

TEST(DetectionTargets, OneMoreIsAnErrorThatNamesTheSample) {
    sharding::MicroBatch micro = two_images();
    const auto message_of = [&](std::int64_t max_boxes) -> std::string {
        try {
            detection_targets(micro, max_boxes, at::kFloat);
        } catch (const base::Error& error) {
            return error.what();
        }
        return "no error";
    };
    EXPECT_NE(message_of(2).find("sample 70: more than max_boxes = 2 boxes"), std::string::npos) << message_of(2);
    // The second image has room of its own, and as much.
    for (int more = 0; more < 2; ++more) {
        micro.boxes.push_back(micro.boxes.back());
    }
    EXPECT_EQ(message_of(3), "no error");
    micro.boxes.push_back(micro.boxes.back());
    EXPECT_NE(message_of(3).find("sample 71: more than max_boxes = 3 boxes"), std::string::npos) << message_of(3);
}

TEST(DetectionTargets, ImagesWithoutBoxesAreAllPadding) {
    sharding::MicroBatch micro = two_images();
    micro.boxes.clear();
    const DetectionTargets targets = detection_targets(micro, 2, at::kFloat);
    EXPECT_EQ(targets.boxes.sizes(), (std::vector<std::int64_t>{2, 2, 4}));
    EXPECT_FALSE(targets.real.any().item<bool>());
}

TEST(ImageTensor, IsTheBytesOver255ChannelsLast) {
    sharding::MicroBatch micro;
    micro.count = 2, micro.height = 2, micro.width = 3;
    for (int i = 0; i < 2 * 2 * 3 * 3; ++i) {
        micro.pixels.push_back(static_cast<std::uint8_t>(7 * i));
    }
    const at::Tensor images = image_tensor(micro, at::kDouble);
    ASSERT_EQ(images.sizes(), (std::vector<std::int64_t>{2, 3, 2, 3}));
    EXPECT_TRUE(images.is_contiguous(at::MemoryFormat::ChannelsLast));
    for (std::int64_t image = 0; image < 2; ++image) {
        for (std::int64_t row = 0; row < 2; ++row) {
            for (std::int64_t column = 0; column < 3; ++column) {
                for (std::int64_t channel = 0; channel < 3; ++channel) {
                    const std::int64_t byte = 7 * (((image * 2 + row) * 3 + column) * 3 + channel);
                    EXPECT_NEAR(images[image][channel][row][column].item<double>(), static_cast<double>(byte) / 255,
                                1e-15)
                        << "image " << image << " row " << row << " column " << column << " channel " << channel;
                }
            }
        }
    }
}

TEST(LabelTensor, IsTheLabels) {
    sharding::MicroBatch micro;
    micro.count = 3;
    micro.labels = {4, 0, 2};
    EXPECT_TRUE(at::equal(label_tensor(micro), at::tensor({4, 0, 2}, at::kLong))) << label_tensor(micro);
}

}  // namespace
}  // namespace lockstep::trainer
