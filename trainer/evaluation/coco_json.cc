#include "trainer/evaluation/coco_json.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"

namespace lockstep::trainer::coco {

using base::Error;
using base::str;
namespace json = simdjson::ondemand;

namespace {

/// A file being read, and the place in it that a message names.
class Document {
  public:
    explicit Document(const std::filesystem::path& path) : path_(path) {
        if (const auto error = simdjson::padded_string::load(path.string()).get(text_)) {
            throw Error(str(path.string(), " can't be read: ", describe(error)));
        }
    }

    /// Calls read(document) and turns what the parser throws into an Error.
    template <typename Read>
    void read(Read&& read) {
        try {
            json::document document = parser_.iterate(text_);
            read(document);
            if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) {
                fail("something follows the end of the JSON value");
            }
        } catch (const simdjson::simdjson_error& error) {
            fail(describe(error.error()));
        }
    }

    /// Calls read(value) for each value of an array whose records are called `what`.
    template <typename Read>
    void each_record(json::array array, std::string_view what, Read&& read) {
        record_kind_ = what;
        record_ = 0;
        for (auto element : array) {
            read(element.value());
            ++record_;
        }
        record_kind_ = {};
    }

    /// Calls read(name, value) for each field.
    template <typename Read>
    void each_field(json::object object, Read&& read) {
        for (auto field : object) {
            const std::string_view name = field.unescaped_key();
            field_ = name;
            read(name, field.value().value());
        }
        field_ = {};
    }

    double number(json::value value) const {
        double number = 0;
        if (value.get_double().get(number) != simdjson::SUCCESS) {
            fail("not a finite number");
        }
        return number;
    }

    /// A whole number; 3.0 is one, "3" is not.
    std::int64_t id(json::value value) const {
        std::int64_t whole = 0;
        if (value.get_int64().get(whole) == simdjson::SUCCESS) {
            return whole;
        }
        constexpr double greatest_exact = 9007199254740992.0;
        double real = 0;
        if (value.get_double().get(real) != simdjson::SUCCESS || real != std::trunc(real) ||
            std::abs(real) > greatest_exact) {
            fail("not a whole number, as ids in COCO files are");
        }
        return static_cast<std::int64_t>(real);
    }

    /// 0, 1, true, false or null.
    bool flag(json::value value) const {
        bool mark = false;
        if (value.get_bool().get(mark) == simdjson::SUCCESS) {
            return mark;
        }
        return !is_null(value) && number(value) != 0;
    }

    static bool is_null(json::value value) {
        bool null = false;
        return value.is_null().get(null) == simdjson::SUCCESS && null;
    }

    Box box(json::value value) const {
        json::array array;
        if (value.get_array().get(array) != simdjson::SUCCESS) {
            fail("not [x, y, width, height]");
        }
        std::array<double, 4> numbers{};
        std::size_t count = 0;
        for (auto element : array) {
            if (count == numbers.size()) {
                fail("more than the 4 numbers x, y, width, height");
            }
            numbers[count++] = number(element.value());
        }
        if (count != numbers.size()) {
            fail(str(count, " instead of the 4 numbers x, y, width, height"));
        }
        return {numbers[0], numbers[1], numbers[2], numbers[3]};
    }

    template <typename Value>
    Value required(const std::optional<Value>& value, std::string_view name) const {
        if (!value) {
            fail(str("has no \"", name, "\""));
        }
        return *value;
    }

    /// For the result of reading the root as an object or an array.
    void require_root(simdjson::error_code error, std::string_view expected) const {
        if (error != simdjson::SUCCESS) {
            fail(error == simdjson::INCORRECT_TYPE ? str("not ", expected) : describe(error));
        }
    }

    [[noreturn]] void fail(std::string_view problem) const {
        std::string place = path_.string();
        if (!record_kind_.empty()) {
            place += str(", ", record_kind_, " ", record_);
        }
        if (!field_.empty()) {
            place += str(", \"", field_, "\"");
        }
        throw Error(str(place, ": ", problem));
    }

  private:
    static std::string describe(simdjson::error_code error) {
        switch (error) {
            case simdjson::IO_ERROR:
                return "no such file, or it may not be read";
            case simdjson::EMPTY:
            case simdjson::UNCLOSED_STRING:
            case simdjson::INCOMPLETE_ARRAY_OR_OBJECT:
                return "the JSON ends too early; is the file cut off?";
            default:
                return str("not the expected JSON (", simdjson::error_message(error), ")");
        }
    }

    std::filesystem::path path_;
    simdjson::padded_string text_;
    json::parser parser_;
    std::string_view record_kind_;
    std::size_t record_ = 0;
    std::string_view field_;
};

struct Category {
    std::int64_t id;
    std::string name;
};

std::int64_t read_image_id(Document& document, json::value value) {
    std::optional<std::int64_t> id;
    document.each_field(value.get_object(), [&](std::string_view name, json::value field) {
        if (name == "id") {
            id = document.id(field);
        }
    });
    return document.required(id, "id");
}

Category read_category(Document& document, json::value value) {
    std::optional<std::int64_t> id;
    std::string category_name;
    document.each_field(value.get_object(), [&](std::string_view name, json::value field) {
        if (name == "id") {
            id = document.id(field);
        } else if (name == "name" && field.type().value() == json::json_type::string) {
            category_name = std::string_view(field.get_string());
        }
    });
    return {document.required(id, "id"), std::move(category_name)};
}

GroundTruthBox read_annotation(Document& document, json::value value, std::size_t& without_area) {
    std::optional<std::int64_t> id, image_id, category;
    std::optional<Box> box;
    std::optional<double> area;
    GroundTruthBox truth;
    document.each_field(value.get_object(), [&](std::string_view name, json::value field) {
        if (name == "id") {
            id = document.id(field);
        } else if (name == "image_id") {
            image_id = document.id(field);
        } else if (name == "category_id") {
            category = document.id(field);
        } else if (name == "bbox") {
            box = document.box(field);
        } else if (name == "area" && !Document::is_null(field)) {
            area = document.number(field);
        } else if (name == "iscrowd") {
            truth.crowd = document.flag(field);
        } else if (name == "ignore") {
            truth.ignore = document.flag(field);
        }
    });
    truth.id = document.required(id, "id");
    truth.image_id = document.required(image_id, "image_id");
    truth.category = document.required(category, "category_id");
    truth.box = document.required(box, "bbox");
    without_area += area ? 0 : 1;
    truth.area = area.value_or(truth.box.width * truth.box.height);
    return truth;
}

Detection read_detection(Document& document, json::value value) {
    std::optional<std::int64_t> image_id, category;
    std::optional<Box> box;
    std::optional<double> score;
    document.each_field(value.get_object(), [&](std::string_view name, json::value field) {
        if (name == "image_id") {
            image_id = document.id(field);
        } else if (name == "category_id") {
            category = document.id(field);
        } else if (name == "bbox") {
            box = document.box(field);
        } else if (name == "score") {
            score = document.number(field);
        }
    });
    return {.image_id = document.required(image_id, "image_id"),
            .category = document.required(category, "category_id"),
            .box = document.required(box, "bbox"),
            .score = document.required(score, "score")};
}

void sort_without_repetitions(std::vector<std::int64_t>& values) {
    std::ranges::sort(values);
    const auto repeated = std::ranges::unique(values);
    values.erase(repeated.begin(), repeated.end());
}

/// pycocotools finds annotations through a dictionary from ids: each stands for the last one with its id, in the place
/// of the one that it hides. Returns how many are hidden.
template <typename IsListed>
std::size_t hide_repeated_ids(std::vector<GroundTruthBox>& boxes, IsListed&& is_listed) {
    std::unordered_map<std::int64_t, std::size_t> last;
    last.reserve(boxes.size());
    for (std::size_t i = 0; i < boxes.size(); ++i) {
        last[boxes[i].id] = i;
    }
    const std::size_t hidden = boxes.size() - last.size();
    if (hidden == 0) {
        return 0;
    }
    std::vector<GroundTruthBox> places;
    std::ranges::copy_if(boxes, std::back_inserter(places), is_listed);
    std::ranges::stable_sort(places, {}, &GroundTruthBox::image_id);
    for (GroundTruthBox& place : places) {
        place = boxes[last.at(place.id)];
    }
    boxes = std::move(places);
    return hidden;
}

}  // namespace

GroundTruth read_ground_truth(const std::filesystem::path& path, bool fix_ids) {
    GroundTruth truth;
    std::vector<Category> categories;
    std::size_t without_area = 0;
    bool has_images = false, has_annotations = false, has_categories = false;
    Document document(path);
    document.read([&](json::document& root) {
        json::object object;
        document.require_root(root.get_object().get(object),
                              "a COCO ground truth: an object with \"images\", \"annotations\" and \"categories\"");
        document.each_field(object, [&](std::string_view name, json::value value) {
            if (name == "images") {
                has_images = true;
                document.each_record(value.get_array(), "image", [&](json::value record) {
                    truth.image_ids.push_back(read_image_id(document, record));
                });
            } else if (name == "annotations") {
                has_annotations = true;
                document.each_record(value.get_array(), "annotation", [&](json::value record) {
                    truth.boxes.push_back(read_annotation(document, record, without_area));
                });
            } else if (name == "categories") {
                has_categories = true;
                document.each_record(value.get_array(), "category", [&](json::value record) {
                    categories.push_back(read_category(document, record));
                });
            }
        });
    });
    for (const auto& [has, name] : {std::pair{has_images, "images"}, std::pair{has_annotations, "annotations"},
                                    std::pair{has_categories, "categories"}}) {
        if (!has) {
            document.fail(str("has no \"", name, "\"; is this a COCO ground truth?"));
        }
    }

    sort_without_repetitions(truth.image_ids);
    std::ranges::stable_sort(categories, {}, &Category::id);
    for (Category& category : categories) {
        if (truth.categories.empty() || truth.categories.back() != category.id) {
            truth.categories.push_back(category.id);
            truth.category_names.push_back(std::move(category.name));
        }
    }
    const auto warn = [&](std::size_t count, std::string_view what) {
        if (count > 0) {
            truth.warnings.push_back(str(path.string(), ": ", count, " ", what));
        }
    };
    warn(without_area, "annotations have no area; width * height stands for it (pycocotools would stop)");
    const auto is_listed = [&](const GroundTruthBox& box) {
        return std::ranges::binary_search(truth.image_ids, box.image_id) &&
               std::ranges::binary_search(truth.categories, box.category);
    };
    if (!fix_ids) {
        warn(hide_repeated_ids(truth.boxes, is_listed),
             "annotations have an id that a later one has too; as in pycocotools, the last one counts in the place of "
             "each");
    }
    warn(std::erase_if(truth.boxes, [&](const GroundTruthBox& box) { return !is_listed(box); }),
         "annotations are of images or categories that the file doesn't list; they are left out, as in pycocotools");
    if (!fix_ids) {
        warn(static_cast<std::size_t>(std::ranges::count(truth.boxes, 0, &GroundTruthBox::id)),
             "annotations have the id 0; as in pycocotools, a detection that matches one counts as a false alarm");
    }
    return truth;
}

std::vector<Detection> read_detections(const std::filesystem::path& path) {
    std::vector<Detection> detections;
    Document document(path);
    document.read([&](json::document& root) {
        json::array array;
        document.require_root(root.get_array().get(array), "COCO results: an array of detections");
        document.each_record(array, "detection",
                             [&](json::value record) { detections.push_back(read_detection(document, record)); });
    });
    return detections;
}

}  // namespace lockstep::trainer::coco
