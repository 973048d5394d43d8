#include "sharding/import_coco.h"

#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;
namespace dom = simdjson::dom;

/// An id, also where it is written as text or as 7.0.
struct Id {
    std::int64_t value;
    bool is_text;
};

std::optional<Id> id_in(const dom::element& object, std::string_view key) {
    std::int64_t integer = 0;
    if (object[key].get(integer) == simdjson::SUCCESS) {
        return Id{integer, false};
    }
    std::string_view text;
    if (object[key].get(text) == simdjson::SUCCESS) {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), integer);
        if (error == std::errc{} && end == text.data() + text.size()) {
            return Id{integer, true};
        }
    }
    double number = 0;
    constexpr double exact = 9007199254740992.0;  // 2^53
    if (object[key].get(number) == simdjson::SUCCESS && std::abs(number) < exact &&
        number == static_cast<double>(static_cast<std::int64_t>(number))) {
        return Id{static_cast<std::int64_t>(number), false};
    }
    return std::nullopt;
}

std::optional<float> number_of(const simdjson::simdjson_result<dom::element>& element) {
    double value = 0;
    if (element.get(value) != simdjson::SUCCESS || std::abs(value) > std::numeric_limits<float>::max()) {
        return std::nullopt;
    }
    return static_cast<float>(value);
}

bool is_crowd(const dom::element& annotation) {
    bool flag = false;
    return number_of(annotation["iscrowd"]).value_or(0) != 0 ||
           (annotation["iscrowd"].get(flag) == simdjson::SUCCESS && flag);
}

dom::array array_in(const dom::element& root, const char* key, const std::string& where) {
    dom::array array;
    if (root[key].get(array) != simdjson::SUCCESS) {
        throw base::Error(base::str(where, ": no array \"", key,
                                    "\", so it is no COCO annotation file (wanted: instances_*.json with images, "
                                    "annotations and categories)"));
    }
    return array;
}

class Reader {
  public:
    Reader(std::string where, fs::path images, Findings& findings)
        : where_(std::move(where)), folder_(std::move(images)), findings_(findings) {}

    ImportSource read(const dom::element& root) {
        source_.description = base::str("COCO ", where_);
        read_categories(array_in(root, "categories", where_));
        read_images(array_in(root, "images", where_));
        read_annotations(array_in(root, "annotations", where_));
        return std::move(source_);
    }

  private:
    std::string place(const char* list, std::size_t index) const {
        return base::str(where_, ": ", list, "[", index, "]");
    }
    /// The id, with a finding where it is text.
    std::optional<std::int64_t> id(const dom::element& object, const char* key, const std::string& place) {
        const std::optional<Id> found = id_in(object, key);
        if (!found) {
            return std::nullopt;
        }
        if (found->is_text) {
            findings_.add(reason::string_id, base::str(place, ": \"", key, "\""));
        }
        return found->value;
    }

    void read_categories(const dom::array& categories) {
        std::map<std::int64_t, std::string> names;
        std::set<std::string> seen;
        std::size_t index = 0;
        for (const dom::element& category : categories) {
            const std::string here = place("categories", index++);
            std::string_view name;
            const std::optional<std::int64_t> number = id(category, "id", here);
            if (!number || category["name"].get(name) != simdjson::SUCCESS || name.empty() ||
                name.find('\0') != std::string_view::npos) {
                throw base::Error(base::str(here, ": a category needs an integer \"id\" and a \"name\""));
            }
            if (!names.emplace(*number, name).second || !seen.emplace(name).second) {
                throw base::Error(base::str(here, ": the id ", *number, " or the name '", name,
                                            "' is another category's too: rename or merge them"));
            }
        }
        if (names.empty()) {
            throw base::Error(base::str(where_, ": \"categories\" is empty"));
        }
        for (const auto& [number, name] : names) {
            class_of_[number] = static_cast<std::int32_t>(source_.classes.size());
            source_.classes.push_back(name);
            source_.class_ids.push_back(number);
        }
    }

    void read_images(const dom::array& images) {
        std::size_t index = 0;
        for (const dom::element& entry : images) {
            const std::string here = place("images", index++);
            const std::optional<std::int64_t> number = id(entry, "id", here);
            std::string_view name;
            if (!number || entry["file_name"].get(name) != simdjson::SUCCESS || name.empty() ||
                name.find('\0') != std::string_view::npos) {
                findings_.add(reason::bad_image_entry, here);
                continue;
            }
            const fs::path relative(name);
            if (known_.contains(*number)) {
                findings_.add(reason::duplicate_image_id, base::str(here, ": id ", *number));
                continue;
            }
            known_.insert(*number);
            if (!stays_inside(relative)) {
                findings_.add(reason::outside_source, base::str(here, ": '", name, "'"));
                continue;
            }
            SourceImage image{.file = folder_ / relative,
                              .name = std::string(name),
                              .image_id = *number,
                              .declared = std::nullopt,
                              .boxes = {}};
            std::uint64_t width = 0, height = 0;
            constexpr std::uint64_t limit = std::numeric_limits<std::uint32_t>::max();
            if (entry["width"].get(width) == simdjson::SUCCESS && entry["height"].get(height) == simdjson::SUCCESS &&
                width > 0 && height > 0 && width <= limit && height <= limit) {
                image.declared = ImageSize{static_cast<std::uint32_t>(width), static_cast<std::uint32_t>(height)};
            }
            place_of_[*number] = source_.images.size();
            source_.images.push_back(std::move(image));
        }
    }

    void read_annotations(const dom::array& annotations) {
        std::size_t index = 0;
        std::unordered_set<std::int64_t> seen;
        for (const dom::element& entry : annotations) {
            const std::string here = place("annotations", index++);
            const std::optional<std::int64_t> number = id(entry, "id", here);
            const std::optional<std::int64_t> image = id(entry, "image_id", here);
            const std::optional<std::int64_t> category = id(entry, "category_id", here);
            dom::array corners;
            if (!number || !image || !category || entry["bbox"].get(corners) != simdjson::SUCCESS ||
                corners.size() != 4) {
                findings_.add(reason::bad_annotation_entry, here);
                continue;
            }
            const std::string with_id = base::str(here, ", id ", *number);
            const auto x = number_of(corners.at(0)), y = number_of(corners.at(1));
            const auto width = number_of(corners.at(2)), height = number_of(corners.at(3));
            if (!x || !y || !width || !height) {
                findings_.add(reason::bad_annotation_entry, with_id);
            } else if (!class_of_.contains(*category)) {
                findings_.add(reason::unknown_class, base::str(with_id, ": category ", *category));
            } else if (!known_.contains(*image)) {
                findings_.add(reason::absent_image, base::str(with_id, ": image ", *image));
            } else if (!seen.insert(*number).second) {
                findings_.add(reason::duplicate_annotation_id, with_id);
            } else if (const auto found = place_of_.find(*image); found != place_of_.end()) {
                Box box{.x1 = *x,
                        .y1 = *y,
                        .x2 = *x + *width,
                        .y2 = *y + *height,
                        .area = 0,
                        .class_index = class_of_.at(*category),
                        .flags = is_crowd(entry) ? std::uint8_t{box_crowd} : std::uint8_t{0},
                        .annotation_id = *number};
                const std::optional<float> area = number_of(entry["area"]);
                if (area && *area >= 0) {
                    box.area = *area;
                } else {
                    box.area = *width * *height;
                    findings_.add(reason::no_area_field, with_id);
                }
                if (*number == 0) {
                    findings_.add(reason::annotation_id_zero, with_id);
                }
                source_.images[found->second].boxes.push_back(box);
            }
        }
    }

    std::string where_;
    fs::path folder_;
    Findings& findings_;
    ImportSource source_;
    std::map<std::int64_t, std::int32_t> class_of_;
    std::unordered_set<std::int64_t> known_;  // images, those that were left out too
    std::unordered_map<std::int64_t, std::size_t> place_of_;
};

/// COCO's archives unpack to annotations/instances_train2017.json and train2017/.
fs::path find_images(const CocoOptions& options) {
    if (!options.images.empty()) {
        if (!fs::is_directory(options.images)) {
            throw base::Error(base::str(options.images.string(), ": there is no such folder (--images)"));
        }
        return options.images;
    }
    fs::path beside = options.source.has_parent_path() ? options.source.parent_path() : fs::path(".");
    const std::string stem = options.source.stem().string();
    const std::string part = stem.substr(stem.rfind('_') + 1);
    for (const fs::path& folder : {beside / ".." / part, beside / ".." / "images" / part, beside / part,
                                   beside / "images", beside / ".." / "images"}) {
        if (fs::is_directory(folder)) {
            return folder.lexically_normal();
        }
    }
    return beside;
}

}  // namespace

ImportSource read_coco_text(std::string_view text, const std::string& where, const fs::path& images,
                            Findings& findings) {
    dom::parser parser;
    dom::element root;
    if (const auto error = parser.parse(text.data(), text.size()).get(root); error != simdjson::SUCCESS) {
        throw base::Error(base::str(where, ": not valid JSON (", simdjson::error_message(error), ")"));
    }
    return Reader(where, images, findings).read(root);
}

ImportSource read_coco(const CocoOptions& options, Findings& findings) {
    if (!fs::is_regular_file(options.source) || options.source.extension() != ".json") {
        refuse_source(options.source, "wanted a .json file of COCO annotations");
    }
    return read_coco_text(base::read_text(options.source), options.source.string(), find_images(options), findings);
}

}  // namespace lockstep::sharding
