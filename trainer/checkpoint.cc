#include "trainer/checkpoint.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/hdf5.h"
#include "base/log.h"
#include "trainer/checkpoint_manifest.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::str;
using nlohmann::json;

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
    switch (saved_type(type)) {
        case at::kFloat:
            return read_tensor<float>(file, name, at::kFloat);
        case at::kDouble:
            return read_tensor<double>(file, name, at::kDouble);
        default:
            return read_tensor<std::int64_t>(file, name, at::kLong);
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
        content.checksum = manifest.at(manifest_checksum_key);
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
        throw unlike_a_manifest(checkpoint, error);
    }
    return content;
}

Recipe recipe_of_checkpoint(const fs::path& checkpoint) {
    try {
        return parse_recipe(read_manifest(checkpoint).at("recipe"),
                            "the recipe in " + (checkpoint / manifest_file).string());
    } catch (const json::exception& error) {
        throw unlike_a_manifest(checkpoint, error);
    }
}

std::optional<fs::path> newest_checkpoint(const fs::path& run) {
    auto candidates = checkpoints_of(run);
    const auto newest = std::find_if(candidates.rbegin(), candidates.rend(), is_whole_checkpoint);
    return newest == candidates.rend() ? std::nullopt : std::optional(*newest);
}

void remove_checkpoints_after(const fs::path& run, std::uint64_t optimizer_steps) {
    for (const fs::path& path : checkpoints_of(run)) {
        if (path > checkpoint_path(run, optimizer_steps)) {
            base::log_warning(str("removing ", path.string(), ", which the resumed run passed over"));
            fs::remove_all(path);
        }
    }
}

}  // namespace lockstep::trainer
