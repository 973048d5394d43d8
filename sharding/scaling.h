#pragma once

#include <algorithm>
#include <cstdint>

#include "sharding/image.h"

namespace lockstep::sharding {

/// How large samples come into a batch. `fixed`: placed in one square. `published`: as large as SideBounds allow, in
/// rectangles padded to a multiple. `squares`: placed in a square whose side is drawn for each effective batch.
enum class ScalingRule : std::uint8_t { fixed = 0, published = 1, squares = 2 };

struct ScalingOptions {
    ScalingRule rule = ScalingRule::fixed;
    std::uint32_t short_side = 640;  ///< published: of a sample; squares: the smallest side
    std::uint32_t long_side = 1280;  ///< published: of a sample, at most; squares: the largest side
    std::uint32_t multiple = 32;     ///< published: sides of rectangles; squares: the step between sides
    double megapixels = 0;           ///< of an effective batch, at most, unless one sample alone has more; 0: unbounded
};

/// A sample is enlarged or shrunk, its aspect kept, until a side of it reaches its bound, the other one being within.
struct SideBounds {
    std::uint32_t short_side = 0;
    std::uint32_t long_side = 0;

    /// By how much a sample of this size is enlarged.
    float scale_of(ImageSize size) const {
        const auto ratio = [](std::uint32_t bound, std::uint32_t side) {
            return static_cast<float>(bound) / static_cast<float>(side);
        };
        return std::min(ratio(short_side, std::min(size.width, size.height)),
                        ratio(long_side, std::max(size.width, size.height)));
    }
    bool operator==(const SideBounds&) const = default;
};

/// The size that a sample of this size gets, in whole pixels.
ImageSize fitted_size(ImageSize size, SideBounds bounds);

/// What the images of one batch are placed in, and how large each of them gets.
struct Canvas {
    std::uint32_t width = 0, height = 0;
    SideBounds bounds;

    static Canvas square(std::uint32_t side) { return {side, side, {side, side}}; }
    /// The published rule: the sample's fitted size, each side padded to the next multiple.
    static Canvas of_sample(ImageSize size, const ScalingOptions& options);
    std::uint64_t pixels() const { return std::uint64_t{width} * height; }
    bool operator==(const Canvas&) const = default;
};

}  // namespace lockstep::sharding
