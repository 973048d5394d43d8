#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "app/commands.h"
#include "base/error.h"
#include "trainer/models/model_cost.h"
#include "trainer/models/model_factory.h"
#include "trainer/models/model_state.h"
#include "trainer/models/resnet.h"
#include "trainer/models/yolov10.h"

namespace lockstep::app {
namespace {

using nlohmann::json;

struct ModelArguments {
    std::string name;
    std::int64_t size = 0;
    std::int64_t classes = 0;
    bool json = false;
};

constexpr std::int64_t detector_size = 640, classifier_size = 224, detector_classes = 80, classifier_classes = 1000;

json as_json(const trainer::LayerCost& layer) {
    return {{"name", layer.name},
            {"output_shape", layer.output_shape},
            {"parameters", layer.parameters},
            {"flops", layer.flops}};
}

void print_table(const std::string& name, const json& facts) {
    std::printf("%-36s %-20s %12s %12s\n", "layer", "output", "parameters", "MFLOPs");
    for (const char* group : {"layers", "attention"}) {
        for (const auto& layer : facts.at(group)) {
            std::printf("%-36s %-20s %12lld %12.3f\n", layer.at("name").get<std::string>().c_str(),
                        layer.at("output_shape").dump().c_str(), layer.at("parameters").get<long long>(),
                        layer.at("flops").get<double>() / 1e6);
        }
    }
    std::printf(
        "%s at %s px, %s classes: %lld parameters, %.2f GFLOPs (2 per multiply-add), attention products %.2f more\n",
        name.c_str(), facts.at("size").dump().c_str(), facts.at("classes").dump().c_str(),
        facts.at("parameters").get<long long>(), facts.at("flops").get<double>() / 1e9,
        facts.at("attention_flops").get<double>() / 1e9);
}

void show_model(const ModelArguments& arguments) {
    const bool is_detector = arguments.name.starts_with("yolo");
    const std::int64_t size = arguments.size > 0 ? arguments.size : is_detector ? detector_size : classifier_size;
    const std::int64_t classes = arguments.classes > 0 ? arguments.classes
                                 : is_detector         ? detector_classes
                                                       : classifier_classes;
    trainer::ModelCost cost;
    std::int64_t parameters = 0;
    if (is_detector) {
        const auto model = trainer::make_detector({arguments.name, classes, size}, 0);
        cost = trainer::cost_of(*model, size);
        parameters = trainer::parameter_count(*model);
    } else {
        const auto model = trainer::make_classifier({arguments.name, classes, size}, 0);
        cost = trainer::cost_of(*model, size);
        parameters = trainer::parameter_count(*model);
    }
    json facts = {{"model", arguments.name}, {"size", size},
                  {"classes", classes},      {"parameters", parameters},
                  {"flops", cost.flops()},   {"attention_flops", cost.attention_flops()},
                  {"layers", json::array()}, {"attention", json::array()}};
    for (const auto& layer : cost.layers) {
        facts["layers"].push_back(as_json(layer));
    }
    for (const auto& layer : cost.attention) {
        facts["attention"].push_back(as_json(layer));
    }
    if (arguments.json) {
        std::printf("%s\n", facts.dump(1).c_str());
    } else {
        print_table(arguments.name, facts);
    }
}

}  // namespace

void add_model_command(CLI::App& app) {
    auto arguments = std::make_shared<ModelArguments>();
    CLI::App* command = app.add_subcommand("model", "Parameters and FLOPs of a network, layer by layer, as it trains");
    command->add_option("name", arguments->name, "yolov10n, ..., resnet101")->required();
    command
        ->add_option("--size", arguments->size, "side of the input (default: 640 for detectors, 224 for classifiers)")
        ->check(CLI::PositiveNumber);
    command->add_option("--classes", arguments->classes, "default: 80 for detectors, 1000 for classifiers")
        ->check(CLI::PositiveNumber);
    command->add_flag("--json", arguments->json, "as JSON");
    command->footer("Example:\n  lockstep model yolov10n --size 640");
    command->callback([arguments] { show_model(*arguments); });
}

}  // namespace lockstep::app
