#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "app/commands.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "bench/analysis.h"
#include "bench/plan.h"
#include "bench/report.h"
#include "bench/runner.h"

namespace lockstep::app {
namespace {

namespace fs = std::filesystem;
using base::str;

/// This very program, so that a sweep never measures another build's.
std::string own_program() {
    std::error_code failure;
    const fs::path path = fs::read_symlink("/proc/self/exe", failure);
    if (failure) {
        throw base::Error(str("/proc/self/exe: ", failure.message()));
    }
    return path.string();
}

struct RunArguments {
    fs::path plan, out;
    bool dry = false;
};

void run_plan(const RunArguments& arguments) {
    const std::string text = base::read_text(arguments.plan);
    const bench::Plan plan = bench::parse_plan(text, arguments.plan.string());
    const fs::path out =
        arguments.out.empty() ? fs::path("runs") / ("bench-" + arguments.plan.stem().string()) : arguments.out;
    if (arguments.dry) {
        std::cout << bench::describe_sweep(plan, bench::read_records(out));
        return;
    }
    bench::run_sweep(plan, text, {.out = out, .program = own_program()});
    bench::write_sweep_report(out);
    const bench::Answer answer = bench::answer_of(bench::analyse(out));
    std::cout << answer.headline << '\n';
    for (const std::string& note : answer.notes) {
        std::cout << note << '\n';
    }
    std::cout << "report   " << (out / "report.html").string() << '\n';
}

struct CompareArguments {
    fs::path a, b;
    bool json = false, check = false;
};

void compare(const CompareArguments& arguments) {
    const auto changes = bench::compare_sweeps(bench::analyse(arguments.a), bench::analyse(arguments.b));
    std::cout << (arguments.json ? bench::comparison_json(changes) : bench::comparison_text(changes));
    for (const bench::Change& change : changes) {
        if (arguments.check && change.is_worse) {
            throw base::Error(str(arguments.b.string(), " is worse than ", arguments.a.string(), " in ", change.metric,
                                  " of ", change.arm));
        }
    }
}

}  // namespace

void add_bench_run_commands(CLI::App& bench) {
    auto run_arguments = std::make_shared<RunArguments>();
    CLI::App* run =
        bench.add_subcommand("run", "Measure what the tricks of a plan are worth here; continues where it was stopped");
    run->add_option("plan", run_arguments->plan, "TOML file; docs/bench.md lists the keys")->required();
    run->add_option("--out", run_arguments->out, "the sweep's directory (default: runs/bench-NAME-OF-THE-PLAN)");
    run->add_flag("--dry-run", run_arguments->dry, "print the arms and the predicted time, and launch nothing");
    run->footer("Example: lockstep bench run bench/plans/single_tricks.toml --out runs/tricks");
    run->callback([run_arguments] { run_plan(*run_arguments); });

    auto directory = std::make_shared<fs::path>();
    CLI::App* report =
        bench.add_subcommand("report", "Write report.md, report.html and verdicts.json from a sweep's records");
    report->add_option("dir", *directory, "a directory of lockstep bench run")->required();
    report->footer("Example: lockstep bench report runs/tricks");
    report->callback([directory] {
        bench::write_sweep_report(*directory);
        std::cout << (*directory / "report.md").string() << '\n'
                  << (*directory / "report.html").string() << '\n'
                  << (*directory / "verdicts.json").string() << '\n';
    });

    auto compare_arguments = std::make_shared<CompareArguments>();
    CLI::App* command = bench.add_subcommand("compare", "Find what became better or worse from sweep A to sweep B");
    command->add_option("a", compare_arguments->a, "the sweep before")->required();
    command->add_option("b", compare_arguments->b, "the sweep after")->required();
    command->add_flag("--json", compare_arguments->json, "one object with rows");
    command->add_flag("--check", compare_arguments->check, "exit with 1 where something became worse");
    command->footer("Example: lockstep bench compare results/tricks runs/tricks --check");
    command->callback([compare_arguments] { compare(*compare_arguments); });
}

}  // namespace lockstep::app
