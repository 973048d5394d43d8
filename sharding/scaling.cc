#include "sharding/scaling.h"

#include <cmath>

#include "base/error.h"

namespace lockstep::sharding {

ImageSize fitted_size(ImageSize size, SideBounds bounds) {
    LOCKSTEP_CHECK(size.width > 0 && size.height > 0);
    const double scale = std::min(static_cast<double>(bounds.short_side) / std::min(size.width, size.height),
                                  static_cast<double>(bounds.long_side) / std::max(size.width, size.height));
    const auto scaled = [&](std::uint32_t side) {
        return std::max(1U, static_cast<std::uint32_t>(std::lround(side * scale)));
    };
    return {scaled(size.width), scaled(size.height)};
}

Canvas Canvas::of_sample(ImageSize size, const ScalingOptions& options) {
    const SideBounds bounds{options.short_side, options.long_side};
    const auto padded = [&](std::uint32_t side) {
        return (side + options.multiple - 1) / options.multiple * options.multiple;
    };
    const ImageSize fitted = fitted_size(size, bounds);
    return {padded(fitted.width), padded(fitted.height), bounds};
}

}  // namespace lockstep::sharding
