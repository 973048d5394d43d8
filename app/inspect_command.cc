#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include "app/commands.h"
#include "base/file.h"
#include "base/text.h"
#include "sharding/dataset.h"
#include "sharding/inspect.h"

namespace lockstep::app {

void add_inspect_command(CLI::App& app) {
    struct Arguments {
        std::filesystem::path directory;
        bool json = false;
        std::filesystem::path sheet;
    };
    const auto arguments = std::make_shared<Arguments>();
    CLI::App* command = app.add_subcommand("inspect", "Say what is in a data set");
    command->add_option("DIR", arguments->directory, "The data set")->required();
    command->add_flag("--json", arguments->json, "As one JSON object");
    command->add_option("--sheet", arguments->sheet, "Also draw some of its images with their boxes into this PNG");
    command->footer("Example:\n  lockstep inspect data/train --sheet sheet.png");
    command->callback([arguments] {
        const sharding::Dataset set = sharding::Dataset::open(arguments->directory);
        std::puts((arguments->json ? sharding::describe_json(set) : sharding::describe_text(set)).c_str());
        if (!arguments->sheet.empty()) {
            const std::vector<std::uint8_t> png = sharding::draw_sheet(set);
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
