#include "trainer/models/decode.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "trainer/models/detector_output.h"

namespace lockstep::trainer {

at::Tensor decode_boxes(const at::Tensor& distances, const AnchorPoints& anchors) {
    const auto bins = at::arange(distance_bins, distances.options());
    const auto expected = (at::softmax(distances.unflatten(-1, {4, distance_bins}), -1) * bins).sum(-1);
    return at::cat({anchors.points - expected.narrow(-1, 0, 2), anchors.points + expected.narrow(-1, 2, 2)}, -1);
}

DecodedMaps decode_maps(std::span<const at::Tensor> maps, std::span<const std::int64_t> strides) {
    std::vector<at::Tensor> rows;  // per level B x cells x channels: no copy from channels_last
    for (const at::Tensor& map : maps) {
        rows.push_back(map.permute({0, 2, 3, 1}).flatten(1, 2));
    }
    const at::Tensor all = at::cat(rows, 1);
    const at::Tensor wide = all.scalar_type() == at::kDouble ? all : all.to(at::kFloat);
    const AnchorPoints anchors = make_anchor_points(spatial_sizes(maps), strides, wide.options().requires_grad(false));
    const at::Tensor distances = wide.narrow(2, 0, distance_channels);
    const at::Tensor classes = wide.narrow(2, distance_channels, wide.size(2) - distance_channels);
    return {decode_boxes(distances, anchors) * anchors.strides, classes.sigmoid()};
}

std::vector<std::vector<Detection>> select_detections(const DecodedMaps& decoded, double min_score,
                                                      std::int64_t max_detections) {
    LOCKSTEP_CHECK_GE(max_detections, 0);
    const at::Tensor boxes = decoded.boxes.detach().to(at::kCPU, at::kFloat).contiguous();
    const at::Tensor scores = decoded.scores.detach().to(at::kCPU, at::kFloat).contiguous();
    for (const auto& [name, values] : {std::pair("boxes", boxes), {"scores", scores}}) {
        if (!values.isfinite().all().item<bool>()) {
            throw base::Error(
                base::str("the detector's ", name, " are not finite: its weights have diverged or are damaged"));
        }
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
