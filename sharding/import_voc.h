#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sharding/import_detection.h"

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
/// <bndbox>, are dropped and counted; a difficult object is kept with its flag. Throws base::Error: XML that doesn't
/// parse (file and line), no image for it, an unknown class (file and object), no XML at all.
DetectionSource read_voc(const VocOptions& options, bool skip_bad_images, unsigned threads);

/// read_voc, then import_detection.
void import_voc(const VocOptions& voc, const DetectionImportOptions& options);

}  // namespace lockstep::sharding
