#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "sharding/dataset.h"
#include "sharding/image.h"
#include "sharding/import_findings.h"

namespace lockstep::sharding {

/// How a large image is cut into tiles that overlap.
struct TileOptions {
    std::uint32_t side = 256;     ///< pixels; the image's own extent where that is smaller
    std::uint32_t overlap = 128;  ///< pixels, less than the side
    double min_visible = 0.4;  ///< a box belongs to every tile that holds at least this fraction of its area, in (0, 1]
    bool drop_empty = false;   ///< leave out tiles that no box belongs to
};

struct Rectangle {
    std::uint32_t x = 0, y = 0, width = 0, height = 0;
    std::uint32_t right() const { return x + width; }
    std::uint32_t bottom() const { return y + height; }
    bool operator==(const Rectangle&) const = default;
};

/// Row by row. Tiles begin every side - overlap pixels; the last column and the last row align to the edge, so every
/// tile has the full side. Throws base::UsageError where the options contradict themselves.
std::vector<Rectangle> tiles_of(ImageSize image, const TileOptions& options);

struct CutBoxes {
    std::vector<Box> kept;      ///< clipped to the tile, in its coordinates; the area shrinks in proportion
    std::uint64_t dropped = 0;  ///< seen in the tile, but by less than min_visible
};
/// The boxes of an image (all inside it, with an area) that belong to a tile.
CutBoxes cut_boxes(const std::vector<Box>& boxes, const Rectangle& tile, double min_visible);

/// Clips a box to the image, the area in proportion. Returns the reason where nothing can be kept, else nullptr.
const Reason* clip_to_image(Box& box, ImageSize image);

}  // namespace lockstep::sharding
