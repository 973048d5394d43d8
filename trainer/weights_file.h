#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "sharding/scaling.h"

namespace torch::nn {
class Module;
}

namespace lockstep::trainer {

/// What weights need beside them to be of use: kept in the metadata of the safetensors file.
struct NetworkFacts {
    std::string model;
    std::vector<std::string> classes;
    std::int64_t image_size = 640;
    bool small_images = false;
    sharding::ScalingOptions scaling = {};  ///< published, where images are to come in rectangles
};

/// Parameters and buffers under their public names, as FP32 (numbers of batches as int64), written whole.
void save_network(const std::filesystem::path& path, const torch::nn::Module& network, const NetworkFacts& facts);

/// All of a network's weights from a file of the same model and number of classes. Throws base::Error naming the first
/// tensor that is missing or has another shape.
void load_whole_network(torch::nn::Module& network, const std::filesystem::path& path, const std::string& model);
/// Weights to train on from: those of another number of classes too, whose layers that depend on it are left as they
/// are. Throws base::Error where anything else is missing or has another shape. Says in the log what was taken.
void load_initial_network(torch::nn::Module& network, const std::filesystem::path& path, const std::string& model);

/// Throws base::Error where the file's metadata doesn't say what it is.
NetworkFacts read_network_facts(const std::filesystem::path& path);

}  // namespace lockstep::trainer
