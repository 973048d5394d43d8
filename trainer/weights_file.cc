#include "trainer/weights_file.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/error.h"
#include "base/log.h"
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
    std::map<std::string, std::string> metadata{{"model", facts.model},
                                                {"classes", json(facts.classes).dump()},
                                                {"image_size", base::str(facts.image_size)},
                                                {"small_images", facts.small_images ? "true" : "false"}};
    if (facts.scaling.rule == sharding::ScalingRule::published) {
        metadata["scaling"] = json{{"rule", "published"},
                                   {"short_side", facts.scaling.short_side},
                                   {"long_side", facts.scaling.long_side},
                                   {"multiple", facts.scaling.multiple}}
                                  .dump();
    }
    save_safetensors(path, tensors, metadata);
}

namespace {

void require_none(const std::vector<std::string>& tensors, const char* fault, const std::filesystem::path& path,
                  const std::string& model) {
    if (!tensors.empty()) {
        throw base::Error(base::str(path.string(), ": not the weights of ", model, ": ", tensors.size(), " tensors ",
                                    fault, ", the first is ", tensors.front()));
    }
}

/// Some exporters leave it away, and nothing that Lockstep computes reads it.
bool is_dispensable(const std::string& name) {
    return name.ends_with("num_batches_tracked");
}

/// The class branches of a detector and the last layer of a classifier.
bool depends_on_classes(const std::string& name) {
    return (name.starts_with("model.23.") && name.find("cv3.") != std::string::npos) || name.starts_with("fc.");
}

}  // namespace

void load_whole_network(torch::nn::Module& network, const std::filesystem::path& path, const std::string& model) {
    LoadReport report = load_weights(network, path);
    std::erase_if(report.missing, is_dispensable);
    require_none(report.missing, "missing", path, model);
    require_none(report.shape_mismatched, "of another shape", path, model);
}

void load_initial_network(torch::nn::Module& network, const std::filesystem::path& path, const std::string& model) {
    LoadReport report = load_weights(network, path);
    const std::size_t of_classes = std::erase_if(report.shape_mismatched, depends_on_classes);
    std::erase_if(report.missing, is_dispensable);
    require_none(report.missing, "missing", path, model);
    require_none(report.shape_mismatched, "of another shape", path, model);
    base::log_info(base::str("initial weights from ", path.string(), ": ", report.matched.size(), " tensors taken, ",
                             of_classes, " are for another number of classes and start from the seed, ",
                             report.unexpected.size(), " unknown"));
}

namespace {

/// The file may be anyone's.
std::uint32_t side_of(const json& scaling, const char* name) {
    constexpr std::int64_t greatest_side = 1 << 14;
    const auto side = scaling.at(name).get<std::int64_t>();
    if (side < 32 || side % 32 != 0 || side > greatest_side) {
        throw std::runtime_error(base::str("scaling ", name, " = ", side));
    }
    return static_cast<std::uint32_t>(side);
}

}  // namespace

NetworkFacts read_network_facts(const std::filesystem::path& path) {
    const auto metadata = load_safetensors(path).metadata;
    try {
        NetworkFacts facts{metadata.at("model"), json::parse(metadata.at("classes")).get<std::vector<std::string>>(),
                           std::stoll(metadata.at("image_size")), metadata.at("small_images") == "true"};
        if (const auto given = metadata.find("scaling"); given != metadata.end()) {
            const json scaling = json::parse(given->second);
            facts.scaling = {.rule = sharding::ScalingRule::published,
                             .short_side = side_of(scaling, "short_side"),
                             .long_side = side_of(scaling, "long_side"),
                             .multiple = side_of(scaling, "multiple")};
        }
        return facts;
    } catch (const std::exception& error) {
        throw base::Error(base::str(path.string(), ": the metadata doesn't say which model these weights belong to (",
                                    error.what(), "); predict takes --model, --classes and --size for such a file"));
    }
}

}  // namespace lockstep::trainer
