#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include "app/commands.h"
#include "app/recipe_for_data.h"
#include "base/file.h"
#include "base/resources.h"
#include "base/text.h"
#include "sharding/augmented_sheet.h"
#include "sharding/dataset.h"
#include "sharding/inspect.h"
#include "trainer/loader_options.h"

namespace lockstep::app {

void add_inspect_command(CLI::App& app) {
    struct Arguments {
        std::filesystem::path directory;
        bool json = false;
        std::filesystem::path sheet;
        bool augmented = false;
        std::filesystem::path recipe;
        std::vector<std::string> settings;
    };
    const auto arguments = std::make_shared<Arguments>();
    CLI::App* command = app.add_subcommand("inspect", "Say what is in a data set");
    command->add_option("DIR", arguments->directory, "The data set")->required();
    command->add_flag("--json", arguments->json, "As one JSON object");
    command->add_option("--sheet", arguments->sheet, "Also draw some of its images with their boxes into this PNG");
    command->add_flag("--augmented", arguments->augmented, "The sheet's images as a training sees them")
        ->needs("--sheet");
    command->add_option("--recipe", arguments->recipe, "This training; otherwise one with the default settings")
        ->needs("--augmented");
    command->add_option("--set", arguments->settings, "key=value, as in train")->needs("--augmented");
    command->footer(
        "Example:\n  lockstep inspect data/train --sheet sheet.png\n"
        "  lockstep inspect data/train --sheet seen.png --augmented --recipe recipes/trees.toml");
    command->callback([arguments] {
        const sharding::Dataset set = sharding::Dataset::open(arguments->directory);
        std::puts((arguments->json ? sharding::describe_json(set) : sharding::describe_text(set)).c_str());
        if (!arguments->sheet.empty()) {
            const std::vector<std::uint8_t> png =
                arguments->augmented
                    ? sharding::draw_augmented_sheet(
                          set, trainer::loader_options(recipe_for_data(arguments->recipe, arguments->settings,
                                                                       arguments->directory, set.task()),
                                                       base::usable_cores()))
                    : sharding::draw_sheet(set);
            base::write_whole(arguments->sheet, {reinterpret_cast<const char*>(png.data()), png.size()});
        }
    });
}

void add_verify_command(CLI::App& app) {
    const auto directory = std::make_shared<std::filesystem::path>();
    CLI::App* command = app.add_subcommand(
        "verify", "Read every byte of a data set: tables, checksums, and whether every image decodes");
    command->add_option("DIR", *directory, "The data set")->required();
    command->footer("Example:\n  lockstep verify data/train");
    command->callback([directory] {
        const std::uint64_t images = sharding::verify_directory(*directory);
        std::puts(base::str(directory->string(), ": ", images, " images verified").c_str());
    });
}

}  // namespace lockstep::app
