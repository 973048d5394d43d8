#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <exception>
#include <string>
#include <vector>

#include "app/commands.h"
#include "base/error.h"
#include "base/exit_code.h"
#include "base/log.h"
#include "base/text.h"

namespace {

namespace base = lockstep::base;
namespace exit_code = base::exit_code;

/// CLI11 says of an unknown command only that one is required.
void require_known_command(const CLI::App& app, const std::string& word) {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands({})) {
        names.push_back(command->get_name());
    }
    if (word.starts_with('-') || std::ranges::find(names, word) != names.end()) {
        return;
    }
    const std::string near = base::nearest_word(word, names);
    throw base::UsageError(
        base::str("lockstep ", word, ": no such command; ",
                  near.empty() ? "there are " + base::join(names, ", ") : "did you mean " + near + "?"));
}

int run(int argc, char** argv) {
    CLI::App app{"Lockstep trains vision models on any number of MPI ranks.", "lockstep"};
    app.require_subcommand(1);
    app.set_version_flag("--version", LOCKSTEP_VERSION);
    int code = exit_code::success;
    lockstep::app::add_import_command(app);
    lockstep::app::add_inspect_command(app);
    lockstep::app::add_verify_command(app);
    lockstep::app::add_train_command(app, code);
    lockstep::app::add_eval_command(app);
    lockstep::app::add_coco_eval_command(app);
    lockstep::app::add_predict_command(app);
    lockstep::app::add_export_command(app);
    lockstep::app::add_model_command(app);
    lockstep::app::add_bench_command(app, {argv, argv + argc});
    if (argc > 1) {
        require_known_command(app, argv[1]);
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? exit_code::success : exit_code::usage;
    }
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    // A file-size limit is then a failed write with a message, instead of the end of the process.
    std::signal(SIGXFSZ, SIG_IGN);
    try {
        return run(argc, argv);
    } catch (const base::UsageError& error) {
        base::log_error(error.what());
        return exit_code::usage;
    } catch (const std::exception& error) {
        base::log_error(error.what());
        return exit_code::failure;
    }
}
