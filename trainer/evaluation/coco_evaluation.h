#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// COCO box mAP, equal to pycocotools 2.0.11 (cocoeval.py, maskApi.c) in every precision and recall cell, quirks
/// included; docs/evaluation.md lists them. Matching works image by image and yields an EvaluationShard; shards of any
/// cut of the images merge into the same whole, and accumulate() turns the whole into scores.
namespace lockstep::trainer::coco {

inline constexpr std::size_t iou_threshold_count = 10;      ///< T: 0.5, 0.55, ..., 0.95
inline constexpr std::size_t recall_threshold_count = 101;  ///< R: 0, 0.01, ..., 1
inline constexpr std::size_t area_range_count = 4;          ///< A: all, small, medium, large
inline constexpr std::size_t detection_limit_count = 3;     ///< M

/// Upper left corner and size in pixels; the fields of COCO's "bbox".
struct Box {
    double x = 0;
    double y = 0;
    double width = 0;
    double height = 0;
};

struct GroundTruthBox {
    std::int64_t image_id = 0;
    std::int64_t category = 0;
    Box box;
    double area = 0;  ///< the annotation's own, which in COCO is the area of the mask: small, medium and large go by it
    bool crowd = false;   ///< absorbs any number of detections and counts for nothing
    bool ignore = false;  ///< pycocotools overwrites it by `crowd`; see Options::honor_ignore
    std::int64_t id = 0;  ///< the annotation's; see Options::fix_zero_ids
};

struct Detection {
    std::int64_t image_id = 0;
    std::int64_t category = 0;
    Box box;
    double score = 0;
};

struct Options {
    /// Detections per image and category that count, best scores first; ascending. The twelve scores are defined for
    /// 100 as the last: as in pycocotools, the first of them is -1 where 100 is not among the limits.
    std::array<std::int32_t, detection_limit_count> max_detections = {1, 10, 100};
    /// A box marked `ignore` is neither a miss nor a hit, as MATLAB's reference has it.
    bool honor_ignore = false;
    /// A detection that matches the annotation with id 0 is a hit; in pycocotools it is a false alarm.
    bool fix_zero_ids = false;
    /// 0: all usable cores. The result does not depend on it.
    unsigned threads = 0;
};

/// Throws base::UsageError where the limits don't rise from at least 1.
void require_valid(const Options& options);

/// A detection after matching. Bit a * iou_threshold_count + t of the masks stands for area range a and IoU threshold
/// t.
struct MatchedDetection {
    std::int64_t image_id = 0;
    double score = 0;
    std::uint64_t matched = 0;
    std::uint64_t ignored = 0;        ///< neither a hit nor a false alarm
    std::int32_t category_index = 0;  ///< into EvaluationShard::categories
    std::int32_t position = 0;        ///< among the detections of its image and category, best score first
};

/// What matching found in some of the images.
struct EvaluationShard {
    std::array<std::int32_t, detection_limit_count> max_detections = {1, 10, 100};
    std::vector<std::int64_t> categories = {};      ///< ascending; K of them
    std::vector<std::int64_t> image_ids = {};       ///< ascending; the images that were evaluated
    std::vector<std::int64_t> positive_count = {};  ///< [K, A]: boxes to be found
    std::vector<MatchedDetection> detections = {};
    std::uint64_t detections_of_unknown_category = 0;  ///< left out, as in pycocotools

    /// For the exchange between ranks of one run, not for keeping: the machine's own byte order.
    std::vector<std::byte> to_bytes() const;
    /// Throws base::Error where the bytes are not those of a shard.
    static EvaluationShard from_bytes(std::span<const std::byte> bytes);
};

/// Matches detections to boxes in the given images, all of whose boxes and detections must be passed in this one call
/// (in any order; among equal scores the earlier detection goes first). `categories` are all of the data set's, on
/// every rank. Boxes of other categories are left out. Throws base::Error for an image given twice, a box or a
/// detection of an image that is not given, and a score or a coordinate that is not finite (with the index of the
/// record).
EvaluationShard match_images(std::span<const std::int64_t> image_ids, std::span<const std::int64_t> categories,
                             std::span<const GroundTruthBox> boxes, std::span<const Detection> detections,
                             const Options& options = {});

/// Throws base::Error where shards disagree on categories or limits, or an image is in two of them.
EvaluationShard merge(std::span<const EvaluationShard> shards);

/// The twelve, in the order that pycocotools prints them.
inline constexpr std::array<std::string_view, 12> stat_names = {"AP",  "AP50", "AP75",  "APs", "APm", "APl",
                                                                "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"};

/// Everything is in [0, 1], or -1 where there is no box to be found.
struct Result {
    std::array<std::int32_t, detection_limit_count> max_detections = {1, 10, 100};
    std::vector<std::int64_t> categories = {};               ///< ascending
    std::vector<double> precision = {};                      ///< [T, R, K, A, M]
    std::vector<double> recall = {};                         ///< [T, K, A, M]
    std::vector<double> average_precision_by_category = {};  ///< [K]: mean over T and R, all areas, last limit
    std::array<double, stat_names.size()> stats{};

    std::size_t precision_index(std::size_t iou, std::size_t recall_level, std::size_t category_index, std::size_t area,
                                std::size_t limit) const;
    std::size_t recall_index(std::size_t iou, std::size_t category_index, std::size_t area, std::size_t limit) const;
};

/// A pure function of the shard's content: the order of its detections and the number of threads change no bit.
Result accumulate(const EvaluationShard& shard, unsigned threads = 0);

/// The twelve lines as pycocotools prints them, each with its line break.
std::string summary_text(const Result& result);

}  // namespace lockstep::trainer::coco
