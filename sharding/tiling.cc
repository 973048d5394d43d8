#include "sharding/tiling.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace lockstep::sharding {
namespace {

double width_times_height(const Box& box) {
    return (double{box.x2} - double{box.x1}) * (double{box.y2} - double{box.y1});
}

/// Returns the fraction of the box that was kept; the box is meaningless where that is zero.
double clip(Box& box, double left, double top, double right, double bottom) {
    const double before = width_times_height(box);
    box.x1 = static_cast<float>(std::max<double>(box.x1, left));
    box.y1 = static_cast<float>(std::max<double>(box.y1, top));
    box.x2 = static_cast<float>(std::min<double>(box.x2, right));
    box.y2 = static_cast<float>(std::min<double>(box.y2, bottom));
    if (!(box.x1 < box.x2 && box.y1 < box.y2)) {
        return 0;
    }
    const double fraction = width_times_height(box) / before;
    box.area = static_cast<float>(box.area * fraction);
    return fraction;
}

std::vector<std::uint32_t> tile_starts(std::uint32_t extent, std::uint32_t side, std::uint32_t stride) {
    std::vector<std::uint32_t> starts;
    const std::uint32_t last = extent - side;
    for (std::uint64_t start = 0; start < last; start += stride) {
        starts.push_back(static_cast<std::uint32_t>(start));
    }
    starts.push_back(last);
    return starts;
}

}  // namespace

std::vector<Rectangle> tiles_of(ImageSize image, const TileOptions& options) {
    if (options.side == 0) {
        throw base::UsageError("the tile side is 0: give a positive number of pixels");
    }
    if (options.overlap >= options.side) {
        throw base::UsageError(base::str("tiles of ", options.side, " pixels can't overlap by ", options.overlap,
                                         ": the overlap must be smaller than the side"));
    }
    if (!(options.min_visible > 0 && options.min_visible <= 1)) {
        throw base::UsageError(base::str("the visible fraction is ", options.min_visible, ": it must be in (0, 1]"));
    }
    const std::uint32_t width = std::min(options.side, image.width);
    const std::uint32_t height = std::min(options.side, image.height);
    const std::uint32_t stride = options.side - options.overlap;
    std::vector<Rectangle> tiles;
    for (const std::uint32_t y : tile_starts(image.height, height, stride)) {
        for (const std::uint32_t x : tile_starts(image.width, width, stride)) {
            tiles.push_back({x, y, width, height});
        }
    }
    return tiles;
}

CutBoxes cut_boxes(const std::vector<Box>& boxes, const Rectangle& tile, double min_visible) {
    CutBoxes cut;
    for (Box box : boxes) {
        const double fraction = clip(box, tile.x, tile.y, tile.right(), tile.bottom());
        if (fraction >= min_visible) {
            box.x1 -= static_cast<float>(tile.x);
            box.x2 -= static_cast<float>(tile.x);
            box.y1 -= static_cast<float>(tile.y);
            box.y2 -= static_cast<float>(tile.y);
            cut.kept.push_back(box);
        } else if (fraction > 0) {
            ++cut.dropped;
        }
    }
    return cut;
}

const Reason* clip_to_image(Box& box, ImageSize image) {
    for (const float value : {box.x1, box.y1, box.x2, box.y2, box.area}) {
        if (!std::isfinite(value)) {
            return &reason::not_finite;
        }
    }
    if (box.x2 < box.x1 || box.y2 < box.y1) {
        return &reason::inverted;
    }
    if (box.x1 == box.x2 || box.y1 == box.y2) {
        return &reason::no_area;
    }
    return clip(box, 0, 0, image.width, image.height) > 0 ? nullptr : &reason::outside;
}

}  // namespace lockstep::sharding
