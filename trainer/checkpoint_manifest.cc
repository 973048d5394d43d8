#include "trainer/checkpoint_manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::str;
using nlohmann::json;

std::string numbered(const char* prefix, std::uint64_t number, std::size_t digits) {
    const std::string text = str(number);
    return prefix + std::string(text.size() < digits ? digits - text.size() : 0, '0') + text;
}

/// Of a rank's file, and not a path to somewhere else.
bool is_file_name(const std::string& name) {
    return name.starts_with("rank-") && name.ends_with(".h5") && name.size() > 8 &&
           name.find_first_not_of("0123456789", 5) == name.size() - 3;
}

}  // namespace

Error unlike_a_manifest(const fs::path& checkpoint, const std::exception& why) {
    return Error(str((checkpoint / manifest_file).string(), ": not a checkpoint manifest: ", why.what()));
}

fs::path checkpoint_path(const fs::path& run, std::uint64_t optimizer_steps) {
    return run / "checkpoints" / numbered("step-", optimizer_steps, 9);
}

std::string checkpoint_file_name(comm::Rank rank) {
    return numbered("rank-", static_cast<std::uint64_t>(comm::index_of(rank)), 5) + ".h5";
}

std::vector<fs::path> checkpoints_of(const fs::path& run) {
    std::vector<fs::path> found;
    const fs::path folder = run / "checkpoints";
    if (!fs::is_directory(folder)) {
        return found;
    }
    for (const auto& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with("step-") && name.find_first_not_of("0123456789", 5) == std::string::npos) {
            found.push_back(entry.path());
        }
    }
    std::ranges::sort(found);
    return found;
}

const char* saved_type_name(at::ScalarType type, const std::string& tensor) {
    switch (type) {
        case at::kFloat:
            return "f32";
        case at::kDouble:
            return "f64";
        case at::kLong:
            return "i64";
        default:
            LOCKSTEP_CHECK(false, tensor, " is of type ", type, ", which checkpoints don't hold");
    }
}

at::ScalarType saved_type(const std::string& name) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
        if (name == saved_type_name(type, "")) {
            return type;
        }
    }
    throw Error(str("an unknown type \"", name, "\""));
}

json checksum_entry(const fs::path& path) {
    const auto bytes = base::read_bytes(path);
    return {{"bytes", bytes.size()}, {"crc32c", base::crc32c(bytes)}};
}

std::uint32_t manifest_checksum(const json& manifest) {
    const std::string text = manifest.dump();
    return base::crc32c({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

json read_manifest(const fs::path& checkpoint) {
    const fs::path path = checkpoint / manifest_file;
    json manifest;
    try {
        manifest = json::parse(base::read_text(path));
        if (manifest.at("format") != checkpoint_format) {
            throw Error(str(path.string(), ": checkpoint format ", manifest.at("format").dump(),
                            ", this program reads ", checkpoint_format));
        }
        const std::uint32_t stated = manifest.at(manifest_checksum_key);
        manifest.erase(manifest_checksum_key);
        if (manifest_checksum(manifest) != stated) {
            throw Error(str(path.string(), ": damaged: its checksum is wrong; resume from an earlier checkpoint"));
        }
        manifest[manifest_checksum_key] = stated;
    } catch (const json::exception& error) {
        throw unlike_a_manifest(checkpoint, error);
    }
    return manifest;
}

json verified_manifest(const fs::path& checkpoint) {
    const fs::path path = checkpoint / manifest_file;
    json manifest = read_manifest(checkpoint);
    try {
        for (const auto& [name, expected] : manifest.at("files").items()) {
            if (!is_file_name(name)) {
                throw Error(str(path.string(), ": names a file \"", name, "\", which is none of a checkpoint"));
            }
            const json found = checksum_entry(checkpoint / name);
            if (found != expected) {
                throw Error(str((checkpoint / name).string(), ": damaged: manifest says ", expected.dump(),
                                ", the file has ", found.dump(), "; resume from an earlier checkpoint"));
            }
        }
    } catch (const json::exception& error) {
        throw unlike_a_manifest(checkpoint, error);
    }
    return manifest;
}

bool is_whole_checkpoint(const fs::path& checkpoint) {
    try {
        verified_manifest(checkpoint);
        return true;
    } catch (const Error& error) {
        base::log_warning(error.what());
        return false;
    }
}

}  // namespace lockstep::trainer
