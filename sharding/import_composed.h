#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/resources.h"
#include "sharding/dataset.h"
#include "sharding/image.h"
#include "sharding/import_idx.h"

namespace lockstep::sharding {

/// Scenes composed of real articles (an IDX set such as Fashion-MNIST) on crops of real photos. Positions are made up,
/// so the boxes are exact; always called "composed", never a real detection set.
struct ComposedOptions {
    std::filesystem::path articles;  ///< folder of the IDX files
    std::string split = "train";     ///< "train" for training scenes, "t10k" for validation: no article is in both
    std::vector<std::filesystem::path> photos;  ///< files, or folders of files
    std::filesystem::path out;
    std::uint64_t images = 1000;
    std::uint32_t size = 320;                    ///< side of a scene, pixels
    std::uint32_t longest = 0;                   ///< above `size`: the other side is drawn, up to this
    std::uint32_t smallest = 36, largest = 112;  ///< side to which an article's square is scaled, pixels
    std::uint32_t fewest_articles = 1;           ///< a scene is given this many to
    std::uint32_t most_articles = 5;             ///< this many; those that find no free place are left out
    bool tint = false;                           ///< colour each article at random instead of leaving it gray
    bool raw = false;                            ///< store pixels instead of JPEG of quality 95
    std::vector<std::string> classes;            ///< none: "0", "1", ...
    std::uint64_t seed = 0;
    unsigned threads = base::usable_cores();
};

struct Scene {
    Image image;
    std::vector<Box> boxes;  ///< the articles' visible pixels, tightly
};

/// Scene `index` of a set: a pure function of its arguments. Articles are placed so that their boxes do not overlap.
Scene compose_scene(const IdxSet& articles, const std::vector<Image>& photos, const ComposedOptions& options,
                    std::uint64_t index);

void import_composed(const ComposedOptions& options);

}  // namespace lockstep::sharding
