#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "sharding/dataset.h"

namespace lockstep::sharding {

/// What becomes of something that import finds wrong or odd. `--strict` refuses all but `counted`.
enum class Outcome : std::uint8_t {
    image_dropped,
    box_dropped,
    repaired,  ///< malformed, but what was meant is beyond doubt
    counted,   ///< nothing wrong; said because it may surprise
};

/// Everything that import can find, in the order of docs/import.md, which a test compares with this list.
struct Reason {
    const char* name;
    Outcome outcome;
    const char* meaning;
};

namespace reason {
using enum Outcome;
// Images.
inline constexpr Reason missing{"missing", image_dropped, "the annotation names an image that isn't there"};
inline constexpr Reason unreadable{"unreadable", image_dropped, "empty, truncated, damaged, too large or no image"};
inline constexpr Reason turned{"turned", image_dropped,
                               "its boxes were drawn before the EXIF turn: width and height are swapped"};
inline constexpr Reason broken_annotation{"broken_annotation", image_dropped, "its annotation file can't be parsed"};
inline constexpr Reason bad_image_entry{"bad_image_entry", image_dropped,
                                        "COCO: an entry of \"images\" without a usable id or file name"};
inline constexpr Reason duplicate_image_id{"duplicate_image_id", image_dropped,
                                           "COCO: an id that an earlier image has"};
inline constexpr Reason outside_source{"outside_source", image_dropped, "its file name leads out of the image folder"};
inline constexpr Reason unknown_folder{"unknown_folder", image_dropped,
                                       "ImageFolder: its class isn't among the given ones (--skip-unknown-classes)"};
inline constexpr Reason tile_without_box{"tile_without_box", image_dropped,
                                         "asked for by --drop-empty-tiles; never an error"};
// Boxes; their images stay.
inline constexpr Reason not_finite{"not_finite", box_dropped, "a coordinate is infinite or no number"};
inline constexpr Reason inverted{"inverted", box_dropped, "its right or bottom edge lies before the other"};
inline constexpr Reason no_area{"no_area", box_dropped, "its width or height is zero"};
inline constexpr Reason outside{"outside", box_dropped, "it lies outside the image"};
inline constexpr Reason cut{"cut_below_min_visible", box_dropped,
                            "a tile shows too little of it (--min-visible); never an error"};
inline constexpr Reason no_class_name{"no_class_name", box_dropped, "VOC: an object without a name"};
inline constexpr Reason no_bndbox{"no_bndbox", box_dropped, "VOC: an object without four numbers in <bndbox>"};
inline constexpr Reason unknown_class{"unknown_class", box_dropped, "its class isn't among the given ones"};
inline constexpr Reason bad_annotation_entry{"bad_annotation_entry", box_dropped,
                                             "COCO: an annotation without a usable id, image, category or box"};
inline constexpr Reason duplicate_annotation_id{"duplicate_annotation_id", box_dropped,
                                                "COCO: an id that an earlier annotation has"};
inline constexpr Reason absent_image{"absent_image", box_dropped, "COCO: its image isn't listed"};
inline constexpr Reason bad_row{"bad_row", box_dropped, "YOLO: a row of too few columns, or with what is no number"};
inline constexpr Reason bad_class{"bad_class", box_dropped, "YOLO: a class that data.yaml doesn't have"};
inline constexpr Reason out_of_range{"out_of_range", box_dropped,
                                     "YOLO: a coordinate beyond 0 to 1 by more than 1 %; are they pixels?"};
inline constexpr Reason duplicate_row{"duplicate_row", box_dropped, "YOLO: the same row again"};
// Repaired.
inline constexpr Reason size_differs{"size_differs", repaired,
                                     "the annotation gives the image another size; the image counts"};
inline constexpr Reason zero_coordinate{"zero_coordinate", repaired,
                                        "VOC: a coordinate 0, where pixels count from 1; is --zero-based right?"};
inline constexpr Reason string_id{"string_id", repaired, "COCO: an id written as text"};
inline constexpr Reason no_area_field{"no_area_field", repaired, "COCO: no area; width x height is taken"};
inline constexpr Reason float_class{"float_class", repaired, "YOLO: a class with a decimal point"};
inline constexpr Reason polygon{"polygon", repaired, "YOLO: a polygon; the box around it is taken"};
inline constexpr Reason wrong_extension{"wrong_extension", repaired,
                                        "the file is an image of another kind than its name says"};
// Counted.
inline constexpr Reason clipped{"clipped", counted, "a box that reached beyond its image"};
inline constexpr Reason no_label_file{"no_label_file", counted, "YOLO: no label file; kept as background"};
inline constexpr Reason empty_label_file{"empty_label_file", counted, "YOLO: an empty label file; background"};
inline constexpr Reason annotation_id_zero{"annotation_id_zero", counted,
                                           "COCO: an annotation id 0, which pycocotools takes for no match"};
inline constexpr Reason sixteen_bits{"sixteen_bits", counted, "16 bits a channel; the high byte is taken"};
inline constexpr Reason alpha{"alpha", counted, "an alpha channel, which is dropped"};
inline constexpr Reason tiny{"tiny", counted, "an image under 10 pixels wide or high"};
inline constexpr Reason duplicate_content{"duplicate_content", counted, "the same bytes as an earlier image's"};
inline constexpr Reason hidden{"hidden", counted, "ImageFolder: a file or folder whose name begins with a dot"};
inline constexpr Reason not_an_image_file{"not_an_image_file", counted,
                                          "ImageFolder: a file without an image's extension"};
inline constexpr Reason empty_class{"empty_class", counted, "ImageFolder: a class folder without images; it stays"};
}  // namespace reason

std::span<const Reason> all_reasons();
std::string_view outcome_name(Outcome outcome);  ///< "image dropped", "box dropped", "repaired" or "counted"
/// The outcome of a reason that a data set names; `counted` for names that this program doesn't know.
const Reason* find_reason(std::string_view name);

/// Counts by reason what readers find, tells the first of each kind, and refuses under --strict. Not thread-safe.
class Findings {
  public:
    explicit Findings(bool strict) : strict_(strict) {}

    /// `where` says file and place. Throws base::Error where strict and the reason isn't harmless.
    void add(const Reason& reason, const std::string& where, std::uint64_t count = 1);

    const DropCounts& dropped_images() const { return dropped_images_; }
    const DropCounts& dropped_boxes() const { return dropped_boxes_; }
    const DropCounts& notes() const { return notes_; }
    bool is_strict() const { return strict_; }

  private:
    bool strict_;
    std::set<std::string_view> told_;
    DropCounts dropped_images_, dropped_boxes_, notes_;
};

}  // namespace lockstep::sharding
