#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trainer/evaluation/coco_evaluation.h"

namespace lockstep::trainer::coco {

struct GroundTruth {
    std::vector<std::int64_t> image_ids;      ///< ascending, each once
    std::vector<std::int64_t> categories;     ///< ascending, each once
    std::vector<std::string> category_names;  ///< as `categories`; "" where the file has none
    std::vector<GroundTruthBox> boxes;
    std::vector<std::string> warnings;  ///< what was left out, filled in, or counts otherwise than one would think
};

/// Reads a COCO "instances" file. A missing or null `iscrowd` is 0 and a missing or null `area` is width * height
/// (pycocotools raises KeyError for both). Annotations of images or categories that the file does not list are left
/// out, as in pycocotools. Where several annotations have one id, pycocotools counts the last of them that many times
/// and forgets the others; so does this, unless `fix_ids`. Throws base::Error with the file, the record's index (from
/// 0) and the field.
GroundTruth read_ground_truth(const std::filesystem::path& path, bool fix_ids = false);

/// Reads a COCO results file, an array of {"image_id", "category_id", "bbox", "score"}; further fields are skipped, and
/// an empty array is fine. Index i of the result is record i of the file. Throws as read_ground_truth does.
std::vector<Detection> read_detections(const std::filesystem::path& path);

}  // namespace lockstep::trainer::coco
