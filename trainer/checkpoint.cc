#include "trainer/checkpoint.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/hdf5.h"
#include "base/log.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::str;
using nlohmann::json;

constexpr std::uint64_t format_version = 1;
constexpr const char* tensor_file = "rank-00000.h5";
constexpr const char* manifest_file = "manifest.json";
constexpr const char* checksum_key = "checksum";

std::string directory_name(std::uint64_t step) {
    const std::string digits = str(step);
    return "step-" + std::string(digits.size() < 9 ? 9 - digits.size() : 0, '0') + digits;
}

/// Directories of checkpoints, oldest first; what is only partly written has another name.
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

template <typename T>
void write_tensor(base::Hdf5File& file, const std::string& name, const at::Tensor& tensor,
                  std::vector<std::uint64_t> shape) {
    file.write<T>(name, std::span<const T>(tensor.const_data_ptr<T>(), static_cast<std::size_t>(tensor.numel())),
                  std::move(shape));
}

void write_tensors(const fs::path& path, const std::map<std::string, at::Tensor>& tensors) {
    auto file = base::Hdf5File::create(path);
    for (const auto& [name, tensor] : tensors) {
        const at::Tensor plain = tensor.contiguous();
        // A scalar is stored as one element: HDF5 files of ours have no data sets without dimensions.
        std::vector<std::uint64_t> shape(static_cast<std::size_t>(std::max<std::int64_t>(1, plain.dim())), 1);
        std::copy(plain.sizes().begin(), plain.sizes().end(), shape.begin());
        switch (plain.scalar_type()) {
            case at::kFloat:
                write_tensor<float>(file, name, plain, std::move(shape));
                break;
            case at::kDouble:
                write_tensor<double>(file, name, plain, std::move(shape));
                break;
            case at::kLong:
                write_tensor<std::int64_t>(file, name, plain, std::move(shape));
                break;
            default:
                LOCKSTEP_CHECK(false, "tensor ", name, " has a type that checkpoints don't hold");
        }
    }
    file.close();
}

template <typename T>
at::Tensor read_tensor(const base::Hdf5File& file, const std::string& name, at::ScalarType type) {
    const auto shape = file.shape(name);
    at::Tensor tensor =
        at::empty(std::vector<std::int64_t>(shape.begin(), shape.end()), at::TensorOptions().dtype(type));
    const auto values = file.read<T>(name, static_cast<std::uint64_t>(tensor.numel()));
    std::ranges::copy(values, tensor.mutable_data_ptr<T>());
    return tensor;
}

json file_entry(const fs::path& path) {
    const auto bytes = base::read_bytes(path);
    return {{"bytes", bytes.size()}, {"crc32c", base::crc32c(bytes)}};
}

/// Of the manifest's content without the checksum itself; keys are in alphabetical order.
std::uint32_t checksum_of(const json& manifest) {
    const std::string text = manifest.dump();
    return base::crc32c({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

/// The parsed manifest, once sizes and checksums of all files are right.
json verified_manifest(const fs::path& checkpoint) {
    const fs::path path = checkpoint / manifest_file;
    json manifest;
    try {
        manifest = json::parse(base::read_text(path));
        if (manifest.at("format") != format_version) {
            throw Error(str(path.string(), ": checkpoint format ", manifest.at("format").dump(),
                            ", this program reads ", format_version));
        }
        const std::uint32_t stated = manifest.at(checksum_key);
        manifest.erase(checksum_key);
        if (checksum_of(manifest) != stated) {
            throw Error(str(path.string(), ": damaged: its checksum is wrong; resume from an earlier checkpoint"));
        }
        for (const auto& [name, expected] : manifest.at("files").items()) {
            const json found = file_entry(checkpoint / name);
            if (found != expected) {
                throw Error(str((checkpoint / name).string(), ": damaged: manifest says ", expected.dump(),
                                ", the file has ", found.dump(), "; resume from an earlier checkpoint"));
            }
        }
    } catch (const json::exception& error) {
        throw Error(str(path.string(), ": not a checkpoint manifest: ", error.what()));
    }
    return manifest;
}

bool is_whole(const fs::path& checkpoint) {
    try {
        verified_manifest(checkpoint);
        return true;
    } catch (const Error& error) {
        base::log_warning(error.what());
        return false;
    }
}

}  // namespace

fs::path save_checkpoint(const fs::path& run, const CheckpointContent& content, std::int64_t keep) {
    const fs::path target = run / "checkpoints" / directory_name(content.progress.optimizer_steps);
    fs::create_directories(target.parent_path());
    if (fs::exists(target) && !is_whole(target)) {
        base::log_warning(str(target.string(), " is damaged and is written anew"));
        fs::remove_all(target);
    }
    if (!fs::exists(target)) {
        std::uint64_t bytes = 1 << 20;
        for (const auto& [name, tensor] : content.tensors) {
            bytes += tensor.nbytes() + 4096;
        }
        base::require_free_space(target.parent_path(), bytes, "a checkpoint");
        base::write_directory_whole(target, [&](const fs::path& aside) {
            write_tensors(aside / tensor_file, content.tensors);
            json types = json::object();
            for (const auto& [name, tensor] : content.tensors) {
                types[name] = tensor.scalar_type() == at::kFloat    ? "f32"
                              : tensor.scalar_type() == at::kDouble ? "f64"
                                                                    : "i64";
            }
            json manifest = {{"format", format_version},
                             {"model", content.model},
                             {"classes", content.classes},
                             {"epoch", content.progress.epoch},
                             {"step_in_epoch", content.progress.step_in_epoch},
                             {"optimizer_steps", content.progress.optimizer_steps},
                             {"epoch_loss", content.progress.epoch_loss},
                             {"training_hash", content.training_hash},
                             {"data_hash", content.data_hash},
                             {"ledger_count", content.ledger_count},
                             {"ledger_hash", content.ledger_hash},
                             {"recipe", content.recipe},
                             {"tensors", types},
                             {"files", {{tensor_file, file_entry(aside / tensor_file)}}}};
            manifest[checksum_key] = checksum_of(manifest);
            base::write_whole(aside / manifest_file, manifest.dump(1) + "\n");
        });
    }
    auto existing = checkpoints_of(run);
    const auto surplus = static_cast<std::int64_t>(existing.size()) - keep;
    for (std::int64_t i = 0; i < surplus; ++i) {
        fs::remove_all(existing[static_cast<std::size_t>(i)]);
    }
    return target;
}

CheckpointContent load_checkpoint(const fs::path& checkpoint) {
    const json manifest = verified_manifest(checkpoint);
    CheckpointContent content;
    try {
        content.model = manifest.at("model");
        content.classes = manifest.at("classes").get<std::vector<std::string>>();
        content.progress = {manifest.at("epoch"), manifest.at("step_in_epoch"), manifest.at("optimizer_steps"),
                            manifest.at("epoch_loss")};
        content.training_hash = manifest.at("training_hash");
        content.data_hash = manifest.at("data_hash");
        content.ledger_count = manifest.at("ledger_count");
        content.ledger_hash = manifest.at("ledger_hash");
        content.recipe = manifest.at("recipe");
        const auto file = base::Hdf5File::open_read_only(checkpoint / tensor_file);
        for (const auto& [name, type] : manifest.at("tensors").items()) {
            content.tensors[name] = type == "f32"   ? read_tensor<float>(file, name, at::kFloat)
                                    : type == "f64" ? read_tensor<double>(file, name, at::kDouble)
                                                    : read_tensor<std::int64_t>(file, name, at::kLong);
        }
    } catch (const json::exception& error) {
        throw Error(str((checkpoint / manifest_file).string(), ": ", error.what()));
    }
    return content;
}

std::optional<fs::path> newest_checkpoint(const fs::path& run) {
    auto candidates = checkpoints_of(run);
    const auto newest = std::find_if(candidates.rbegin(), candidates.rend(), is_whole);
    return newest == candidates.rend() ? std::nullopt : std::optional(*newest);
}

void remove_checkpoints_after(const fs::path& run, std::uint64_t optimizer_steps) {
    for (const fs::path& path : checkpoints_of(run)) {
        if (path.filename() > directory_name(optimizer_steps)) {
            base::log_warning(str("removing ", path.string(), ", which the resumed run passed over"));
            fs::remove_all(path);
        }
    }
}

}  // namespace lockstep::trainer
