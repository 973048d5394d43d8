#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <filesystem>
#include <future>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/commands.h"
#include "base/error.h"
#include "base/log.h"
#include "base/resources.h"
#include "base/text.h"
#include "trainer/evaluation/coco_evaluation.h"
#include "trainer/evaluation/coco_json.h"

namespace lockstep::app {

namespace coco = trainer::coco;
using base::str;

namespace {

struct CocoEvalArguments {
    std::filesystem::path ground_truth;
    std::filesystem::path detections;
    std::vector<std::int32_t> max_detections = {1, 10, 100};
    bool json = false;
    bool fix_ids = false;
    coco::Options options;
};

nlohmann::ordered_json as_json(const coco::Result& result, const coco::GroundTruth& truth, std::size_t detection_count,
                               double evaluation_seconds) {
    nlohmann::ordered_json per_class = nlohmann::ordered_json::array();
    for (std::size_t k = 0; k < result.categories.size(); ++k) {
        per_class.push_back({{"id", result.categories[k]},
                             {"name", truth.category_names[k]},
                             {"AP", result.average_precision_by_category[k]}});
    }
    return {{"stats", result.stats},
            {"names", coco::stat_names},
            {"max_detections", result.max_detections},
            {"images", truth.image_ids.size()},
            {"boxes", truth.boxes.size()},
            {"detections", detection_count},
            {"evaluation_seconds", evaluation_seconds},
            {"per_class", per_class}};
}

void run(CocoEvalArguments arguments) {
    std::ranges::copy(arguments.max_detections, arguments.options.max_detections.begin());
    arguments.options.fix_zero_ids = arguments.fix_ids;
    coco::require_valid(arguments.options);
    if (std::ranges::find(arguments.max_detections, 100) == arguments.max_detections.end()) {
        base::log_warning("--max-dets without 100: as in pycocotools, the first line is for 100 and therefore -1");
    }

    auto detections_read = std::async(std::launch::async, [&] { return coco::read_detections(arguments.detections); });
    const coco::GroundTruth truth = coco::read_ground_truth(arguments.ground_truth, arguments.fix_ids);
    for (const std::string& warning : truth.warnings) {
        base::log_warning(warning);
    }
    const std::vector<coco::Detection> detections = detections_read.get();

    const double start = base::monotonic_seconds();
    const coco::EvaluationShard shard = [&] {
        try {
            return coco::match_images(truth.image_ids, truth.categories, truth.boxes, detections, arguments.options);
        } catch (const base::Error& error) {
            throw base::Error(
                str(arguments.detections.string(), " against ", arguments.ground_truth.string(), ": ", error.what()));
        }
    }();
    if (shard.detections_of_unknown_category > 0) {
        base::log_warning(
            str(arguments.detections.string(), ": ", shard.detections_of_unknown_category,
                " detections are of categories that the ground truth doesn't list; they are left out, as in "
                "pycocotools"));
    }
    const coco::Result result = coco::accumulate(shard, arguments.options.threads);
    const double seconds = base::monotonic_seconds() - start;
    if (arguments.json) {
        std::cout << as_json(result, truth, detections.size(), seconds).dump() << '\n';
    } else {
        std::cout << coco::summary_text(result);
    }
}

}  // namespace

void add_coco_eval_command(CLI::App& app) {
    CLI::App* command =
        app.add_subcommand("coco-eval", "Score detections with COCO box mAP, equal to pycocotools in every cell");
    auto arguments = std::make_shared<CocoEvalArguments>();
    command->add_option("ground_truth", arguments->ground_truth, "COCO annotations (\"instances\" JSON)")->required();
    command
        ->add_option("detections", arguments->detections,
                     "COCO results: a JSON array of image_id, category_id, bbox, score")
        ->required();
    command->add_flag("--json", arguments->json,
                      "One JSON object: {\"stats\": [12 numbers], \"per_class\": [...], ...}");
    command->add_flag("--honor-ignore", arguments->options.honor_ignore,
                      "Boxes marked \"ignore\" are neither misses nor hits (pycocotools overlooks the mark)");
    command->add_flag(
        "--fix-ids,--fix-zero-ids", arguments->fix_ids,
        "Annotations with id 0 can be matched and those with one id stay apart (pycocotools errs on both)");
    command
        ->add_option("--max-dets", arguments->max_detections,
                     "Detections per image and class that count, three rising limits")
        ->delimiter(',')
        ->expected(3)
        ->capture_default_str();
    command->add_option("--threads", arguments->options.threads, "0: all usable cores; the result is the same for any")
        ->capture_default_str();
    command->footer("Example: lockstep coco-eval instances_val2017.json detections.json --json");
    command->callback([arguments] { run(*arguments); });
}

}  // namespace lockstep::app
