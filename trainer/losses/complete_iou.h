#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/TensorAccessor.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>
#include <utility>

namespace lockstep::trainer {

/// Corners of an axis-aligned box; x1 <= x2, y1 <= y2.
template <typename T>
struct Box {
    T x1, y1, x2, y2;

    Box divided_by(T divisor) const { return {x1 / divisor, y1 / divisor, x2 / divisor, y2 / divisor}; }
};

/// Of a row of four corners.
template <typename T>
Box<T> box_of(const at::TensorAccessor<T, 1>& corners) {
    return {corners[0], corners[1], corners[2], corners[3]};
}

/// Complete IoU (Zheng et al., "Distance-IoU Loss", AAAI 2020): IoU less the squared distance of the centres over the
/// squared diagonal of the enclosing box, less alpha * v for the difference v of the aspect ratios. 1 for equal boxes,
/// above -2. Where `gradient` is given it receives the derivative by a's corners, with alpha held constant as the paper
/// prescribes.
template <typename T>
T complete_iou(const Box<T>& a, const Box<T>& b, Box<T>* gradient = nullptr) {
    constexpr T epsilon = T(1e-7);
    constexpr T v_scale = T(4 / (std::numbers::pi * std::numbers::pi));

    const T width = a.x2 - a.x1, height = a.y2 - a.y1 + epsilon;
    const T other_width = b.x2 - b.x1, other_height = b.y2 - b.y1 + epsilon;
    const T overlap_width = std::max(std::min(a.x2, b.x2) - std::max(a.x1, b.x1), T(0));
    const T overlap_height = std::max(std::min(a.y2, b.y2) - std::max(a.y1, b.y1), T(0));
    const T intersection = overlap_width * overlap_height;
    const T union_area = width * height + other_width * other_height - intersection + epsilon;
    const T iou = intersection / union_area;

    const T enclosing_width = std::max(a.x2, b.x2) - std::min(a.x1, b.x1);
    const T enclosing_height = std::max(a.y2, b.y2) - std::min(a.y1, b.y1);
    const T diagonal = enclosing_width * enclosing_width + enclosing_height * enclosing_height + epsilon;
    const T offset_x = b.x1 + b.x2 - a.x1 - a.x2;
    const T offset_y = b.y1 + b.y2 - a.y1 - a.y2;
    const T distance = (offset_x * offset_x + offset_y * offset_y) / 4;

    const T angle = std::atan(other_width / other_height) - std::atan(width / height);
    const T v = v_scale * (angle * angle);
    const T alpha = v / (v - iou + (1 + epsilon));

    if (gradient) {
        // The derivatives by the low and the high corner of one axis; `slope` is that of alpha * v by the box's extent
        // on it.
        const auto along = [&](T low, T high, T other_low, T other_high, T overlap, T overlap_across, T extent_across,
                               T enclosing, T offset, T slope) {
            const auto by_corner = [&](T sign, bool bounds_overlap, bool bounds_enclosing) {
                const T d_intersection = overlap > 0 && bounds_overlap ? sign * overlap_across : T(0);
                const T d_area = sign * extent_across;
                const T d_iou =
                    (d_intersection * (union_area + intersection) - intersection * d_area) / (union_area * union_area);
                const T d_diagonal = bounds_enclosing ? sign * 2 * enclosing : T(0);
                const T d_distance = -offset / 2;
                return d_iou - (d_distance - distance / diagonal * d_diagonal) / diagonal - sign * slope;
            };
            return std::pair{by_corner(T(-1), low > other_low, low < other_low),
                             by_corner(T(1), high<other_high, high> other_high)};
        };
        const T by_angle = -2 * alpha * v_scale * angle / (width * width + height * height);
        std::tie(gradient->x1, gradient->x2) = along(a.x1, a.x2, b.x1, b.x2, overlap_width, overlap_height, height,
                                                     enclosing_width, offset_x, by_angle * height);
        std::tie(gradient->y1, gradient->y2) = along(a.y1, a.y2, b.y1, b.y2, overlap_height, overlap_width, width,
                                                     enclosing_height, offset_y, -by_angle * width);
    }
    return iou - (distance / diagonal + v * alpha);
}

/// The same for tensors of ... x 4 corners that broadcast against each other; differentiable by both.
at::Tensor complete_iou(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::trainer
