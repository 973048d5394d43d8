#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sharding/image.h"

namespace lockstep::sharding {

/// A contact sheet: images side by side, each with boxes and class names drawn in.
class Sheet {
  public:
    struct Mark {
        double x1, y1, x2, y2;  ///< pixels of the image as it was given
        std::int32_t class_index;
    };

    Sheet(std::uint64_t images, std::vector<std::string> classes);
    /// The next image, from left to right and top to bottom. `label`: its class, or -1.
    void add(const Image& image, const std::vector<Mark>& marks, std::int32_t label = -1);
    std::vector<std::uint8_t> png() const;

  private:
    Image sheet_;
    std::vector<std::string> classes_;
    std::uint64_t added_ = 0;
};

}  // namespace lockstep::sharding
