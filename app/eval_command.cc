#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "app/commands.h"
#include "base/error.h"
#include "base/exit_code.h"
#include "comm/job_communicators.h"
#include "comm/job_watch.h"
#include "sharding/dataset.h"
#include "trainer/predictor.h"
#include "trainer/rank_cores.h"
#include "trainer/recipe.h"
#include "trainer/task.h"
#include "trainer/weights_file.h"

namespace lockstep::app {
namespace {

namespace fs = std::filesystem;
using base::str;

struct EvalArguments {
    fs::path weights;
    fs::path data;
    std::int64_t batch = 8;
    bool json = false;
};

int evaluate(const EvalArguments& arguments, const comm::JobWatch& watch) {
    const comm::JobCommunicators job({}, watch.log());
    const auto communicator = job.make("evaluation");
    const auto data = sharding::Dataset::open(arguments.data);
    const auto weights = trainer::weights_of(arguments.weights);
    const auto facts = trainer::read_network_facts(weights);
    if (facts.classes != data.classes()) {
        throw base::Error(str(arguments.data.string(), " has the classes [", base::join(data.classes(), ", "),
                              "], the weights know [", base::join(facts.classes, ", "), "]"));
    }
    trainer::Recipe recipe;
    recipe.model = facts.model;
    recipe.image_size = facts.image_size;
    recipe.small_images = facts.small_images;
    const auto task = trainer::make_task(recipe, data);
    trainer::load_whole_network(task->network(), weights, facts.model);
    const unsigned cores = trainer::use_cores_of_rank(*communicator, job.machines());
    const auto result = task->evaluate(data,
                                       {.image_size = static_cast<std::uint32_t>(facts.image_size),
                                        .scaling = facts.scaling,
                                        .batch = static_cast<std::uint64_t>(arguments.batch),
                                        .threads = cores},
                                       *communicator);
    if (comm::index_of(communicator->rank()) == 0) {
        if (arguments.json) {
            std::printf(
                "%s\n",
                nlohmann::json{{"metrics", result.metrics}, {"images", data.size()}, {"seconds", result.seconds}}
                    .dump(1)
                    .c_str());
        } else {
            std::fputs(result.table.c_str(), stdout);
        }
    }
    return base::exit_code::success;
}

}  // namespace

void add_eval_command(CLI::App& app) {
    auto arguments = std::make_shared<EvalArguments>();
    CLI::App* command =
        app.add_subcommand("eval", "Score a run's weights on a data set, on as many ranks as mpirun starts");
    command->add_option("weights", arguments->weights, "a run's directory, or a safetensors file")->required();
    command->add_option("--data", arguments->data, "a data set made by lockstep import")->required();
    command->add_option("--batch", arguments->batch, "images at a time")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    command->add_flag("--json", arguments->json, "results as JSON");
    command->footer("Example:\n  mpirun -np 2 lockstep eval runs/trees --data data/trees/validation");
    command->callback(
        [arguments] { comm::run_ranks([&](comm::JobWatch& watch) { return evaluate(*arguments, watch); }); });
}

}  // namespace lockstep::app
