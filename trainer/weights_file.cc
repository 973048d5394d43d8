#include "trainer/weights_file.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "trainer/models/safetensors.h"

namespace lockstep::trainer {

using nlohmann::json;

void save_network(const std::filesystem::path& path, const torch::nn::Module& network, const NetworkFacts& facts) {
    std::vector<NamedTensor> tensors = state_of(network);
    for (auto& item : tensors) {
        if (item.tensor.is_floating_point()) {
            item.tensor = item.tensor.detach().to(at::kFloat);
        }
    }
    save_safetensors(path, tensors,
                     {{"model", facts.model},
                      {"classes", json(facts.classes).dump()},
                      {"image_size", base::str(facts.image_size)},
                      {"small_images", facts.small_images ? "true" : "false"}});
}

NetworkFacts read_network_facts(const std::filesystem::path& path) {
    const auto metadata = load_safetensors(path).metadata;
    try {
        return {metadata.at("model"), json::parse(metadata.at("classes")).get<std::vector<std::string>>(),
                std::stoll(metadata.at("image_size")), metadata.at("small_images") == "true"};
    } catch (const std::exception& error) {
        throw base::Error(base::str(path.string(), ": the metadata doesn't say which model these weights belong to (",
                                    error.what(), "); give --model, --classes and --size"));
    }
}

}  // namespace lockstep::trainer
