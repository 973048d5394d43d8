#include "sharding/import_imagefolder.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> sorted_entries(const fs::path& folder) {
    std::vector<fs::path> entries;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        entries.push_back(entry.path());
    }
    std::sort(entries.begin(), entries.end());
    return entries;
}

bool is_hidden(const fs::path& path) {
    return path.filename().string().starts_with('.');
}

/// Images in a folder and below. Links may lead in a circle, hence the depth.
void collect(const fs::path& folder, int depth, std::vector<fs::path>& images, Findings& findings) {
    constexpr int deepest = 16;
    if (depth > deepest) {
        throw base::Error(base::str(folder.string(), ": folders are nested more than ", deepest,
                                    " deep: does a symbolic link lead in a circle?"));
    }
    for (const fs::path& entry : sorted_entries(folder)) {
        if (is_hidden(entry)) {
            findings.add(reason::hidden, entry.string());
        } else if (fs::is_directory(entry)) {
            collect(entry, depth + 1, images, findings);
        } else if (is_image_name(entry)) {
            images.push_back(entry);
        } else {
            findings.add(reason::not_an_image_file, entry.string());
        }
    }
}

}  // namespace

ImportSource read_imagefolder(const ImageFolderOptions& options, Findings& findings) {
    check_class_names(options.classes);
    constexpr const char* wanted = "wanted a folder with one folder of images for each class";
    if (!fs::is_directory(options.source)) {
        refuse_source(options.source, wanted);
    }
    std::vector<fs::path> folders;
    for (const fs::path& entry : sorted_entries(options.source)) {
        if (is_hidden(entry)) {
            findings.add(reason::hidden, entry.string());
        } else if (fs::is_directory(entry)) {
            folders.push_back(entry);
        } else {
            findings.add(reason::not_an_image_file, entry.string());
        }
    }
    ImportSource source{.task = Task::classification,
                        .description = base::str("ImageFolder ", options.source.string()),
                        .classes = options.classes,
                        .images = {}};
    if (source.classes.empty()) {
        for (const fs::path& folder : folders) {
            source.classes.push_back(folder.filename().string());
        }
    }
    for (const fs::path& folder : folders) {
        const std::string name = folder.filename().string();
        std::vector<fs::path> images;
        collect(folder, 1, images, findings);
        if (options.skip_unknown_classes &&
            std::find(source.classes.begin(), source.classes.end(), name) == source.classes.end()) {
            findings.add(reason::unknown_folder, folder.string(), images.size());
            continue;
        }
        const std::int32_t label = class_index(source.classes, name, folder.string());
        if (images.empty()) {
            findings.add(reason::empty_class, folder.string());
        }
        for (const fs::path& image : images) {
            source.images.push_back({.file = image,
                                     .name = image.lexically_relative(options.source).string(),
                                     .image_id = static_cast<std::int64_t>(source.images.size()) + 1,
                                     .declared = std::nullopt,
                                     .boxes = {},
                                     .label = label});
        }
    }
    if (source.images.empty()) {
        refuse_source(options.source, wanted);
    }
    return source;
}

}  // namespace lockstep::sharding
