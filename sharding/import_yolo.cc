#include "sharding/import_yolo.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

std::optional<double> number(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) {
        return std::nullopt;
    }
    return value;
}

std::vector<std::string> words_of(const std::string& row) {
    std::istringstream stream(row);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) {
        words.push_back(std::move(word));
    }
    return words;
}

std::vector<std::string> class_names(const YAML::Node& names, const std::string& where) {
    std::vector<std::string> classes;
    if (names.IsSequence()) {
        for (const YAML::Node& name : names) {
            classes.push_back(name.as<std::string>());
        }
    } else if (names.IsMap()) {
        std::map<std::int64_t, std::string> by_index;
        for (const auto& entry : names) {
            by_index[entry.first.as<std::int64_t>()] = entry.second.as<std::string>();
        }
        for (const auto& [index, name] : by_index) {
            if (index != static_cast<std::int64_t>(classes.size())) {
                throw base::Error(base::str(where, ": \"names\" has no class ", classes.size()));
            }
            classes.push_back(name);
        }
    }
    if (classes.empty()) {
        throw base::Error(base::str(where, ": no \"names\" of classes, so it is no YOLO data.yaml"));
    }
    const std::set<std::string> distinct(classes.begin(), classes.end());
    if (distinct.size() != classes.size() || distinct.contains("") ||
        std::any_of(classes.begin(), classes.end(),
                    [](const std::string& name) { return name.find('\0') != std::string::npos; })) {
        throw base::Error(base::str(where, ": \"names\" has an empty name, or one twice"));
    }
    return classes;
}

fs::path description_file(const fs::path& source) {
    const auto is_yaml = [](const fs::path& file) { return file.extension() == ".yaml" || file.extension() == ".yml"; };
    if (fs::is_regular_file(source) && is_yaml(source)) {
        return source;
    }
    std::vector<fs::path> found;
    if (fs::is_directory(source)) {
        for (const fs::directory_entry& entry : fs::directory_iterator(source)) {
            if (entry.is_regular_file() && is_yaml(entry.path())) {
                found.push_back(entry.path());
            }
        }
    }
    if (found.size() > 1) {
        std::sort(found.begin(), found.end());
        throw base::UsageError(
            base::str(source.string(), ": has ", found.size(), " .yaml files: name one, ", found[0].string(), " say"));
    }
    if (found.empty()) {
        refuse_source(source, "wanted a data.yaml, or a folder that holds one");
    }
    return found[0];
}

/// Images of a split's entry, sorted: those in a folder and below, or those that a list names.
std::vector<fs::path> images_of(const fs::path& entry, const fs::path& root, const std::string& where,
                                Findings& findings) {
    std::vector<fs::path> images;
    if (fs::is_directory(entry)) {
        for (const fs::directory_entry& file : fs::recursive_directory_iterator(entry)) {
            if (is_image_name(file.path()) && !file.is_directory()) {
                images.push_back(file.path());
            }
        }
        std::sort(images.begin(), images.end());
    } else if (fs::is_regular_file(entry)) {
        std::istringstream lines(base::read_text(entry));
        for (std::string line; std::getline(lines, line);) {
            const fs::path name(std::string(base::trim(line)));
            if (name.empty()) {
                continue;
            }
            if (!stays_inside(name)) {
                findings.add(reason::outside_source, base::str(entry.string(), ": '", name.string(), "'"));
                continue;
            }
            images.push_back((root / name).lexically_normal());
        }
    } else {
        throw base::Error(base::str(where, ": names ", entry.string(), ", and there is no such folder or list"));
    }
    return images;
}

fs::path label_file(const fs::path& image) {
    fs::path labels = image;
    labels.replace_extension(".txt");
    std::vector<fs::path> parts(labels.begin(), labels.end());
    const auto last = std::find(parts.rbegin(), parts.rend(), fs::path("images"));
    if (last != parts.rend()) {
        *last = "labels";
        fs::path elsewhere;
        for (const fs::path& part : parts) {
            elsewhere /= part;
        }
        if (fs::exists(elsewhere) || !fs::exists(labels)) {
            return elsewhere;
        }
    }
    return labels;
}

}  // namespace

YoloDescription read_yolo_yaml(const std::string& text, const std::string& split, const std::string& where) {
    YoloDescription description;
    try {
        const YAML::Node root = YAML::Load(text);
        if (!root.IsMap()) {
            throw base::Error(base::str(where, ": no \"names\" of classes, so it is no YOLO data.yaml"));
        }
        description.classes = class_names(root["names"], where);
        if (const YAML::Node count = root["nc"];
            count && count.as<std::int64_t>() != static_cast<std::int64_t>(description.classes.size())) {
            throw base::Error(base::str(where, ": \"nc\" is ", count.as<std::int64_t>(), " and \"names\" has ",
                                        description.classes.size(), ": make them agree"));
        }
        if (const YAML::Node path = root["path"]; path && path.IsScalar()) {
            description.root = path.as<std::string>();
        }
        const YAML::Node entries = root[split];
        if (entries && entries.IsScalar()) {
            description.split.emplace_back(entries.as<std::string>());
        } else if (entries && entries.IsSequence()) {
            for (const YAML::Node& entry : entries) {
                description.split.emplace_back(entry.as<std::string>());
            }
        }
        if (description.split.empty()) {
            std::vector<std::string> there;
            for (const char* name : {"train", "val", "test"}) {
                if (root[name] && !root[name].IsNull()) {
                    there.emplace_back(name);
                }
            }
            throw base::Error(
                base::str(where, ": has no '", split, "': give one of ", base::join(there, ", "), " with --split"));
        }
    } catch (const YAML::Exception& error) {
        throw base::Error(
            base::str(where, ": line ", error.mark.line + 1, ": not the YAML of a data set (", error.msg, ")"));
    }
    return description;
}

std::vector<Box> read_yolo_labels(std::string_view text, std::size_t classes, const std::string& where,
                                  Findings& findings) {
    if (text.substr(0, byte_order_mark.size()) == byte_order_mark) {
        text.remove_prefix(byte_order_mark.size());
    }
    std::vector<Box> boxes;
    std::set<std::vector<std::string>> seen;
    std::istringstream rows{std::string(text)};
    std::size_t row_number = 0;
    for (std::string row; std::getline(rows, row);) {
        const std::string here = base::str(where, ": line ", ++row_number);
        std::vector<std::string> words = words_of(row);  // a carriage return is white space too
        if (words.empty()) {
            continue;
        }
        constexpr std::size_t columns_of_box = 5, fewest_of_polygon = 7;
        const bool is_polygon = words.size() >= fewest_of_polygon && words.size() % 2 == 1;
        std::vector<double> values;
        for (const std::string& word : words) {
            if (const std::optional<double> value = number(word)) {
                values.push_back(*value);
            }
        }
        if ((words.size() != columns_of_box && !is_polygon) || values.size() != words.size()) {
            findings.add(reason::bad_row, here);
            continue;
        }
        const double class_number = values[0];
        if (!(class_number >= 0 && class_number < static_cast<double>(classes)) ||
            class_number != std::floor(class_number)) {
            findings.add(reason::bad_class, base::str(here, ": class ", words[0], " of ", classes));
            continue;
        }
        if (words[0].find_first_not_of("0123456789") != std::string::npos) {
            findings.add(reason::float_class, here);
        }
        if (!std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); })) {
            findings.add(reason::not_finite, here);
            continue;
        }
        constexpr double low = -0.01, high = 1.01;
        if (std::any_of(values.begin() + 1, values.end(), [](double v) { return v < low || v > high; })) {
            findings.add(reason::out_of_range, here);
            continue;
        }
        if (!seen.insert(words).second) {
            findings.add(reason::duplicate_row, here);
            continue;
        }
        double x1 = 0, y1 = 0, x2 = 0, y2 = 0;
        if (is_polygon) {
            findings.add(reason::polygon, here);
            x1 = x2 = values[1];
            y1 = y2 = values[2];
            for (std::size_t i = 3; i + 1 < values.size(); i += 2) {
                x1 = std::min(x1, values[i]);
                x2 = std::max(x2, values[i]);
                y1 = std::min(y1, values[i + 1]);
                y2 = std::max(y2, values[i + 1]);
            }
        } else {
            x1 = values[1] - values[3] / 2;
            x2 = values[1] + values[3] / 2;
            y1 = values[2] - values[4] / 2;
            y2 = values[2] + values[4] / 2;
        }
        boxes.push_back({.x1 = static_cast<float>(x1),
                         .y1 = static_cast<float>(y1),
                         .x2 = static_cast<float>(x2),
                         .y2 = static_cast<float>(y2),
                         .area = 0,
                         .class_index = static_cast<std::int32_t>(class_number),
                         .flags = 0,
                         .annotation_id = 0});
    }
    return boxes;
}

ImportSource read_yolo(const YoloOptions& options, Findings& findings) {
    const fs::path file = description_file(options.source);
    const YoloDescription description = read_yolo_yaml(base::read_text(file), options.split, file.string());
    const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
    // Where "path" is written for another machine, the split's own folder may still lie beside the file.
    const fs::path root = fs::is_directory(folder / description.root) ? folder / description.root : folder;

    ImportSource source;
    source.description = base::str("YOLO ", file.string(), ", ", options.split);
    source.classes = description.classes;
    std::int64_t annotation_id = 0;
    for (const fs::path& entry : description.split) {
        const fs::path place = (root / entry).lexically_normal();
        const fs::path base_folder = fs::is_regular_file(place) ? place.parent_path() : root;
        for (const fs::path& image_file : images_of(place, base_folder, file.string(), findings)) {
            SourceImage image{.file = image_file,
                              .name = image_file.filename().string(),
                              .image_id = static_cast<std::int64_t>(source.images.size()) + 1,
                              .declared = std::nullopt,
                              .boxes = {},
                              .in_fractions = true};
            const fs::path labels = label_file(image_file);
            if (!fs::is_regular_file(labels)) {
                findings.add(reason::no_label_file, labels.string());
            } else {
                const std::string text = base::read_text(labels);
                if (base::trim(text).empty()) {
                    findings.add(reason::empty_label_file, labels.string());
                }
                image.boxes = read_yolo_labels(text, source.classes.size(), labels.string(), findings);
                for (Box& box : image.boxes) {
                    box.annotation_id = ++annotation_id;
                }
            }
            source.images.push_back(std::move(image));
        }
    }
    return source;
}

}  // namespace lockstep::sharding
