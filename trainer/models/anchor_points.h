#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::trainer {

/// Height and width of one level's feature map.
struct SpatialSize {
    std::int64_t height;
    std::int64_t width;
};

/// The centres of all cells of all levels: levels in the order given, each row-major, as the head's maps flatten.
struct AnchorPoints {
    at::Tensor points;   ///< A x 2, (x, y) = (column + 0.5, row + 0.5) in units of the anchor's own stride
    at::Tensor strides;  ///< A x 1, pixels
};

/// One stride for each size. `options` gives dtype (floating) and device.
AnchorPoints make_anchor_points(std::span<const SpatialSize> sizes, std::span<const std::int64_t> strides,
                                const at::TensorOptions& options);

/// The sizes of B x C x H x W maps.
std::vector<SpatialSize> spatial_sizes(std::span<const at::Tensor> maps);

}  // namespace lockstep::trainer
