#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/recipe_for_data.h"
#include "base/error.h"
#include "base/resources.h"
#include "base/text.h"
#include "bench/loader_bench.h"
#include "sharding/dataset_format.h"
#include "trainer/batch_tensors.h"
#include "trainer/loader_options.h"
#include "trainer/tasks.h"

namespace lockstep::app {
namespace {

namespace fs = std::filesystem;
using base::str;
using bench::LoaderPart;
using sharding::DecodeMode;
using sharding::Encoding;
using sharding::ReadPath;

struct LoaderArguments {
    fs::path dataset;
    fs::path recipe;
    std::vector<std::string> settings;
    unsigned threads = 0;
    std::vector<std::string> parts, decodes, encodings, reads, states;
    bool all_threads_only = false;
    double seconds = 0.5;
    unsigned rounds = 3;
    fs::path scratch;
    bool json = false;
};

nlohmann::ordered_json json_of(const bench::LoaderMeasurement& measured, const std::string& explanation) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const bench::LoaderRow& row : measured.rows) {
        rows.push_back({{"what", bench::name_of(row.part)},
                        {"decode", bench::name_of(row.decode)},
                        {"encoding", sharding::format::encoding_name(row.encoding)},
                        {"read", bench::name_of(row.read)},
                        {"threads", row.threads},
                        {"state", row.is_cold ? "cold" : "warm"},
                        {"without", row.without},
                        {"images", row.images},
                        {"samples_per_image", row.samples_per_image},
                        {"images_per_second", row.images_per_second},
                        {"least", row.least},
                        {"most", row.most},
                        {"pss_mib", static_cast<double>(row.pss_bytes) / (1 << 20)}});
    }
    return {{"rows", rows},
            {"samples", measured.samples},
            {"encoding", sharding::format::encoding_name(measured.encoding)},
            {"scratch_samples", measured.scratch_samples},
            {"could_be_cold", measured.could_be_cold},
            {"could_be_warm", measured.could_be_warm},
            {"explanation", explanation}};
}

std::string table_of(const std::vector<bench::LoaderRow>& rows) {
    std::string text =
        "what      decode  encoding  read  threads  from          images/s       least        most   PSS MiB\n";
    for (const bench::LoaderRow& row : rows) {
        std::array<char, 256> line;
        const int length = std::snprintf(
            line.data(), line.size(), "%-9s %-7s %-9s %-5s %7u  %-8s %13.1f %11.1f %11.1f %9.1f%s%s\n",
            std::string(bench::name_of(row.part)).c_str(), std::string(bench::name_of(row.decode)).c_str(),
            sharding::format::encoding_name(row.encoding).c_str(), std::string(bench::name_of(row.read)).c_str(),
            row.threads, row.is_cold ? "storage" : "memory", row.images_per_second, row.least, row.most,
            static_cast<double>(row.pss_bytes) / (1 << 20), row.without.empty() ? "" : "   without ",
            row.without.c_str());
        text.append(line.data(), static_cast<std::size_t>(length));
    }
    return text;
}

template <typename T>
std::vector<T> named(const std::vector<std::string>& names, std::initializer_list<std::pair<const char*, T>> known,
                     std::string_view option) {
    std::vector<T> values;
    for (const std::string& name : names) {
        std::vector<std::string> choices;
        bool is_known = false;
        for (const auto& [text, value] : known) {
            choices.emplace_back(text);
            if (name == text) {
                values.push_back(value);
                is_known = true;
            }
        }
        if (!is_known) {
            throw base::UsageError(str(option, " \"", name, "\": there are ", base::join(choices, ", ")));
        }
    }
    return values;
}

void bench_loader(const LoaderArguments& arguments) {
    const sharding::Task task = sharding::Dataset::open(arguments.dataset, ReadPath::hdf5).task();
    const trainer::Recipe recipe = recipe_for_data(arguments.recipe, arguments.settings, arguments.dataset, task);
    if (recipe.scaling.rule != "fixed") {
        throw base::UsageError(
            base::str("bench loader measures images of one fixed size, and the recipe has scaling.rule = \"",
                      recipe.scaling.rule, "\"; give a recipe without [scaling]"));
    }
    const unsigned cores = base::usable_cores();
    bench::LoaderPlan plan;
    plan.dataset = arguments.dataset;
    plan.options = trainer::loader_options(recipe, cores);
    plan.options.threads = arguments.threads > 0 ? arguments.threads : plan.options.threads;
    plan.options.accumulate = 1;
    plan.read = trainer::read_path_of(recipe);
    plan.parts = named<LoaderPart>(arguments.parts,
                                   {{"decode", LoaderPart::decode},
                                    {"augment", LoaderPart::augment},
                                    {"assemble", LoaderPart::assemble},
                                    {"copy", LoaderPart::copy},
                                    {"all", LoaderPart::all}},
                                   "--what");
    plan.decodes =
        named<DecodeMode>(arguments.decodes, {{"full", DecodeMode::full}, {"scaled", DecodeMode::scaled}}, "--decode");
    plan.encodings =
        named<Encoding>(arguments.encodings, {{"encoded", Encoding::encoded}, {"raw", Encoding::raw}}, "--encoding");
    plan.reads = named<ReadPath>(arguments.reads, {{"mmap", ReadPath::mmap}, {"hdf5", ReadPath::hdf5}}, "--read");
    plan.cold = named<bool>(arguments.states, {{"cold", true}, {"warm", false}}, "--state");
    if (arguments.all_threads_only) {
        plan.threads = {plan.options.threads};
    }
    plan.seconds = arguments.seconds;
    plan.rounds = arguments.rounds;
    if (!arguments.scratch.empty()) {
        plan.scratch = arguments.scratch;
    }
    at::set_num_threads(1);  // threads that spin between batches would take cores from the loader's
    const at::ScalarType type = trainer::weight_type(recipe);
    plan.copy = [type](const sharding::MicroBatch& micro) { trainer::image_tensor(micro, type); };

    const bench::LoaderMeasurement measured = bench::bench_loader(plan);
    const std::string explanation = bench::explain(plan, measured, cores);
    if (arguments.json) {
        std::cout << json_of(measured, explanation).dump(1) << '\n';
        return;
    }
    std::cout << arguments.dataset.string() << ": " << measured.samples << " images, "
              << sharding::format::encoding_name(measured.encoding) << "; image_size " << plan.options.image_size
              << ", batches of " << plan.options.effective_batch << ", " << cores << " cores\n"
              << table_of(measured.rows);
    if (measured.scratch_samples > 0) {
        std::cout << "The other encoding, and assemble, were measured on a copy of " << measured.scratch_samples
                  << " images in " << plan.scratch.string() << ".\n";
    }
    if (!measured.could_be_cold) {
        std::cout
            << "Rows from storage are missing: the kernel didn't let go of the files (mincore), so those rows say "
               "memory. They lie in memory (tmpfs), or another process maps them.\n";
    }
    if (!measured.could_be_warm) {
        std::cout << "Rows from memory may have read from storage: the data set is larger than half of the memory "
                     "that is free.\n";
    }
    std::cout << '\n' << explanation;
}

}  // namespace

void add_bench_loader_command(CLI::App& bench) {
    const auto arguments = std::make_shared<LoaderArguments>();
    CLI::App* command = bench.add_subcommand("loader", "Say what limits the loading of a data set, and what to change");
    command->add_option("DATASET", arguments->dataset, "The data set")->required();
    command->add_option("--recipe", arguments->recipe, "image size, batch, augmentation and data.* from this recipe");
    command->add_option("--set", arguments->settings, "key=value, as in train; also without a recipe");
    command->add_option("--threads", arguments->threads,
                        "the most loader threads to try: 1, 2, 4, ... and this many; 0: as the recipe says");
    command->add_flag("--only-all-threads", arguments->all_threads_only, "none but --threads");
    command->add_option("--what", arguments->parts, "only these: decode,augment,assemble,copy,all")->delimiter(',');
    command->add_option("--decode", arguments->decodes, "only: full,scaled")->delimiter(',');
    command->add_option("--encoding", arguments->encodings, "only: encoded,raw")->delimiter(',');
    command->add_option("--read", arguments->reads, "only: mmap,hdf5")->delimiter(',');
    command->add_option("--state", arguments->states, "only: cold,warm")->delimiter(',');
    command->add_option("--seconds", arguments->seconds, "of timing for each row")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    command->add_option("--rounds", arguments->rounds, "in which the rows take turns; a row is their median")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    command->add_option("--scratch", arguments->scratch,
                        "Where up to 256 MiB of the samples are written in the other encoding, and removed again; the "
                        "system's temporary folder otherwise");
    command->add_flag("--json", arguments->json, "one object with rows");
    command->footer(
        "From storage means: synced, dropped from memory, and proved gone by mincore. Otherwise the row says memory.\n"
        "Example: lockstep bench loader data/train --recipe recipes/trees.toml --threads 4");
    command->callback([arguments] { bench_loader(*arguments); });
}

}  // namespace lockstep::app
