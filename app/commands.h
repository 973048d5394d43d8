#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace lockstep::app {

/// Each adds one subcommand whose callback does the work: results to stdout, everything else to stderr,
/// base::UsageError for a wrong call, base::Error for a failure. lockstep.cc turns them into exit codes.
void add_import_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_verify_command(CLI::App& app);
/// Sets `exit_code` to 75 when the run stopped at a checkpoint on request.
void add_train_command(CLI::App& app, int& exit_code);
void add_eval_command(CLI::App& app);
void add_coco_eval_command(CLI::App& app);
void add_predict_command(CLI::App& app);
void add_export_command(CLI::App& app);
void add_model_command(CLI::App& app);
/// `command_line` is this program's own, to start ranks of it.
void add_bench_command(CLI::App& app, const std::vector<std::string>& command_line);
/// Below `bench`.
void add_bench_loader_command(CLI::App& bench);
/// run, report and compare, below `bench`.
void add_bench_run_commands(CLI::App& bench);

}  // namespace lockstep::app
