#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/import_images.h"

namespace lockstep::sharding {

struct YoloOptions {
    std::filesystem::path source;  ///< data.yaml, or a folder that holds one .yaml file
    std::string split = "train";   ///< which of its keys: train, val or test
};

/// What data.yaml says.
struct YoloDescription {
    std::vector<std::string> classes;
    std::filesystem::path root;                ///< "path", relative to the file's folder
    std::vector<std::filesystem::path> split;  ///< folders, or .txt lists of files
};
/// `where` stands for the text in messages. Throws base::Error: no YAML, no "names" or a gap in them, "nc" that
/// disagrees with them, no such split (names those there are).
YoloDescription read_yolo_yaml(const std::string& text, const std::string& split, const std::string& where);

/// The boxes of one label file, in fractions of the image: rows of class, centre x and y, width and height, or of class
/// and a polygon. Coordinates may lie 1 % beyond 0 to 1.
std::vector<Box> read_yolo_labels(std::string_view text, std::size_t classes, const std::string& where,
                                  Findings& findings);

/// Reads YOLO text labels by their data.yaml. The label file of images/.../a.jpg is labels/.../a.txt (the last folder
/// of the path that is named images), else it lies beside the image. Throws what read_yolo_yaml does, and where a
/// split's folder or list is missing.
ImportSource read_yolo(const YoloOptions& options, Findings& findings);

}  // namespace lockstep::sharding
