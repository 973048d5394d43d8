#include "sharding/import_voc.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <pugixml.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "sharding/ordered_parallel.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;

struct Object {
    std::string class_name;
    Box box;
    std::size_t number;  // in the file, from 1
};

struct Annotation {
    std::optional<fs::path> image;
    std::string wanted_image;
    std::optional<ImageSize> declared;
    std::vector<Object> objects;
    std::vector<std::pair<const Reason*, std::size_t>> dropped;  // with the object's number
    bool has_zero = false;
    std::string problem;  // not empty: it can't be parsed
};

std::vector<fs::path> annotation_files(const fs::path& source) {
    if (fs::is_regular_file(source) && source.extension() == ".xml") {
        return {source};
    }
    if (!fs::is_directory(source)) {
        refuse_source(source, "wanted an .xml file, or a folder of them");
    }
    const fs::path folder = fs::is_directory(source / "Annotations") ? source / "Annotations" : source;
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        if (entry.is_regular_file() && entry.path().extension() == ".xml") {
            files.push_back(entry.path());
        }
    }
    if (files.empty()) {
        refuse_source(source,
                      "no .xml file in this folder: wanted the folder of the annotations, or one that holds "
                      "Annotations/ and JPEGImages/");
    }
    std::sort(files.begin(), files.end());
    return files;
}

std::optional<fs::path> find_image(const fs::path& xml, const std::string& file_name) {
    const std::vector<fs::path> folders = {xml.parent_path(), xml.parent_path() / "../JPEGImages",
                                           xml.parent_path() / "../images"};
    // Only the last part of the name: an annotation can't point elsewhere in the file system.
    std::vector<std::string> names = {fs::path(file_name).filename().string()};
    for (const std::string& stem : {names[0], fs::path(names[0]).stem().string(), xml.stem().string()}) {
        for (const char* extension :
             {".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp", ".JPG", ".JPEG", ".PNG", ".TIF"}) {
            names.push_back(stem + extension);
        }
    }
    for (const std::string& name : names) {
        for (const fs::path& folder : folders) {
            if (!name.empty() && fs::is_regular_file(folder / name)) {
                return (folder / name).lexically_normal();
            }
        }
    }
    return std::nullopt;
}

std::optional<float> number_in(const pugi::xml_node& parent, const char* name) {
    const std::string_view text = base::trim(parent.child_value(name));
    float value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) {
        return std::nullopt;
    }
    return value;
}

std::size_t line_of(std::string_view text, std::ptrdiff_t offset) {
    const auto end = std::clamp<std::ptrdiff_t>(offset, 0, static_cast<std::ptrdiff_t>(text.size()));
    return 1 + static_cast<std::size_t>(std::count(text.begin(), text.begin() + end, '\n'));
}

/// Without its image, which only the file system knows.
Annotation parse(std::string_view text, const std::string& name_of_file, bool one_based) {
    Annotation annotation;
    pugi::xml_document document;
    const pugi::xml_parse_result parsed = document.load_buffer(text.data(), text.size());
    if (!parsed) {
        annotation.problem = base::str(name_of_file, ": line ", line_of(text, parsed.offset), ": not well-formed XML (",
                                       parsed.description(), ")");
        return annotation;
    }
    const pugi::xml_node root = document.child("annotation");
    if (!root) {
        annotation.problem = base::str(name_of_file, ": no <annotation> element, so it is no Pascal VOC annotation");
        return annotation;
    }

    annotation.wanted_image = base::trim(root.child_value("filename"));
    const pugi::xml_node size = root.child("size");
    const std::optional<float> width = number_in(size, "width");
    const std::optional<float> height = number_in(size, "height");
    if (width && height && *width >= 1 && *height >= 1 && *width < 1e9f && *height < 1e9f) {
        annotation.declared = ImageSize{static_cast<std::uint32_t>(*width), static_cast<std::uint32_t>(*height)};
    }

    std::size_t number = 0;
    for (const pugi::xml_node& object : root.children("object")) {
        ++number;
        const std::string name(base::trim(object.child_value("name")));
        const pugi::xml_node corners = object.child("bndbox");
        const std::optional<float> x1 = number_in(corners, "xmin"), y1 = number_in(corners, "ymin");
        const std::optional<float> x2 = number_in(corners, "xmax"), y2 = number_in(corners, "ymax");
        if (name.empty()) {
            annotation.dropped.emplace_back(&reason::no_class_name, number);
        } else if (!x1 || !y1 || !x2 || !y2) {
            annotation.dropped.emplace_back(&reason::no_bndbox, number);
        } else {
            annotation.has_zero |= *x1 == 0 || *y1 == 0;
            const float first = one_based ? 1.0f : 0.0f;
            Box box{.x1 = *x1 - first,
                    .y1 = *y1 - first,
                    .x2 = *x2,
                    .y2 = *y2,
                    .area = 0,
                    .class_index = 0,
                    .flags = 0,
                    .annotation_id = 0};
            box.area = (box.x2 - box.x1) * (box.y2 - box.y1);
            if (number_in(object, "difficult").value_or(0) != 0) {
                box.flags = box_difficult;
            }
            annotation.objects.push_back({name, box, number});
        }
    }
    return annotation;
}

std::vector<std::string> names_in(const std::vector<Annotation>& annotations) {
    std::set<std::string> names;
    for (const Annotation& annotation : annotations) {
        for (const Object& object : annotation.objects) {
            names.insert(object.class_name);
        }
    }
    return {names.begin(), names.end()};
}

}  // namespace

ImportSource read_voc(const VocOptions& options, unsigned threads, Findings& findings) {
    check_class_names(options.classes);
    const std::vector<fs::path> files = annotation_files(options.source);
    std::vector<Annotation> annotations;
    ordered_parallel(
        files.size(), threads,
        [&](std::uint64_t i) {
            Annotation annotation = parse(base::read_text(files[i]), files[i].string(), options.one_based);
            if (annotation.problem.empty()) {
                annotation.image = find_image(files[i], annotation.wanted_image);
            }
            return annotation;
        },
        [&](std::uint64_t, Annotation&& annotation) { annotations.push_back(std::move(annotation)); });

    ImportSource source;
    source.description =
        base::str("Pascal VOC ", options.source.string(), options.one_based ? ", one-based" : ", zero-based");
    source.classes = options.classes.empty() ? names_in(annotations) : options.classes;
    for (const Annotation& annotation : annotations) {
        if (!annotation.problem.empty()) {
            findings.add(reason::broken_annotation, annotation.problem);
        }
    }
    if (source.classes.empty()) {
        throw base::Error(
            base::str(options.source.string(), ": no annotation names a class: give the names with --classes"));
    }
    std::int64_t annotation_id = 0;
    for (std::size_t i = 0; i < annotations.size(); ++i) {
        Annotation& annotation = annotations[i];
        const std::string file = files[i].string();
        if (!annotation.problem.empty()) {
            continue;
        }
        if (options.one_based && annotation.has_zero) {
            findings.add(reason::zero_coordinate, file);
        }
        if (!annotation.image) {
            findings.add(reason::missing, base::str(file, ": there is no image '", annotation.wanted_image,
                                                    "', neither beside it nor in ../JPEGImages or ../images, nor one "
                                                    "named ",
                                                    files[i].stem().string(), ".*"));
            continue;
        }
        for (const auto& [reason, number] : annotation.dropped) {
            findings.add(*reason, base::str(file, ": object ", number));
        }
        SourceImage image{.file = *annotation.image,
                          .name = {},
                          .image_id = static_cast<std::int64_t>(i) + 1,
                          .declared = annotation.declared,
                          .boxes = {}};
        for (Object& object : annotation.objects) {
            const std::string where = base::str(file, ": object ", object.number);
            if (options.skip_unknown_classes &&
                std::find(source.classes.begin(), source.classes.end(), object.class_name) == source.classes.end()) {
                findings.add(reason::unknown_class, base::str(where, ", '", object.class_name, "'"));
                continue;
            }
            object.box.class_index = class_index(source.classes, object.class_name, where);
            object.box.annotation_id = ++annotation_id;
            image.boxes.push_back(object.box);
        }
        source.images.push_back(std::move(image));
    }
    return source;
}

std::vector<Box> read_voc_text(std::string_view text, bool one_based) {
    std::vector<Box> boxes;
    for (const Object& object : parse(text, "annotation", one_based).objects) {
        boxes.push_back(object.box);
    }
    return boxes;
}

}  // namespace lockstep::sharding
