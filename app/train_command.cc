#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/commands.h"
#include "base/error.h"
#include "base/exit_code.h"
#include "base/log.h"
#include "comm/job_communicators.h"
#include "comm/job_watch.h"
#include "comm/wire_communicator.h"
#include "trainer/checkpoint.h"
#include "trainer/chosen_communication.h"
#include "trainer/recipe.h"
#include "trainer/run_agreement.h"
#include "trainer/trainer.h"

namespace lockstep::app {
namespace {

namespace fs = std::filesystem;
using base::str;

struct TrainArguments {
    fs::path recipe;
    std::vector<std::string> settings;
    fs::path out;
    std::string resume;
    std::uint64_t profiled_steps = 0;
};

trainer::RunStart find_start(const TrainArguments& arguments) {
    const fs::path run = arguments.out.empty() ? fs::path("runs") / arguments.recipe.stem() : arguments.out;
    if (arguments.resume.empty()) {
        return {.directory = run};
    }
    if (arguments.resume == "auto") {
        return {.directory = run, .checkpoint = trainer::newest_checkpoint(run), .may_start_over = true};
    }
    if (!arguments.out.empty() && arguments.out != arguments.resume) {
        throw base::UsageError(str("--resume ", arguments.resume, " continues in that directory; leave --out away"));
    }
    if (!fs::is_directory(arguments.resume)) {
        throw base::Error(str("--resume ", arguments.resume, ": there is no such directory"));
    }
    const auto checkpoint = trainer::newest_checkpoint(arguments.resume);
    if (!checkpoint) {
        throw base::Error(str(arguments.resume, ": no whole checkpoint to resume from; --resume auto starts over"));
    }
    return {.directory = arguments.resume, .checkpoint = checkpoint};
}

/// Collective. Rank 0 alone looks, since a file system may show the ranks different moments of an earlier job.
trainer::RunStart agree_on_start(const TrainArguments& arguments, comm::Communicator& control) {
    const bool is_first = comm::index_of(control.rank()) == 0;
    trainer::RunStart start = is_first ? find_start(arguments) : trainer::RunStart{};
    const auto from_first = [&](const std::string& text) {
        return control.all_gather_texts(is_first ? text : "", "where the run starts").front();
    };
    start.directory = from_first(start.directory.string());
    const std::string checkpoint = from_first(start.checkpoint.value_or(fs::path()).string());
    start.checkpoint = checkpoint.empty() ? std::nullopt : std::optional<fs::path>(checkpoint);
    start.profiled_steps = std::stoull(from_first(std::to_string(arguments.profiled_steps)));
    return start;
}

int train(const TrainArguments& arguments, comm::JobWatch& watch) {
    std::vector<trainer::Override> overrides;
    for (const auto& setting : arguments.settings) {
        overrides.push_back(trainer::parse_override(setting));
    }
    const trainer::Recipe recipe = trainer::load_recipe(arguments.recipe, overrides);
    // Over a communicator that no setting changes.
    trainer::require_same_recipe(*comm::JobCommunicators({.topology = "flat"}).make("recipe"), recipe);
    const comm::JobCommunicators job(trainer::job_shape(recipe), watch.log());
    const auto control = job.make("control");
    const trainer::RunStart start = agree_on_start(arguments, *control);
    const auto [recipe_in_use, explanation] = trainer::choose_communication(recipe, job, start.checkpoint);
    const comm::JobCommunicators job_in_use(trainer::job_shape(recipe_in_use), watch.log());
    const comm::DataType wire = comm::wire_type_of(recipe.communication.wire);
    const auto gradients = job_in_use.make("gradients", {.beside_compute = true, .wire = wire});
    const auto batch_norm = job_in_use.make("batch norm");
    std::unique_ptr<comm::Communicator> parameters, shards, replicas;
    const bool shards_by_node = recipe.optimizer.zero_scope == "node" && job.topology().nodes() > 1;
    if (shards_by_node) {
        shards = job_in_use.make_inside_node("optimizer.zero_scope, shards", {.beside_compute = true});
        replicas =
            job_in_use.make_across_nodes("optimizer.zero_scope, replicas", {.beside_compute = true, .wire = wire});
    }
    if (trainer::gathers_parameters(recipe)) {
        parameters = shards_by_node ? job_in_use.make_inside_node("parameters", {.beside_compute = true})
                                    : job_in_use.make("parameters", {.beside_compute = true});
    }
    const auto node_memory = job.memory_of_node("decoded images");
    if (comm::index_of(control->rank()) == 0) {
        base::log_info(str("ranks talk over: ", job_in_use.describe()));
        if (!explanation.empty()) {
            base::log_info(str("chosen: ", explanation));
        }
        if (wire != comm::DataType::f32 && !job.uses_mpi()) {
            base::log_warning(str("communication.wire = \"", recipe.communication.wire,
                                  "\" changes nothing: these ranks share memory, where gradients stay FP32"));
        }
    }
    trainer::Trainer trainer(
        recipe_in_use, start,
        {*gradients, *batch_norm, *control, parameters.get(), shards.get(), replicas.get(), node_memory.get()},
        job.machines());
    watch.keep_in(start.directory);
    // In here, so that an exception ends the job before the trainer is taken apart beside ranks that go on.
    return watch.run([&] {
        if (trainer.run() == trainer::Outcome::stopped_at_checkpoint) {
            if (comm::index_of(control->rank()) == 0) {
                base::log_warning(
                    str("stopped at a checkpoint as asked; continue with --resume ", start.directory.string()));
            }
            return base::exit_code::run_again;
        }
        return base::exit_code::success;
    });
}

}  // namespace

void add_train_command(CLI::App& app, int& exit_code) {
    auto arguments = std::make_shared<TrainArguments>();
    CLI::App* command = app.add_subcommand("train", "Train a recipe, on as many ranks as mpirun or srun starts");
    command->add_option("recipe", arguments->recipe, "TOML file; docs/recipe.md lists the keys")->required();
    command->add_option("--set", arguments->settings, "key=value, over what the recipe says; may be given again")
        ->take_all()
        ->allow_extra_args(false);
    command->add_option("--out", arguments->out, "the run's directory (default: runs/NAME-OF-THE-RECIPE)");
    command->add_option("--resume", arguments->resume,
                        "a run to continue, or auto: continue --out if it has a checkpoint, else start (over)");
    command
        ->add_option("--profile", arguments->profiled_steps,
                     "draw so many steps (3 if no number follows), after 5 that warm up, into trace.json of the run's "
                     "directory, for Perfetto or chrome://tracing")
        ->expected(0, 1)
        ->default_val(0)
        ->default_str("3")
        ->check(CLI::Range(1, 1000));
    command->footer(
        "Example:\n  mpirun -np 2 lockstep train recipes/trees.toml --set seed=1 --out runs/trees-1\n"
        "Exit codes: 0 finished, 75 stopped at a checkpoint (run again with --resume), 2 wrong call or recipe, 1 "
        "failed.");
    command->callback([arguments, &exit_code] {
        exit_code = comm::run_ranks([&](comm::JobWatch& watch) { return train(*arguments, watch); });
    });
}

}  // namespace lockstep::app
