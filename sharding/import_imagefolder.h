#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sharding/import_images.h"

namespace lockstep::sharding {

struct ImageFolderOptions {
    std::filesystem::path source;      ///< a folder with one folder of images, or of folders of them, for each class
    std::vector<std::string> classes;  ///< none: the folders' names, sorted
    bool skip_unknown_classes = false;
};

/// Reads a classification set. Names that begin with a dot are left out; symbolic links are followed; a class without
/// images stays. Throws base::Error: a folder that isn't among the given classes; base::UsageError: no such folders.
ImportSource read_imagefolder(const ImageFolderOptions& options, Findings& findings);

}  // namespace lockstep::sharding
