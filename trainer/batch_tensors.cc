#include "trainer/batch_tensors.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "base/error.h"

namespace lockstep::trainer {

at::Tensor image_tensor(const sharding::MicroBatch& micro, at::ScalarType type) {
    LOCKSTEP_CHECK_EQ(micro.pixels.size(), std::size_t{micro.count} * micro.height * micro.width * micro.channels);
    // NHWC seen as NCHW is channels_last.
    const at::Tensor images = at::empty({micro.count, micro.height, micro.width, micro.channels}, type);
    const auto fill = [&]<typename T>(T* values) {
        constexpr auto scale = static_cast<T>(1.0 / 255);
        constexpr std::int64_t least_for_a_thread = 1 << 16;
        const std::uint8_t* const pixels = micro.pixels.data();
        at::parallel_for(0, images.numel(), least_for_a_thread, [=](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                values[i] = static_cast<T>(pixels[i]) * scale;
            }
        });
    };
    if (type == at::kDouble) {
        fill(images.mutable_data_ptr<double>());
    } else {
        LOCKSTEP_CHECK(type == at::kFloat, "images of another type than the weights'");
        fill(images.mutable_data_ptr<float>());
    }
    return images.permute({0, 3, 1, 2});
}

DetectionTargets detection_targets(const sharding::MicroBatch& micro, std::int64_t max_boxes, at::ScalarType type) {
    const std::int64_t images = micro.count;
    at::Tensor boxes = at::zeros({images, max_boxes, 4}, at::kFloat);
    at::Tensor classes = at::zeros({images, max_boxes}, at::kLong);
    at::Tensor real = at::zeros({images, max_boxes}, at::kBool);
    std::vector<std::int64_t> used(micro.count, 0);
    auto* corner = boxes.mutable_data_ptr<float>();
    auto* class_index = classes.mutable_data_ptr<std::int64_t>();
    auto* is_real = real.mutable_data_ptr<bool>();
    for (const auto& box : micro.boxes) {
        const std::int64_t slot = used[box.image]++;
        if (slot >= max_boxes) {
            throw base::Error(base::str(
                "sample ", micro.sample_ids[box.image], ": more than max_boxes = ", max_boxes,
                " boxes after augmentation; go on with --resume RUN --set max_boxes=0, which makes room for all"));
        }
        const std::int64_t at = static_cast<std::int64_t>(box.image) * max_boxes + slot;
        corner[4 * at + 0] = box.x1;
        corner[4 * at + 1] = box.y1;
        corner[4 * at + 2] = box.x2;
        corner[4 * at + 3] = box.y2;
        class_index[at] = box.class_index;
        is_real[at] = true;
    }
    return {boxes.to(type), classes, real};
}

at::Tensor label_tensor(const sharding::MicroBatch& micro) {
    at::Tensor labels = at::zeros({micro.count}, at::kLong);
    for (std::size_t i = 0; i < micro.labels.size(); ++i) {
        labels.mutable_data_ptr<std::int64_t>()[i] = micro.labels[i];
    }
    return labels;
}

}  // namespace lockstep::trainer
