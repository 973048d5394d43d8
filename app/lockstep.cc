#include <CLI/CLI.hpp>
#include <csignal>
#include <exception>

#include "app/commands.h"
#include "base/error.h"
#include "base/exit_code.h"
#include "base/log.h"

namespace {

namespace exit_code = lockstep::base::exit_code;

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
    } catch (const lockstep::base::UsageError& error) {
        lockstep::base::log_error(error.what());
        return exit_code::usage;
    } catch (const std::exception& error) {
        lockstep::base::log_error(error.what());
        return exit_code::failure;
    }
}
