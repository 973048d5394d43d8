#include "trainer/models/decode.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "trainer/models/anchor_points.h"
#include "trainer/models/yolov10.h"

namespace lockstep::trainer {

DecodedMaps decode_maps(std::span<const at::Tensor> maps, std::span<const std::int64_t> strides) {
    constexpr std::int64_t bins = Yolov10Head::bins;
    std::vector<at::Tensor> rows;  // per level B x cells x channels: no copy from channels_last
    for (const at::Tensor& map : maps) {
        rows.push_back(map.permute({0, 2, 3, 1}).flatten(1, 2));
    }
    const at::Tensor all = at::cat(rows, 1);
    const at::Tensor wide = all.scalar_type() == at::kDouble ? all : all.to(at::kFloat);
    const AnchorPoints anchors = make_anchor_points(spatial_sizes(maps), strides, wide.options().requires_grad(false));

    const at::Tensor distribution = wide.narrow(2, 0, 4 * bins).unflatten(2, {4, bins}).softmax(3);
    const at::Tensor distances =
        distribution.matmul(at::arange(bins, anchors.points.options()));  // left, top, right, bottom
    const at::Tensor corners =
        at::cat({anchors.points - distances.narrow(2, 0, 2), anchors.points + distances.narrow(2, 2, 2)}, 2);
    return {corners * anchors.strides, wide.narrow(2, 4 * bins, wide.size(2) - 4 * bins).sigmoid()};
}

std::vector<std::vector<Detection>> select_detections(const DecodedMaps& decoded, double min_score,
                                                      std::int64_t max_detections) {
    LOCKSTEP_CHECK_GE(max_detections, 0);
    const at::Tensor boxes = decoded.boxes.detach().to(at::kCPU, at::kFloat).contiguous();
    const at::Tensor scores = decoded.scores.detach().to(at::kCPU, at::kFloat).contiguous();
    if (!scores.isfinite().all().item<bool>()) {
        throw base::Error("the detector's scores are not finite: its weights have diverged or are damaged");
    }
    const std::int64_t images = scores.size(0), anchors = scores.size(1), classes = scores.size(2);

    // The limit highest of `count` values; equal ones in the order of their index.
    const auto best = [](std::int64_t count, std::int64_t limit, const auto& value) {
        std::vector<std::int64_t> order(static_cast<std::size_t>(count));
        std::iota(order.begin(), order.end(), std::int64_t{0});
        const auto middle = order.begin() + std::min(count, limit);
        std::partial_sort(order.begin(), middle, order.end(), [&](std::int64_t a, std::int64_t b) {
            return value(a) != value(b) ? value(a) > value(b) : a < b;
        });
        order.erase(middle, order.end());
        return order;
    };

    std::vector<std::vector<Detection>> result(static_cast<std::size_t>(images));
    for (std::int64_t image = 0; image < images; ++image) {
        const float* box = boxes.const_data_ptr<float>() + image * anchors * 4;
        const float* score = scores.const_data_ptr<float>() + image * anchors * classes;
        std::vector<float> highest(static_cast<std::size_t>(anchors));
        for (std::int64_t a = 0; a < anchors; ++a) {
            highest[a] = *std::max_element(score + a * classes, score + (a + 1) * classes);
        }
        std::vector<std::int64_t> kept = best(anchors, max_detections, [&](std::int64_t a) { return highest[a]; });
        std::sort(kept.begin(), kept.end());
        const auto candidates = static_cast<std::int64_t>(kept.size()) * classes;
        const auto candidate_score = [&](std::int64_t i) { return score[kept[i / classes] * classes + i % classes]; };
        for (const std::int64_t i : best(candidates, max_detections, candidate_score)) {
            if (candidate_score(i) < min_score) {
                break;
            }
            const float* corners = box + kept[i / classes] * 4;
            result[image].push_back(
                {{corners[0], corners[1], corners[2], corners[3]}, candidate_score(i), i % classes});
        }
    }
    return result;
}

}  // namespace lockstep::trainer
