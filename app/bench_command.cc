#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/commands.h"
#include "base/error.h"
#include "base/resources.h"
#include "base/text.h"
#include "bench/collective_bench.h"
#include "comm/job_communicators.h"
#include "comm/job_watch.h"
#include "comm/mpi.h"
#include "comm/wire_communicator.h"

namespace lockstep::app {

using base::str;

namespace {

struct CollectivesArguments {
    std::int32_t ranks = 2;
    std::string topology = "auto";
    std::vector<std::string> sizes = {"4B", "4KiB", "256KiB", "1MiB", "25MiB", "100MiB"};
    std::vector<std::string> types = {"f32"};
    std::vector<std::string> operations = {"all_reduce"};
    std::vector<std::string> algorithms;
    std::vector<std::string> wires;
    double seconds = 0.5;
    bool peers = false;
    bool json = false;
};

template <typename T>
T named(const std::string& name, std::initializer_list<T> values, std::string_view what) {
    std::vector<std::string> names;
    for (const T value : values) {
        if (comm::name_of(value) == name) {
            return value;
        }
        names.emplace_back(comm::name_of(value));
    }
    throw base::UsageError(str("unknown ", what, " \"", name, "\"; there are ", base::join(names, ", ")));
}

/// Replaces this process by mpirun with as many ranks of the same command.
[[noreturn]] void start_ranks(std::int32_t ranks, const std::vector<std::string>& command_line) {
    if (geteuid() == 0) {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    }
    if (static_cast<unsigned>(ranks) > base::usable_cores()) {
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    }
    std::vector<std::string> words = {"mpirun", "--oversubscribe", "--bind-to", "none", "-np", std::to_string(ranks)};
    words.insert(words.end(), command_line.begin(), command_line.end());
    std::vector<char*> arguments;
    for (std::string& word : words) {
        arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    std::cout.flush();
    execvp(arguments[0], arguments.data());
    throw base::Error(str("mpirun can't be started: ", std::strerror(errno), ". Install openmpi-bin"));
}

std::string table_of(const std::vector<bench::CollectiveRow>& rows, std::int32_t ranks) {
    std::string text =
        "operation       algorithm            type       bytes      min ms   median ms      p99 ms   algbw GB/s   "
        "busbw GB/s  wrong   left a machine\n";
    for (const bench::CollectiveRow& row : rows) {
        std::array<char, 256> line;
        const int length = std::snprintf(
            line.data(), line.size(), "%-15s %-20s %-4s %11zu %11.4f %11.4f %11.4f %12.3f %12.3f %6s %16s\n",
            std::string(comm::name_of(row.operation)).c_str(), row.algorithm.c_str(),
            std::string(comm::name_of(row.type)).c_str(), row.bytes, row.least * 1e3, row.median * 1e3, row.p99 * 1e3,
            row.algorithm_bandwidth() / 1e9, row.bus_bandwidth(ranks) / 1e9,
            row.wrong ? std::to_string(*row.wrong).c_str() : "-",
            row.network_bytes ? base::human_bytes(*row.network_bytes).c_str() : "-");
        text.append(line.data(), static_cast<std::size_t>(length));
    }
    return text;
}

nlohmann::ordered_json json_of(const std::vector<bench::CollectiveRow>& rows, const comm::JobCommunicators& job) {
    const std::int32_t ranks = job.topology().ranks();
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const bench::CollectiveRow& row : rows) {
        list.push_back({{"op", comm::name_of(row.operation)},
                        {"algorithm", row.algorithm},
                        {"dtype", comm::name_of(row.type)},
                        {"bytes", row.bytes},
                        {"ranks", ranks},
                        {"nodes", job.topology().nodes()},
                        {"repetitions", row.repetitions},
                        {"min_ms", row.least * 1e3},
                        {"median_ms", row.median * 1e3},
                        {"p99_ms", row.p99 * 1e3},
                        {"max_ms", row.most * 1e3},
                        {"algbw_gbs", row.algorithm_bandwidth() / 1e9},
                        {"busbw_gbs", row.bus_bandwidth(ranks) / 1e9},
                        {"batch", row.batch},
                        {"wrong", row.wrong ? nlohmann::ordered_json(*row.wrong) : nlohmann::ordered_json()},
                        {"network_bytes",
                         row.network_bytes ? nlohmann::ordered_json(*row.network_bytes) : nlohmann::ordered_json()}});
    }
    return {{"communicator", job.describe()}, {"rows", list}};
}

int bench_collectives(const CollectivesArguments& arguments) {
    using enum comm::OperationKind;
    bench::CollectivePlan plan;
    plan.types.clear();
    plan.operations.clear();
    for (const std::string& size : arguments.sizes) {
        plan.bytes.push_back(base::parse_bytes(size));
        if (plan.bytes.back() == 0) {
            throw base::UsageError("--sizes takes sizes above 0, not " + size);
        }
    }
    for (const std::string& type : arguments.types) {
        using enum comm::DataType;
        plan.types.push_back(named(type, {f32, f64, f16, bf16, i32, i64, u8}, "type"));
    }
    for (const std::string& operation : arguments.operations) {
        plan.operations.push_back(named(operation, {all_reduce, reduce_scatter, all_gather, broadcast}, "operation"));
    }
    for (const std::string& algorithm : arguments.algorithms) {
        plan.algorithms.push_back(comm::mpi_all_reduce_of(algorithm));
    }
    for (const std::string& wire : arguments.wires) {
        plan.wires.push_back(comm::wire_type_of(wire));
        if (plan.wires.back() == comm::DataType::f32) {
            throw base::UsageError("--wires takes bf16 and fp16; fp32 is timed anyway");
        }
    }
    plan.seconds_per_size = arguments.seconds;
    plan.with_mpi = arguments.peers;
    const comm::JobCommunicators job({.topology = arguments.topology});
    const std::vector<bench::CollectiveRow> rows = bench::bench_collectives(plan, job);
    const auto control = job.make("control");
    if (index_of(control->rank()) == 0) {
        if (arguments.json) {
            std::cout << json_of(rows, job).dump(1) << '\n';
        } else {
            std::cout << job.topology().ranks() << " ranks, " << job.topology().nodes() << " node(s), "
                      << job.describe() << '\n'
                      << table_of(rows, job.topology().ranks());
        }
    }
    for (const bench::CollectiveRow& row : rows) {
        if (row.wrong.value_or(0) > 0) {
            throw base::Error(str(row.algorithm, ": ", *row.wrong, " wrong elements of ", row.bytes, " bytes"));
        }
    }
    return 0;
}

}  // namespace

void add_bench_command(CLI::App& app, const std::vector<std::string>& command_line) {
    CLI::App* bench = app.add_subcommand("bench", "Measure what a part of Lockstep, or a trick, is worth here");
    bench->require_subcommand(1);
    add_bench_run_commands(*bench);
    auto arguments = std::make_shared<CollectivesArguments>();
    CLI::App* command = bench->add_subcommand("collectives", "Time all-reduce and its kin beside a plain copy");
    command->add_option("--ranks", arguments->ranks, "ranks to start; under mpirun there are as many as it started")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    command
        ->add_option("--nodes,--topology", arguments->topology,
                     "auto, flat, or NODESxRANKS such as 2x4 to model another shape")
        ->capture_default_str();
    command->add_option("--sizes", arguments->sizes, "bytes: 4B,1MiB,25MB")->delimiter(',')->capture_default_str();
    command->add_option("--types", arguments->types, "f32,bf16,...")->delimiter(',')->capture_default_str();
    command->add_option("--ops", arguments->operations, "all_reduce,reduce_scatter,all_gather,broadcast")
        ->delimiter(',')
        ->capture_default_str();
    command
        ->add_option("--algorithms", arguments->algorithms,
                     "also these all-reduces over MPI: ring,halving_doubling,central")
        ->delimiter(',');
    command->add_option("--wires", arguments->wires, "also FP32 that travels over MPI as bf16,fp16")->delimiter(',');
    command->add_option("--seconds", arguments->seconds, "of timing for each algorithm and size")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    command->add_flag("--peers", arguments->peers, "also MPI_Allreduce, as peer:mpi");
    command->add_flag("--json", arguments->json, "one object with rows");
    command->footer(
        "Results are verified before they are timed; algorithms take turns, repetition by repetition. Up to 64 KiB a\n"
        "time is the mean of 50 operations back to back.\n"
        "Example: lockstep bench collectives --ranks 2 --sizes 4B,25MiB --peers");
    command->callback([arguments, command_line] {
        if (!comm::is_launched_by_mpi() && arguments->ranks > 1) {
            start_ranks(arguments->ranks, command_line);
        }
        comm::run_ranks([&] { return bench_collectives(*arguments); });
    });
    add_bench_loader_command(*bench);
}

}  // namespace lockstep::app
