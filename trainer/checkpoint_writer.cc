#include "trainer/checkpoint_writer.h"

#include <ATen/ops/clone.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/file.h"
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
void write_tensor(base::Hdf5File& file, const std::string& name, const at::Tensor& tensor,
                  std::vector<std::uint64_t> shape) {
    file.write<T>(name, std::span<const T>(tensor.const_data_ptr<T>(), static_cast<std::size_t>(tensor.numel())),
                  std::move(shape));
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
    const std::string name = checkpoint_file_name(rank);
    auto file = base::Hdf5File::create(folder / name);
    const auto whole = [&](const std::string& tensor_name, const at::Tensor& tensor) {
        written["tensors"][tensor_name] = {{"type", saved_type_name(tensor.scalar_type(), tensor_name)},
                                           {"file", name}};
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
                                     {"type", saved_type_name(piece.values.scalar_type(), piece.name)},
                                     {"shape", piece.shape},
                                     {"strides", piece.strides},
                                     {"begin", piece.begin},
                                     {"count", piece.values.numel()},
                                     {"file", name}});
        write_tensor(file, piece.name, piece.values);
    }
    file.close();
    base::sync_to_disk(folder / name);
    written["files"][name] = checksum_entry(folder / name);
    return written;
}

void write_manifest(const fs::path& folder, const CheckpointContent& content, const std::vector<json>& written) {
    json manifest = {{"format", checkpoint_format},
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
    manifest[manifest_checksum_key] = manifest_checksum(manifest);
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

/// Detached, so that a thread without gradients' bookkeeping may read it.
at::Tensor copy_of(const at::Tensor& tensor) {
    return tensor.detach().clone(at::MemoryFormat::Preserve);
}

}  // namespace

struct CheckpointWriter::State {
    State(fs::path the_run, std::int64_t to_keep, comm::Communicator& ranks)
        : run(std::move(the_run)), keep(to_keep), communicator(ranks) {}

    fs::path run;
    std::int64_t keep;
    comm::Communicator& communicator;

    enum class Phase { idle, writing, publishing } phase = Phase::idle;
    CheckpointContent content;  ///< with copies of the tensors, on rank 0
    std::vector<TensorPiece> pieces;
    std::unique_ptr<base::DirectoryAside> aside;  ///< on rank 0
    std::future<json> work;                       ///< of this rank in this phase, if there is any; waits when destroyed

    bool is_first() const { return comm::index_of(communicator.rank()) == 0; }
    json copy(const CheckpointContent& given, const std::vector<TensorPiece>& given_pieces);
    json prepare(const fs::path& target, std::uint64_t bytes);
    void advance();
    void drop();
};

/// How many bytes it is.
json CheckpointWriter::State::copy(const CheckpointContent& given, const std::vector<TensorPiece>& given_pieces) {
    if (is_first()) {
        content = given;
        for (auto& [name, tensor] : content.tensors) {
            tensor = copy_of(tensor);
        }
    }
    pieces = given_pieces;
    for (TensorPiece& piece : pieces) {
        piece.values = copy_of(piece.values);
    }
    return bytes_of(content.tensors, pieces);
}

/// On rank 0: the name of the folder that all write into; empty where this checkpoint is there already.
json CheckpointWriter::State::prepare(const fs::path& target, std::uint64_t bytes) {
    if (!is_first()) {
        return "";
    }
    fs::create_directories(target.parent_path());
    base::remove_leftovers_aside(target.parent_path());
    if (fs::exists(target) && !is_whole_checkpoint(target)) {
        base::log_warning(str(target.string(), " is damaged and is written anew"));
        fs::remove_all(target);
    }
    if (fs::exists(target)) {
        remove_surplus(run, keep);
        return "";
    }
    base::require_free_space(target.parent_path(), bytes + (1 << 20), "a checkpoint");
    aside = std::make_unique<base::DirectoryAside>(target);
    return aside->path().filename().string();
}

void CheckpointWriter::State::drop() {
    phase = Phase::idle;
    content = {};
    pieces.clear();
    aside.reset();
}

/// From writing to publishing, and from there to idle.
void CheckpointWriter::State::advance() {
    const auto result = [&]() -> json { return work.valid() ? work.get() : json(true); };
    if (phase == Phase::publishing) {
        exchange(communicator, result, "checkpoint saved");
        drop();
        return;
    }
    std::vector<json> written = exchange(communicator, result, "tensors saved");
    content.tensors.clear();
    pieces.clear();
    phase = Phase::publishing;
    if (is_first()) {
        work = std::async(std::launch::async, [this, written = std::move(written)]() -> json {
            write_manifest(aside->path(), content, written);
            aside->publish();
            remove_surplus(run, keep);
            return true;
        });
    }
}

CheckpointWriter::CheckpointWriter(fs::path run, std::int64_t keep, comm::Communicator& communicator)
    : state_(std::make_unique<State>(std::move(run), keep, communicator)) {}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::begin(const CheckpointContent& content, const std::vector<TensorPiece>& pieces) {
    finish();
    State& s = *state_;
    const fs::path target = checkpoint_path(s.run, content.progress.optimizer_steps);
    try {
        std::uint64_t bytes = 0;
        for (const json& of_rank : exchange(
                 s.communicator, [&] { return s.copy(content, pieces); }, "size of a checkpoint")) {
            bytes += of_rank.get<std::uint64_t>();
        }
        const std::string name = exchange(
                                     s.communicator, [&] { return s.prepare(target, bytes); }, "start of a checkpoint")
                                     .front();
        if (name.empty()) {
            s.drop();
            return;
        }
        s.phase = State::Phase::writing;
        s.work = std::async(std::launch::async, [&s, folder = target.parent_path() / name] {
            return write_rank(folder, s.communicator.rank(), s.content.tensors, s.pieces);
        });
    } catch (...) {
        s.drop();
        throw;
    }
}

bool CheckpointWriter::is_under_way() const {
    return state_->phase != State::Phase::idle;
}

bool CheckpointWriter::is_busy() const {
    return state_->work.valid() && state_->work.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void CheckpointWriter::advance() {
    LOCKSTEP_CHECK(is_under_way());
    try {
        state_->advance();
    } catch (...) {
        state_->drop();
        throw;
    }
}

void CheckpointWriter::finish() {
    while (is_under_way()) {
        advance();
    }
}

fs::path save_checkpoint(const fs::path& run, const CheckpointContent& content, const std::vector<TensorPiece>& pieces,
                         std::int64_t keep, comm::Communicator& communicator) {
    CheckpointWriter writer(run, keep, communicator);
    writer.begin(content, pieces);
    writer.finish();
    return checkpoint_path(run, content.progress.optimizer_steps);
}

fs::path save_checkpoint(const fs::path& run, const CheckpointContent& content, std::int64_t keep) {
    return save_checkpoint(run, content, {}, keep, *comm::make_single_communicator());
}

}  // namespace lockstep::trainer
