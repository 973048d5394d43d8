#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "trainer/losses/complete_iou.h"
#include "trainer/losses/head_loss.h"

namespace lockstep::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A scalar whose gradient by `predictions` is known already.
class WithGradient : public torch::autograd::Function<WithGradient> {
  public:
    static at::Tensor forward(AutogradContext* context, const at::Tensor& /*predictions*/, const at::Tensor& value,
                              const at::Tensor& gradient) {
        context->save_for_backward({gradient});
        return value.clone();
    }

    static variable_list backward(AutogradContext* context, variable_list by_value) {
        return {context->get_saved_variables()[0] * by_value[0], {}, {}};
    }
};

/// The predicted distribution over one side's distance.
template <typename T>
struct Distribution {
    explicit Distribution(const T* logits) {
        const T greatest = *std::max_element(logits, logits + distance_bins);
        T sum = 0;
        for (std::int64_t bin = 0; bin < distance_bins; ++bin) {
            probability[bin] = std::exp(logits[bin] - greatest);
            sum += probability[bin];
        }
        for (std::int64_t bin = 0; bin < distance_bins; ++bin) {
            probability[bin] /= sum;
            expectation += static_cast<T>(bin) * probability[bin];
        }
        log_normaliser = greatest + std::log(sum);
    }

    std::array<T, distance_bins> probability;
    T expectation = 0;
    T log_normaliser;
};

/// Box and distribution loss, without weight and gains, of one anchor that has a box.
template <typename T>
struct AnchorLoss {
    T box;
    T distribution;
};

/// Writes the gradient of box_factor * box + distribution_factor * distribution by the distance logits.
template <typename T>
AnchorLoss<T> anchor_loss(const T* logits, T x, T y, const Box<T>& target, T box_factor, T distribution_factor,
                          T* gradient) {
    const std::array<Distribution<T>, 4> sides = {Distribution<T>(logits), Distribution<T>(logits + distance_bins),
                                                  Distribution<T>(logits + 2 * distance_bins),
                                                  Distribution<T>(logits + 3 * distance_bins)};
    const Box<T> predicted = {x - sides[0].expectation, y - sides[1].expectation, x + sides[2].expectation,
                              y + sides[3].expectation};
    Box<T> by_corner;
    AnchorLoss<T> loss{.box = 1 - complete_iou(predicted, target, &by_corner), .distribution = 0};
    // Of 1 - CIoU; a greater left or top distance moves its corner down the axis.
    const std::array<T, 4> by_distance = {by_corner.x1, by_corner.y1, -by_corner.x2, -by_corner.y2};
    const std::array<T, 4> true_distance = {x - target.x1, y - target.y1, target.x2 - x, target.y2 - y};

    for (std::int64_t side = 0; side < 4; ++side) {
        const T distance = std::clamp(true_distance[side], T(0), T(greatest_distance));
        const auto low = static_cast<std::int64_t>(distance);
        const T high_share = distance - static_cast<T>(low), low_share = 1 - high_share;
        const T* side_logits = logits + side * distance_bins;
        loss.distribution +=
            (sides[side].log_normaliser - low_share * side_logits[low] - high_share * side_logits[low + 1]) / 4;

        T* side_gradient = gradient + side * distance_bins;
        for (std::int64_t bin = 0; bin < distance_bins; ++bin) {
            const T by_expectation = box_factor * by_distance[side] * (static_cast<T>(bin) - sides[side].expectation);
            side_gradient[bin] = sides[side].probability[bin] * (by_expectation + distribution_factor / 4);
        }
        side_gradient[low] -= distribution_factor / 4 * low_share;
        side_gradient[low + 1] -= distribution_factor / 4 * high_share;
    }
    return loss;
}

}  // namespace

HeadSums head_loss_with_loops(const at::Tensor& predictions, const AnchorPoints& anchors,
                              const DetectionTargets& targets, const Assignment& assignment,
                              const DetectionGains& gains) {
    at::Tensor value, gradient, denominator, parts;
    {
        const at::NoGradGuard no_grad;
        const at::Tensor input = predictions.contiguous();
        const std::int64_t images = input.size(0), anchor_count = input.size(1), channels = input.size(2);
        const std::int64_t box_count = targets.boxes.size(1);
        gradient = at::empty_like(input);

        // The dense part of the cross-entropy, with sigmoid(x) as its gradient; the targets' part follows in the loop.
        const auto logits = input.narrow(2, distance_channels, channels - distance_channels);
        auto logits_gradient = gradient.narrow(2, distance_channels, channels - distance_channels);
        at::sigmoid_out(logits_gradient, logits);
        logits_gradient.mul_(gains.classification);
        double classification = at::softplus(logits, 1, softplus_threshold).sum().item<double>();

        double box = 0, distribution = 0, weights = 0;
        AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "head_loss", [&] {
            const auto points = anchors.points.contiguous(), strides = anchors.strides.contiguous();
            const auto corners = targets.boxes.contiguous();
            const auto classes = targets.classes.contiguous();
            const scalar_t* row = input.const_data_ptr<scalar_t>();
            scalar_t* row_gradient = gradient.mutable_data_ptr<scalar_t>();
            const scalar_t* weight = assignment.score.const_data_ptr<scalar_t>();
            const std::int64_t* assigned = assignment.box.const_data_ptr<std::int64_t>();
            for (std::int64_t image = 0; image < images; ++image) {
                const scalar_t* point = points.const_data_ptr<scalar_t>();
                const scalar_t* stride = strides.const_data_ptr<scalar_t>();
                for (std::int64_t anchor = 0; anchor < anchor_count; ++anchor) {
                    if (*weight == 0) {
                        std::fill_n(row_gradient, distance_channels, scalar_t(0));
                    } else {
                        const std::int64_t index = image * box_count + *assigned;
                        const scalar_t* c = corners.const_data_ptr<scalar_t>() + 4 * index;
                        const Box<scalar_t> target = {c[0] / *stride, c[1] / *stride, c[2] / *stride, c[3] / *stride};
                        const auto loss = anchor_loss(row, point[0], point[1], target, scalar_t(gains.box) * *weight,
                                                      scalar_t(gains.distribution) * *weight, row_gradient);
                        const std::int64_t channel = distance_channels + classes.const_data_ptr<std::int64_t>()[index];
                        row_gradient[channel] -= scalar_t(gains.classification) * *weight;
                        box += *weight * loss.box;
                        distribution += *weight * loss.distribution;
                        classification -= *weight * row[channel];
                        weights += *weight;
                    }
                    row += channels, row_gradient += channels, ++weight, ++assigned, point += 2, ++stride;
                }
            }
        });
        box *= gains.box, classification *= gains.classification, distribution *= gains.distribution;
        value = at::scalar_tensor(box + classification + distribution, input.options());
        denominator = at::scalar_tensor(weights, input.options());
        parts = at::tensor({box, classification, distribution}, input.options());
    }
    return {.sum = WithGradient::apply(predictions, value, gradient), .denominator = denominator, .parts = parts};
}

}  // namespace lockstep::trainer
