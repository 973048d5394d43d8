#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"

namespace lockstep::trainer {

/// What a checkpoint's directory holds, by name and checksum: shared by what writes it and what reads it.

constexpr std::uint64_t checkpoint_format = 2;
constexpr const char* manifest_file = "manifest.json";
constexpr const char* manifest_checksum_key = "checksum";

/// `run`/checkpoints/step-000000123.
std::filesystem::path checkpoint_path(const std::filesystem::path& run, std::uint64_t optimizer_steps);
/// Of a run, oldest first; what is only partly written has another name.
std::vector<std::filesystem::path> checkpoints_of(const std::filesystem::path& run);
/// Of what a rank writes.
std::string checkpoint_file_name(comm::Rank rank);

/// "f32", "f64", "i64". A tensor of another type is a mistake of ours, and `tensor` names it.
const char* saved_type_name(at::ScalarType type, const std::string& tensor);
/// Throws base::Error for an unknown name.
at::ScalarType saved_type(const std::string& name);

/// Size and CRC-32C of a file, as the manifest says them.
nlohmann::json checksum_entry(const std::filesystem::path& file);
/// Of the manifest's content, which doesn't hold the checksum itself yet; keys are in alphabetical order.
std::uint32_t manifest_checksum(const nlohmann::json& manifest);

/// For what a manifest lacks, or holds as another type.
base::Error unlike_a_manifest(const std::filesystem::path& checkpoint, const std::exception& why);
/// Parsed, once its own checksum is right. Throws base::Error naming the file.
nlohmann::json read_manifest(const std::filesystem::path& checkpoint);
/// And once sizes and checksums of all files that it names are.
nlohmann::json verified_manifest(const std::filesystem::path& checkpoint);
/// Whether verified_manifest succeeds; if not, a warning says why.
bool is_whole_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace lockstep::trainer
