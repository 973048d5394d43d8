#include "sharding/import_findings.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace lockstep::sharding {
namespace {

constexpr std::array reasons{reason::missing,
                             reason::unreadable,
                             reason::turned,
                             reason::broken_annotation,
                             reason::bad_image_entry,
                             reason::duplicate_image_id,
                             reason::outside_source,
                             reason::unknown_folder,
                             reason::tile_without_box,
                             reason::not_finite,
                             reason::inverted,
                             reason::no_area,
                             reason::outside,
                             reason::cut,
                             reason::no_class_name,
                             reason::no_bndbox,
                             reason::unknown_class,
                             reason::bad_annotation_entry,
                             reason::duplicate_annotation_id,
                             reason::absent_image,
                             reason::bad_row,
                             reason::bad_class,
                             reason::out_of_range,
                             reason::duplicate_row,
                             reason::size_differs,
                             reason::zero_coordinate,
                             reason::string_id,
                             reason::no_area_field,
                             reason::float_class,
                             reason::polygon,
                             reason::wrong_extension,
                             reason::clipped,
                             reason::no_label_file,
                             reason::empty_label_file,
                             reason::annotation_id_zero,
                             reason::sixteen_bits,
                             reason::alpha,
                             reason::tiny,
                             reason::duplicate_content,
                             reason::hidden,
                             reason::not_an_image_file,
                             reason::empty_class};

/// What the user asked for is never an error.
bool is_harmless(const Reason& reason) {
    return reason.outcome == Outcome::counted || reason.name == reason::cut.name ||
           reason.name == reason::tile_without_box.name;
}

}  // namespace

std::span<const Reason> all_reasons() {
    return reasons;
}

std::string_view outcome_name(Outcome outcome) {
    switch (outcome) {
        case Outcome::image_dropped:
            return "image dropped";
        case Outcome::box_dropped:
            return "box dropped";
        case Outcome::repaired:
            return "repaired";
        case Outcome::counted:
            return "counted";
    }
    LOCKSTEP_CHECK(false, "outcome ", static_cast<int>(outcome));
}

const Reason* find_reason(std::string_view name) {
    const auto* found =
        std::find_if(reasons.begin(), reasons.end(), [&](const Reason& reason) { return reason.name == name; });
    return found == reasons.end() ? nullptr : found;
}

void Findings::add(const Reason& reason, const std::string& where, std::uint64_t count) {
    if (strict_ && !is_harmless(reason)) {
        throw base::Error(base::str(where, ": ", reason.name, " (", reason.meaning,
                                    "): repair the source, or import without --strict to have it ",
                                    reason.outcome == Outcome::repaired ? "taken as meant" : "dropped and counted"));
    }
    if (!is_harmless(reason) && told_.insert(reason.name).second) {
        base::log_warning(base::str(outcome_name(reason.outcome), ", ", reason.name, " (", reason.meaning, "): ", where,
                                    "; more of this kind are counted"));
    }
    DropCounts& counts = reason.outcome == Outcome::image_dropped ? dropped_images_
                         : reason.outcome == Outcome::box_dropped ? dropped_boxes_
                                                                  : notes_;
    counts[reason.name] += count;
}

}  // namespace lockstep::sharding
