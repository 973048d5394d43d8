#include "trainer/checkpoint.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
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

/// Of a rank's file, and not a path to somewhere else.
bool is_file_name(const std::string& name) {
    return name.starts_with("rank-") && name.ends_with(".h5") && name.size() > 8 &&
           name.find_first_not_of("0123456789", 5) == name.size() - 3;
}

template <typename T>
void write_tensor(base::Hdf5File& file, const std::string& name, const at::Tensor& tensor,
                  std::vector<std::uint64_t> shape) {
    file.write<T>(name, std::span<const T>(tensor.const_data_ptr<T>(), static_cast<std::size_t>(tensor.numel())),
                  std::move(shape));
}

const char* type_name(at::ScalarType type, const std::string& tensor) {
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

at::ScalarType type_of(const std::string& name) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
        if (name == type_name(type, "")) {
            return type;
        }
    }
    throw Error(str("an unknown type \"", name, "\""));
}

at::Tensor read_tensor(const base::Hdf5File& file, const std::string& name, const std::string& type) {
    switch (type_of(type)) {
        case at::kFloat:
            return read_tensor<float>(file, name, at::kFloat);
        case at::kDouble:
            return read_tensor<double>(file, name, at::kDouble);
        default:
            return read_tensor<std::int64_t>(file, name, at::kLong);
    }
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
Error unlike_a_manifest(const fs::path& path, const json::exception& error) {
    return Error(str(path.string(), ": not a checkpoint manifest: ", error.what()));
}

json read_manifest(const fs::path& checkpoint) {
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
        manifest[checksum_key] = stated;
    } catch (const json::exception& error) {
        throw unlike_a_manifest(path, error);
    }
    return manifest;
}

/// After a look at every file that it names.
json verified_manifest(const fs::path& checkpoint) {
    const fs::path path = checkpoint / manifest_file;
    json manifest = read_manifest(checkpoint);
    try {
        for (const auto& [name, expected] : manifest.at("files").items()) {
            if (!is_file_name(name)) {
                throw Error(str(path.string(), ": names a file \"", name, "\", which is none of a checkpoint"));
            }
            const json found = file_entry(checkpoint / name);
            if (found != expected) {
                throw Error(str((checkpoint / name).string(), ": damaged: manifest says ", expected.dump(),
                                ", the file has ", found.dump(), "; resume from an earlier checkpoint"));
            }
        }
    } catch (const json::exception& error) {
        throw unlike_a_manifest(path, error);
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
    // Messages and paths may hold bytes that are no UTF-8.
    const std::string text = mine.dump(-1, ' ', false, json::error_handler_t::replace);
    std::vector<json> values;
    for (const std::string& of_rank : communicator.all_gather_texts(text, name)) {
        const json theirs = json::parse(of_rank);
        if (theirs.contains("error")) {
            throw Error(theirs.at("error").get<std::string>());
        }
        values.push_back(theirs.at("value"));
    }
    return values;
}

bool is_whole_tensor(const TensorPiece& piece) {
    return piece.begin == 0 && piece.values.numel() == c10::multiply_integers(piece.shape);
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
        written["tensors"][tensor_name] = {{"type", type_name(tensor.scalar_type(), tensor_name)}, {"file", name}};
        write_tensor(file, tensor_name, tensor);
    };
    for (const auto& [tensor_name, tensor] : tensors) {
        whole(tensor_name, tensor);
    }
    for (const TensorPiece& piece : pieces) {
        if (is_whole_tensor(piece)) {
            whole(piece.name, piece.values.as_strided(piece.shape, piece.strides));
            continue;
        }
        written["pieces"].push_back({{"name", piece.name},
                                     {"type", type_name(piece.values.scalar_type(), piece.name)},
                                     {"shape", piece.shape},
                                     {"strides", piece.strides},
                                     {"begin", piece.begin},
                                     {"count", piece.values.numel()},
                                     {"file", name}});
        write_tensor(file, piece.name, piece.values);
    }
    file.close();
    base::sync_to_disk(folder / name);
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
                     {"skipped_steps", content.progress.skipped_steps},
                     {"best_fitness", content.progress.best_fitness},
                     {"best_step", content.progress.best_step},
                     {"evaluations_since_best", content.progress.evaluations_since_best},
                     {"plateau_factor", content.progress.plateau_factor},
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
        std::error_code error;
        fs::remove_all(existing[static_cast<std::size_t>(i)], error);
        if (error) {
            base::log_warning(str(existing[static_cast<std::size_t>(i)].string(), " stays: ", error.message()));
        }
    }
}

/// Of a dense tensor with this shape; nothing where there is none, or where it is absurdly large.
std::optional<std::int64_t> dense_count(const std::vector<std::int64_t>& shape,
                                        const std::vector<std::int64_t>& strides) {
    constexpr std::int64_t limit = std::int64_t{1} << 40;
    if (shape.size() != strides.size()) {
        return std::nullopt;
    }
    std::int64_t count = 1;
    std::vector<std::pair<std::int64_t, std::int64_t>> extents;  // of stride and size, where there is a choice
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (shape[i] < 1 || shape[i] > limit / count) {
            return std::nullopt;
        }
        count *= shape[i];
        if (shape[i] > 1) {
            extents.emplace_back(strides[i], shape[i]);
        }
    }
    std::ranges::sort(extents);
    std::int64_t expected = 1;
    for (const auto& [stride, size] : extents) {
        if (stride != expected) {
            return std::nullopt;
        }
        expected *= size;
    }
    return count;
}

/// The pieces of one tensor, put together.
class Assembly {
  public:
    explicit Assembly(const json& first)
        : shape_(first.at("shape").get<std::vector<std::int64_t>>()),
          strides_(first.at("strides").get<std::vector<std::int64_t>>()),
          type_(first.at("type")) {
        const auto count = dense_count(shape_, strides_);
        if (!count) {
            throw Error("shape and strides are those of no dense tensor");
        }
        count_ = *count;
    }

    void add(const json& piece, const at::Tensor& values) {
        const std::int64_t begin = piece.at("begin"), count = piece.at("count");
        if (piece.at("shape") != shape_ || piece.at("strides") != strides_ || piece.at("type") != type_ || begin < 0 ||
            count != values.numel() || begin > count_ - count) {
            throw Error("a piece doesn't fit it");
        }
        pieces_.emplace_back(begin, values.flatten());
    }

    at::Tensor tensor() {
        std::ranges::sort(pieces_, {}, &std::pair<std::int64_t, at::Tensor>::first);
        std::int64_t end = 0;
        std::vector<at::Tensor> values;
        for (const auto& [begin, piece] : pieces_) {
            if (begin != end) {
                throw Error(
                    str("elements from ", std::min(begin, end), " on are ", begin < end ? "there twice" : "not there"));
            }
            end += piece.numel();
            values.push_back(piece);
        }
        if (end != count_) {
            throw Error(str("elements from ", end, " on are not there"));
        }
        return at::cat(values).as_strided(shape_, strides_);
    }

  private:
    std::vector<std::int64_t> shape_, strides_;
    std::string type_;
    std::int64_t count_ = 0;
    std::vector<std::pair<std::int64_t, at::Tensor>> pieces_;
};

}  // namespace

fs::path save_checkpoint(const fs::path& run, const CheckpointContent& content, const std::vector<TensorPiece>& pieces,
                         std::int64_t keep, comm::Communicator& communicator) {
    const bool is_first = comm::index_of(communicator.rank()) == 0;
    const fs::path target = run / "checkpoints" / directory_name(content.progress.optimizer_steps);
    const std::map<std::string, at::Tensor> none;
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
        return aside->path().filename().string();
    };
    const std::string name = exchange(communicator, prepare, "start of a checkpoint").front();
    if (!name.empty()) {
        const fs::path folder = target.parent_path() / name;
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
        const Progress fresh;  // of what older checkpoints don't say
        content.progress = {
            .epoch = manifest.at("epoch"),
            .step_in_epoch = manifest.at("step_in_epoch"),
            .optimizer_steps = manifest.at("optimizer_steps"),
            .epoch_loss = manifest.at("epoch_loss"),
            .skipped_steps = manifest.value("skipped_steps", fresh.skipped_steps),
            .best_fitness = manifest.value("best_fitness", fresh.best_fitness),
            .best_step = manifest.value("best_step", fresh.best_step),
            .evaluations_since_best = manifest.value("evaluations_since_best", fresh.evaluations_since_best),
            .plateau_factor = manifest.value("plateau_factor", fresh.plateau_factor)};
        content.training_hash = manifest.at("training_hash");
        content.data_hash = manifest.at("data_hash");
        content.ledger_count = manifest.at("ledger_count");
        content.ledger_hash = manifest.at("ledger_hash");
        content.recipe = manifest.at("recipe");
        content.checksum = manifest.at(checksum_key);
        std::map<std::string, base::Hdf5File> files;
        for (const auto& [name, entry] : manifest.at("files").items()) {
            files.emplace(name, base::Hdf5File::open_read_only(checkpoint / name));
        }
        const auto read = [&](const std::string& name, const json& place) {
            const auto file = files.find(place.at("file"));
            if (file == files.end()) {
                throw Error(str("its file ", place.at("file").dump(), " is not among the checkpoint's"));
            }
            return read_tensor(file->second, name, place.at("type"));
        };
        const auto named = [&](const std::string& name, const auto& work) {
            try {
                work();
            } catch (const Error& error) {
                throw Error(str((checkpoint / manifest_file).string(), ": tensor ", name, ": ", error.what()));
            }
        };
        for (const auto& [name, place] : manifest.at("tensors").items()) {
            named(name, [&, &name = name, &place = place] { content.tensors[name] = read(name, place); });
        }
        std::map<std::string, Assembly> assemblies;
        for (const json& piece : manifest.at("pieces")) {
            const std::string name = piece.at("name");
            named(name, [&] { assemblies.try_emplace(name, piece).first->second.add(piece, read(name, piece)); });
        }
        for (auto& [name, assembly] : assemblies) {
            named(name, [&, &name = name, &assembly = assembly] {
                if (!content.tensors.emplace(name, assembly.tensor()).second) {
                    throw Error("it is there whole and in pieces");
                }
            });
        }
    } catch (const json::exception& error) {
        throw Error(str((checkpoint / manifest_file).string(), ": ", error.what()));
    }
    return content;
}

Recipe recipe_of_checkpoint(const fs::path& checkpoint) {
    const fs::path path = checkpoint / manifest_file;
    try {
        return parse_recipe(read_manifest(checkpoint).at("recipe"), "the recipe in " + path.string());
    } catch (const json::exception& error) {
        throw unlike_a_manifest(path, error);
    }
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
