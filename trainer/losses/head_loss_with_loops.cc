#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>

#include "trainer/losses/anchors_in_box.h"
#include "trainer/losses/head_loss.h"
#include "trainer/models/decode.h"

namespace lockstep::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A scalar whose gradients by the two kinds of logits are known already.
class WithGradients : public torch::autograd::Function<WithGradients> {
  public:
    static at::Tensor forward(AutogradContext* context, const at::Tensor& /*distances*/, const at::Tensor& /*classes*/,
                              const at::Tensor& value, const at::Tensor& by_distances, const at::Tensor& by_classes) {
        context->save_for_backward({by_distances, by_classes});
        return value.clone();
    }

    static variable_list backward(AutogradContext* context, variable_list by_value) {
        variable_list gradients = context->get_saved_variables();
        if (by_value[0].item<double>() != 1) {
            gradients = {gradients[0] * by_value[0], gradients[1] * by_value[0]};
        }
        return {gradients[0], gradients[1], {}, {}, {}};
    }
};

/// Of one anchor that has a box; without weight and gains.
template <typename T>
struct AnchorLoss {
    T box;
    T distribution;
};

/// `probability` and its logarithm are the predicted distributions of one anchor's four sides. Writes the gradient of
/// box_factor * box + distribution_factor * distribution by their logits.
template <typename T>
AnchorLoss<T> anchor_loss(const T* probability, const T* log_probability, T x, T y, const Box<T>& target, T box_factor,
                          T distribution_factor, T* gradient) {
    std::array<T, 4> expected{};  // left, top, right, bottom, as everywhere below
    for (std::int64_t side = 0; side < 4; ++side) {
        for (std::int64_t bin = 0; bin < distance_bins; ++bin) {
            expected[side] += static_cast<T>(bin) * probability[side * distance_bins + bin];
        }
    }
    const Box<T> predicted = {x - expected[0], y - expected[1], x + expected[2], y + expected[3]};
    Box<T> by_corner;
    AnchorLoss<T> loss{.box = 1 - complete_iou(predicted, target, &by_corner), .distribution = 0};

    // The box loss is 1 - CIoU, and a greater left or top distance makes its corner's coordinate less.
    const std::array<T, 4> box_by_distance = {by_corner.x1, by_corner.y1, -by_corner.x2, -by_corner.y2};
    const std::array<T, 4> true_distances = {x - target.x1, y - target.y1, target.x2 - x, target.y2 - y};
    for (std::int64_t side = 0; side < 4; ++side) {
        const T distance = std::clamp(true_distances[side], T(0), T(greatest_distance));
        const auto low = static_cast<std::int64_t>(distance);
        const T high_share = distance - static_cast<T>(low), low_share = 1 - high_share;
        loss.distribution -= (low_share * log_probability[low] + high_share * log_probability[low + 1]) / 4;

        const T by_side = distribution_factor / 4;
        for (std::int64_t bin = 0; bin < distance_bins; ++bin) {
            const T by_expectation = box_factor * box_by_distance[side] * (static_cast<T>(bin) - expected[side]);
            gradient[bin] = probability[bin] * (by_expectation + by_side);
        }
        gradient[low] -= by_side * low_share;
        gradient[low + 1] -= by_side * high_share;
        probability += distance_bins, log_probability += distance_bins, gradient += distance_bins;
    }
    return loss;
}

}  // namespace

at::Tensor decode_boxes_in_targets(const at::Tensor& distances, const AnchorPoints& anchors,
                                   const DetectionTargets& targets) {
    const at::NoGradGuard no_grad;
    const std::int64_t images = distances.size(0), anchor_count = distances.size(1);
    at::Tensor is_inside = at::zeros({images, anchor_count}, at::kBool);
    AT_DISPATCH_FLOATING_TYPES(distances.scalar_type(), "decode_boxes", [&] {
        const AnchorsInBox<scalar_t> anchors_in_box(anchors);
        const auto target_boxes = targets.boxes.accessor<scalar_t, 3>();
        const auto real = targets.real.accessor<bool, 2>();
        auto inside = is_inside.accessor<bool, 2>();
        for (std::int64_t image = 0; image < images; ++image) {
            for (std::int64_t target = 0; target < target_boxes.size(1); ++target) {
                if (real[image][target]) {
                    anchors_in_box.for_each(box_of(target_boxes[image][target]),
                                            [&](std::int64_t anchor) { inside[image][anchor] = true; });
                }
            }
        }
    });
    const at::Tensor rows = is_inside.flatten().nonzero().squeeze(1);
    const AnchorPoints points{.points = anchors.points.index_select(0, rows.remainder(anchor_count)), .strides = {}};
    const at::Tensor boxes = at::zeros({images * anchor_count, 4}, distances.options());
    boxes.index_copy_(0, rows, decode_boxes(distances.flatten(0, 1).index_select(0, rows), points));
    return boxes.view({images, anchor_count, 4});
}

HeadSums head_loss_with_loops(const HeadPredictions& predictions, const AnchorPoints& anchors,
                              const DetectionTargets& targets, const Assignment& assignment,
                              const DetectionGains& gains) {
    const auto options = predictions.distances.options();
    double box = 0, classification = 0, distribution = 0, weight_sum = 0;
    at::Tensor by_distances, by_classes;
    {
        const at::NoGradGuard no_grad;
        // The cross-entropy of logit x against target t is softplus(x) - t*x, with derivative sigmoid(x) - t; t is 0
        // but for one class of the anchors with a box.
        classification = at::softplus(predictions.classes, 1, softplus_threshold).sum().item<double>() +
                         nan_unless_finite(predictions.classes).sum().item<double>();
        by_classes = at::sigmoid(predictions.classes).mul_(gains.classification);

        const std::int64_t anchor_count = predictions.distances.size(1);
        const at::Tensor positives = assignment.score.flatten().nonzero().squeeze(1);
        const at::Tensor rows =
            predictions.distances.flatten(0, 1).index_select(0, positives).unflatten(1, {4, distance_bins});
        const at::Tensor probability = at::softmax(rows, 2), log_probability = at::log_softmax(rows, 2);
        const at::Tensor by_rows = at::empty({rows.size(0), distance_channels}, options);
        AT_DISPATCH_FLOATING_TYPES(predictions.distances.scalar_type(), "head_loss", [&] {
            const auto class_logits = predictions.classes.accessor<scalar_t, 3>();
            const auto points = anchors.points.accessor<scalar_t, 2>();
            const auto strides = anchors.strides.accessor<scalar_t, 2>();
            const auto target_boxes = targets.boxes.accessor<scalar_t, 3>();
            const auto target_classes = targets.classes.accessor<std::int64_t, 2>();
            const auto assigned = assignment.box.accessor<std::int64_t, 2>();
            const auto weights = assignment.score.accessor<scalar_t, 2>();
            auto class_gradient = by_classes.accessor<scalar_t, 3>();
            for (std::int64_t row = 0; row < positives.size(0); ++row) {
                const std::int64_t position = positives.const_data_ptr<std::int64_t>()[row];
                const std::int64_t image = position / anchor_count, anchor = position % anchor_count;
                const std::int64_t target = assigned[image][anchor];
                const std::int64_t true_class = target_classes[image][target];
                const scalar_t weight = weights[image][anchor];

                const std::int64_t offset = row * distance_channels;
                const auto loss = anchor_loss(
                    probability.const_data_ptr<scalar_t>() + offset,
                    log_probability.const_data_ptr<scalar_t>() + offset, points[anchor][0], points[anchor][1],
                    box_of(target_boxes[image][target]).divided_by(strides[anchor][0]), scalar_t(gains.box) * weight,
                    scalar_t(gains.distribution) * weight, by_rows.mutable_data_ptr<scalar_t>() + offset);
                class_gradient[image][anchor][true_class] -= scalar_t(gains.classification) * weight;
                classification -= weight * class_logits[image][anchor][true_class];
                box += weight * loss.box;
                distribution += weight * loss.distribution;
                weight_sum += weight;
            }
        });
        by_distances = nan_unless_finite(predictions.distances);
        const auto zero_or_nan = by_distances.sum().item<double>();
        box += zero_or_nan, distribution += zero_or_nan;
        by_distances.flatten(0, 1).index_copy_(0, positives, by_rows);
    }
    box *= gains.box, classification *= gains.classification, distribution *= gains.distribution;
    const auto value = at::scalar_tensor(box + classification + distribution, options);
    return {
        .sum = WithGradients::apply(predictions.distances, predictions.classes, value, by_distances, by_classes),
        .denominator = at::scalar_tensor(weight_sum, options),
        .parts = at::tensor({box, classification, distribution}, options),
    };
}

}  // namespace lockstep::trainer
