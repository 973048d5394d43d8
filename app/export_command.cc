#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "app/commands.h"
#include "base/error.h"
#include "trainer/models/safetensors.h"
#include "trainer/predictor.h"

namespace lockstep::app {
namespace {

struct ExportArguments {
    std::filesystem::path run;
    std::filesystem::path out;
    std::string format = "safetensors";
};

void export_weights(const ExportArguments& arguments) {
    const auto weights = trainer::load_safetensors(trainer::weights_of(arguments.run));
    trainer::save_safetensors(arguments.out, weights.tensors, weights.metadata);
    std::printf("%s  %zu tensors\n", arguments.out.c_str(), weights.tensors.size());
}

}  // namespace

void add_export_command(CLI::App& app) {
    auto arguments = std::make_shared<ExportArguments>();
    CLI::App* command =
        app.add_subcommand("export", "Write a run's weights for other programs, under the public names");
    command->add_option("run", arguments->run, "a run's directory")->required();
    command->add_option("--format", arguments->format, "safetensors")
        ->check(CLI::IsMember({"safetensors"}))
        ->capture_default_str();
    command->add_option("--out", arguments->out, "the file to write")->required();
    command->footer("Example:\n  lockstep export runs/trees --format safetensors --out trees.safetensors");
    command->callback([arguments] { export_weights(*arguments); });
}

}  // namespace lockstep::app
