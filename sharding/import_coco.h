#pragma once

#include <filesystem>
#include <string_view>

#include "sharding/import_images.h"

namespace lockstep::sharding {

struct CocoOptions {
    std::filesystem::path source;  ///< the JSON file of the annotations (instances_*.json)
    std::filesystem::path images;  ///< empty: looked for beside the annotations and where COCO's archives put them
};

/// Reads COCO JSON: [x, y, width, height] boxes, the annotation's own area, original image and annotation ids, crowd
/// flags. Classes are the categories in the order of their ids, which may have gaps and are kept. Throws base::Error:
/// no JSON, no "images", "annotations" or "categories", categories without distinct ids and names; base::UsageError: a
/// folder, or a file of another kind.
ImportSource read_coco(const CocoOptions& options, Findings& findings);

/// The same of a text; images would lie in `images`, and are not looked for. `where` stands for the text in messages.
ImportSource read_coco_text(std::string_view text, const std::string& where, const std::filesystem::path& images,
                            Findings& findings);

}  // namespace lockstep::sharding
