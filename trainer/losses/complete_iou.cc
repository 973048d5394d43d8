#include "trainer/losses/complete_iou.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

namespace lockstep::trainer {

at::Tensor complete_iou(const at::Tensor& a, const at::Tensor& b) {
    constexpr double epsilon = 1e-7;
    constexpr double v_scale = 4 / (std::numbers::pi * std::numbers::pi);

    const auto x1 = a.select(-1, 0), y1 = a.select(-1, 1), x2 = a.select(-1, 2), y2 = a.select(-1, 3);
    const auto other_x1 = b.select(-1, 0), other_y1 = b.select(-1, 1), other_x2 = b.select(-1, 2),
               other_y2 = b.select(-1, 3);

    const auto width = x2 - x1, height = y2 - y1 + epsilon;
    const auto other_width = other_x2 - other_x1, other_height = other_y2 - other_y1 + epsilon;
    const auto intersection = (at::minimum(x2, other_x2) - at::maximum(x1, other_x1)).clamp_min(0) *
                              (at::minimum(y2, other_y2) - at::maximum(y1, other_y1)).clamp_min(0);
    const auto iou = intersection / (width * height + other_width * other_height - intersection + epsilon);

    const auto enclosing_width = at::maximum(x2, other_x2) - at::minimum(x1, other_x1);
    const auto enclosing_height = at::maximum(y2, other_y2) - at::minimum(y1, other_y1);
    const auto diagonal = enclosing_width.square() + enclosing_height.square() + epsilon;
    const auto distance = ((other_x1 + other_x2 - x1 - x2).square() + (other_y1 + other_y2 - y1 - y2).square()) / 4;

    const auto angle = at::atan(other_width / other_height) - at::atan(width / height);
    const auto v = v_scale * angle.square();
    const auto alpha = (v / (v - iou + (1 + epsilon))).detach();

    return iou - (distance / diagonal + v * alpha);
}

}  // namespace lockstep::trainer
