#include "trainer/checkpoint.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

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

constexpr std::uint64_t format_version = 2;
constexpr const char* manifest_file = "manifest.json";
constexpr const char* checksum_key = "checksum";

std::string numbered(const char* prefix, std::uint64_t number, std::size_t digits) {
    const std::string text = str(number);
    return prefix + std::string(text.size() < digits ? digits - text.size() : 0, '0') + text;
}

std::string directory_name(std::uint64_t step) {
    return numbered("step-", step, 9);
}

std::string file_name(comm::Rank rank) {
    return numbered("rank-", static_cast<std::uint64_t>(comm::index_of(rank)), 5) + ".h5";
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

const char* type_name(at::ScalarType type) {
    switch (type) {
        case at::kFloat:
            return "f32";
        case at::kDouble:
            return "f64";
        case at::kLong:
            return "i64";
        default:
            LOCKSTEP_CHECK(false, "checkpoints don't hold tensors of type ", type);
    }
}

void write_tensor(base::Hdf5File& file, const std::string& name, const at::Tensor& tensor) {
    const at::Tensor plain = tensor.contiguous();
    // A scalar is stored as one element: HDF5 files of ours have no data sets without dimensions.
    std::vector<std::uint64_t> shape(static_cast<std::size_t>(std::max<std::int64_t>(1, plain.dim())), 1);
    std::copy(plain.sizes().begin(), plain.sizes().end(), shape.begin());
    if (plain.scalar_type() == at::kFloat) {
        write_tensor<float>(file, name, plain, std::move(shape));
    } else if (plain.scalar_type() == at::kDouble) {
        write_tensor<double>(file, name, plain, std::move(shape));
    } else {
        write_tensor<std::int64_t>(file, name, plain, std::move(shape));
    }
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

at::Tensor read_tensor(const base::Hdf5File& file, const std::string& name, const std::string& type) {
    return type == "f32"   ? read_tensor<float>(file, name, at::kFloat)
           : type == "f64" ? read_tensor<double>(file, name, at::kDouble)
                           : read_tensor<std::int64_t>(file, name, at::kLong);
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

namespace {

/// What a rank tells the others after its part of the work: collectives stay on the path that is always taken, and one
/// rank's error becomes all ranks'.
std::vector<json> exchange(comm::Communicator& communicator, const std::function<json()>& work, const char* name) {
    json mine;
    try {
        mine["value"] = work();
    } catch (const std::exception& error) {
        mine["error"] = error.what();
    }
    const std::string text = mine.dump();
    std::vector<json> values;
    for (const auto& bytes : communicator.all_gather_bytes(std::as_bytes(std::span(text)), name)) {
        const auto* begin = reinterpret_cast<const char*>(bytes.data());
        const json theirs = json::parse(begin, begin + bytes.size());
        if (theirs.contains("error")) {
            throw Error(theirs.at("error").get<std::string>());
        }
        values.push_back(theirs.at("value"));
    }
    return values;
}

bool is_whole_tensor(const TensorPiece& piece) {
    std::int64_t count = 1;
    for (const std::int64_t size : piece.shape) {
        count *= size;
    }
    return piece.begin == 0 && piece.values.numel() == count;
}

/// Writes a rank's file, if it has anything to hold. What the manifest says of it: {"files", "tensors", "pieces"}.
json write_rank(const fs::path& folder, comm::Rank rank, const std::map<std::string, at::Tensor>& tensors,
                const std::vector<TensorPiece>& pieces) {
    json written = {{"files", json::object()}, {"tensors", json::object()}, {"pieces", json::array()}};
    if (tensors.empty() && pieces.empty()) {
        return written;
    }
    const std::string name = file_name(rank);
    auto file = base::Hdf5File::create(folder / name);
    const auto whole = [&](const std::string& tensor_name, const at::Tensor& tensor) {
        write_tensor(file, tensor_name, tensor);
        written["tensors"][tensor_name] = {{"type", type_name(tensor.scalar_type())}, {"file", name}};
    };
    for (const auto& [tensor_name, tensor] : tensors) {
        whole(tensor_name, tensor);
    }
    for (const TensorPiece& piece : pieces) {
        if (is_whole_tensor(piece)) {
            whole(piece.name, piece.values.as_strided(piece.shape, piece.strides));
            continue;
        }
        write_tensor(file, piece.name, piece.values);
        written["pieces"].push_back({{"name", piece.name},
                                     {"type", type_name(piece.values.scalar_type())},
                                     {"shape", piece.shape},
                                     {"strides", piece.strides},
                                     {"begin", piece.begin},
                                     {"count", piece.values.numel()},
                                     {"file", name}});
    }
    file.close();
    written["files"][name] = file_entry(folder / name);
    return written;
}

void write_manifest(const fs::path& folder, const CheckpointContent& content, const std::vector<json>& written) {
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
                     {"tensors", json::object()},
                     {"pieces", json::array()},
                     {"files", json::object()}};
    for (const json& of_rank : written) {
        manifest["tensors"].update(of_rank.at("tensors"));
        manifest["files"].update(of_rank.at("files"));
        manifest["pieces"].insert(manifest["pieces"].end(), of_rank.at("pieces").begin(), of_rank.at("pieces").end());
    }
    manifest[checksum_key] = checksum_of(manifest);
    base::write_whole(folder / manifest_file, manifest.dump(1) + "\n");
}

std::uint64_t bytes_of(const std::map<std::string, at::Tensor>& tensors, const std::vector<TensorPiece>& pieces) {
    constexpr std::uint64_t overhead = 4096;  // of a data set in HDF5 and in the manifest
    std::uint64_t bytes = 0;
    for (const auto& [name, tensor] : tensors) {
        bytes += tensor.nbytes() + overhead;
    }
    for (const TensorPiece& piece : pieces) {
        bytes += piece.values.nbytes() + overhead;
    }
    return bytes;
}

void remove_surplus(const fs::path& run, std::int64_t keep) {
    const auto existing = checkpoints_of(run);
    const auto surplus = static_cast<std::int64_t>(existing.size()) - keep;
    for (std::int64_t i = 0; i < surplus; ++i) {
        fs::remove_all(existing[static_cast<std::size_t>(i)]);
    }
}

/// The pieces of one tensor, put together.
class Assembly {
  public:
    explicit Assembly(const json& first)
        : shape_(first.at("shape").get<std::vector<std::int64_t>>()),
          strides_(first.at("strides").get<std::vector<std::int64_t>>()),
          type_(first.at("type")) {
        std::int64_t count = 1;
        for (const std::int64_t size : shape_) {
            count *= size;
        }
        values_ = at::empty({count}, type_ == "f64" ? at::kDouble : at::kFloat);
    }

    void add(const json& piece, const at::Tensor& values) {
        const std::int64_t begin = piece.at("begin"), count = piece.at("count");
        if (piece.at("shape") != shape_ || piece.at("strides") != strides_ || piece.at("type") != type_ || begin < 0 ||
            count != values.numel() || begin > values_.numel() - count) {
            throw Error("a piece that doesn't fit its tensor");
        }
        values_.narrow(0, begin, count).copy_(values.flatten());
        covered_.emplace_back(begin, begin + count);
    }

    at::Tensor tensor() {
        std::ranges::sort(covered_);
        std::int64_t end = 0;
        for (const auto& [first, last] : covered_) {
            if (first != end) {
                throw Error(
                    str("elements from ", std::min(first, end), " on are there ", first < end ? "twice" : "not"));
            }
            end = last;
        }
        if (end != values_.numel()) {
            throw Error(str("elements from ", end, " on are not there"));
        }
        return values_.as_strided(shape_, strides_);
    }

  private:
    std::vector<std::int64_t> shape_, strides_;
    std::string type_;
    at::Tensor values_;
    std::vector<std::pair<std::int64_t, std::int64_t>> covered_;
};

}  // namespace

fs::path save_checkpoint(const fs::path& run, const CheckpointContent& content, const std::vector<TensorPiece>& pieces,
                         std::int64_t keep, comm::Communicator& communicator) {
    const bool is_first = comm::index_of(communicator.rank()) == 0;
    const fs::path target = run / "checkpoints" / directory_name(content.progress.optimizer_steps);
    static const std::map<std::string, at::Tensor> none;
    const auto& tensors = is_first ? content.tensors : none;

    std::uint64_t bytes = 0;
    for (const json& of_rank : exchange(
             communicator, [&] { return json(bytes_of(tensors, pieces)); }, "size of a checkpoint")) {
        bytes += of_rank.get<std::uint64_t>();
    }
    std::unique_ptr<base::DirectoryAside> aside;  // on rank 0
    const auto prepare = [&]() -> json {
        if (!is_first) {
            return "";
        }
        fs::create_directories(target.parent_path());
        if (fs::exists(target) && !is_whole(target)) {
            base::log_warning(str(target.string(), " is damaged and is written anew"));
            fs::remove_all(target);
        }
        if (fs::exists(target)) {
            return "";
        }
        base::require_free_space(target.parent_path(), bytes + (1 << 20), "a checkpoint");
        aside = std::make_unique<base::DirectoryAside>(target);
        return aside->path().string();
    };
    const std::string folder = exchange(communicator, prepare, "start of a checkpoint").front();
    if (!folder.empty()) {
        const std::vector<json> written = exchange(
            communicator, [&] { return write_rank(folder, communicator.rank(), tensors, pieces); }, "tensors saved");
        const auto publish = [&]() -> json {
            if (is_first) {
                write_manifest(folder, content, written);
                aside->publish();
            }
            return true;
        };
        exchange(communicator, publish, "checkpoint saved");
    }
    if (is_first) {
        remove_surplus(run, keep);
    }
    return target;
}

fs::path save_checkpoint(const fs::path& run, const CheckpointContent& content, std::int64_t keep) {
    return save_checkpoint(run, content, {}, keep, *comm::make_single_communicator());
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
        std::map<std::string, base::Hdf5File> files;
        for (const auto& [name, entry] : manifest.at("files").items()) {
            files.emplace(name, base::Hdf5File::open_read_only(checkpoint / name));
        }
        for (const auto& [name, entry] : manifest.at("tensors").items()) {
            content.tensors[name] = read_tensor(files.at(entry.at("file")), name, entry.at("type"));
        }
        std::map<std::string, Assembly> assemblies;
        for (const json& piece : manifest.at("pieces")) {
            const std::string name = piece.at("name");
            assemblies.try_emplace(name, piece)
                .first->second.add(piece, read_tensor(files.at(piece.at("file")), name, piece.at("type")));
        }
        for (auto& [name, assembly] : assemblies) {
            try {
                content.tensors[name] = assembly.tensor();
            } catch (const Error& error) {
                throw Error(str((checkpoint / manifest_file).string(), ": tensor ", name, ": ", error.what()));
            }
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
