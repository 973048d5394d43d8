#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "trainer/models/model_state.h"

namespace lockstep::trainer {

/// The content of a safetensors file: 8 bytes little-endian length, a JSON header of that length, then the tensors'
/// bytes (https://huggingface.co/docs/safetensors). Types: F64, F32, F16, BF16, I64.
struct Safetensors {
    std::vector<NamedTensor> tensors;
    std::map<std::string, std::string> metadata;
};

/// Row-major whatever the tensors' layout; written whole or not at all. Throws base::Error when the disk is full.
void save_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                      const std::map<std::string, std::string>& metadata);

/// The file is untrusted: lengths, offsets, gaps, overlaps, types and shapes are checked before use. Throws base::Error
/// that names the file, the tensor and what is wrong. Tensors are in the order of their bytes, on the CPU, and own
/// their memory.
Safetensors load_safetensors(const std::filesystem::path& path);

/// What load_weights did with each name.
struct LoadReport {
    std::vector<std::string> matched;           ///< copied
    std::vector<std::string> missing;           ///< in the model, not in the file; left as they were
    std::vector<std::string> unexpected;        ///< in the file, not in the model
    std::vector<std::string> shape_mismatched;  ///< "NAME: file [..], model [..]"; left as they were

    bool complete() const { return missing.empty() && unexpected.empty() && shape_mismatched.empty(); }
};

/// Copies tensors by name into parameters and buffers, converting the type.
LoadReport load_weights(torch::nn::Module& model, const Safetensors& file);
LoadReport load_weights(torch::nn::Module& model, const std::filesystem::path& path);

}  // namespace lockstep::trainer
