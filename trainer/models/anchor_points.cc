#include "trainer/models/anchor_points.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/meshgrid.h>
#include <ATen/ops/stack.h>

#include "base/error.h"

namespace lockstep::trainer {

AnchorPoints make_anchor_points(std::span<const SpatialSize> sizes, std::span<const std::int64_t> strides,
                                const at::TensorOptions& options) {
    LOCKSTEP_CHECK_EQ(sizes.size(), strides.size());
    std::vector<at::Tensor> points;
    std::vector<at::Tensor> level_strides;
    for (std::size_t level = 0; level < sizes.size(); ++level) {
        const auto [height, width] = sizes[level];
        const std::vector<at::Tensor> rows_and_columns =
            at::meshgrid({at::arange(height, options) + 0.5, at::arange(width, options) + 0.5}, "ij");
        points.push_back(at::stack({rows_and_columns[1].flatten(), rows_and_columns[0].flatten()}, 1));
        level_strides.push_back(at::full({height * width, 1}, strides[level], options));
    }
    return {at::cat(points), at::cat(level_strides)};
}

std::vector<SpatialSize> spatial_sizes(std::span<const at::Tensor> maps) {
    std::vector<SpatialSize> sizes;
    for (const at::Tensor& map : maps) {
        sizes.push_back({map.size(-2), map.size(-1)});
    }
    return sizes;
}

}  // namespace lockstep::trainer
