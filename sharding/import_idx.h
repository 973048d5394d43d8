#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace lockstep::sharding {

/// Gray images of one size with labels, as the MNIST family stores them.
struct IdxSet {
    std::filesystem::path images_file;
    std::uint32_t width = 0, height = 0;
    std::vector<std::uint8_t> pixels;  ///< images x height x width
    std::vector<std::uint8_t> labels;

    std::size_t size() const { return labels.size(); }
    std::size_t image_bytes() const { return std::size_t{width} * height; }
    std::span<const std::uint8_t> image(std::size_t index) const {
        return std::span(pixels).subspan(index * image_bytes(), image_bytes());
    }
};

/// Reads FOLDER/SPLIT-images-idx3-ubyte and FOLDER/SPLIT-labels-idx1-ubyte, with or without .gz. Throws base::Error
/// naming the file: missing, of another kind, shorter or longer than its header says, or not as many labels as images.
IdxSet read_idx(const std::filesystem::path& folder, const std::string& split);

struct IdxOptions {
    std::filesystem::path source, out;
    std::string split = "train";       ///< "train" or "t10k"
    std::vector<std::string> classes;  ///< none: "0", "1", ... up to the highest label
};

/// A classification data set of raw RGB pixels (gray is repeated).
void import_idx(const IdxOptions& options);

}  // namespace lockstep::sharding
