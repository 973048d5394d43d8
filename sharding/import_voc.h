#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/import_images.h"

namespace lockstep::sharding {

struct VocOptions {
    std::filesystem::path source;  ///< an XML file, a folder of them, or a folder with Annotations/ (and JPEGImages/)
    /// Pascal VOC counts pixels from 1 and xmax is the last pixel of the box, so the left edge is xmin - 1 and the
    /// right edge xmax. Without it coordinates are edges already and taken as they are.
    bool one_based = true;
    std::vector<std::string> classes;  ///< none: the names that occur, sorted
    bool skip_unknown_classes = false;
};

/// Reads Pascal VOC XML. The image is the one that <filename> names, beside the XML or in ../JPEGImages or ../images,
/// or else one of the XML's own stem with another extension. Objects without a name, or without four numbers in
/// <bndbox>, and files that don't parse or have no image, are dropped and counted; a difficult object is kept with its
/// flag. Throws base::Error: an unknown class (file and object); base::UsageError: no XML at all.
ImportSource read_voc(const VocOptions& options, unsigned threads, Findings& findings);

/// The boxes of one annotation, all of class 0, read as import does, with nothing of the file system touched; none
/// where it doesn't parse.
std::vector<Box> read_voc_text(std::string_view text, bool one_based);

}  // namespace lockstep::sharding
