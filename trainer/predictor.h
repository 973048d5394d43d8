#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sharding/image.h"
#include "trainer/picture.h"
#include "trainer/weights_file.h"

namespace lockstep::trainer {

struct PredictOptions {
    double min_score = 0.25;
    std::int64_t max_detections = 300;  ///< of one forward pass
    /// Side of the tiles that a large image is cut into; 0: the whole image is letterboxed at once; none: tiles of the
    /// network's size where the image's long side is more than 1.5 times as long, or no tiles where the network has
    /// learned from whole images in rectangles (NetworkFacts::scaling).
    std::optional<std::uint32_t> tile;
    std::optional<std::uint32_t> overlap;  ///< of neighbouring tiles in pixels; none: a quarter of the tile
};

/// A trained detector on images of any size.
class Predictor {
  public:
    /// `run_or_weights`: a run's directory (its weights.safetensors) or a safetensors file. `facts` stands in where the
    /// file's metadata says nothing. Throws base::Error where weights are missing or don't fit the model.
    Predictor(const std::filesystem::path& run_or_weights, const std::optional<NetworkFacts>& facts);
    ~Predictor();

    const NetworkFacts& facts() const;

    /// Best first, in the image's pixels. Of a large image each tile is looked at by itself; merge_tiles() makes one
    /// answer.
    std::vector<PictureBox> predict(const sharding::Image& image, const PredictOptions& options);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

/// A detection in the whole image's pixels, with what is known of the tile it was seen in.
struct TiledBox {
    PictureBox box;
    std::size_t tile;
    bool is_cut;  ///< it touches a border of its tile that is not the image's: perhaps a part of something larger
};

/// One answer from overlapping tiles: whole boxes before cut ones and then by score, a box is taken unless one of its
/// class from another tile, taken already, overlaps it by an IoU of more than 0.5, or covers more than 0.6 of the
/// smaller of the two. Detections of one tile never suppress each other: the network needs no suppression there.
std::vector<PictureBox> merge_tiles(std::vector<TiledBox> boxes);

/// RUN/weights.safetensors for a directory, the path itself otherwise. Throws base::Error where it is missing.
std::filesystem::path weights_of(const std::filesystem::path& run_or_weights);

}  // namespace lockstep::trainer
