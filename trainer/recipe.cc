#include "trainer/recipe.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/toml_literal.h"
#include "trainer/models/model_names.h"

namespace lockstep::trainer {
namespace {

using base::str;
using base::UsageError;

struct Bounds {
    double low = -std::numeric_limits<double>::infinity();
    double high = std::numeric_limits<double>::infinity();
};
using Choices = std::vector<std::string>;

/// Whether a field decides what is learned (training_hash), or only where, how fast and how often.
enum class Effect { training, none };

constexpr double unbounded = std::numeric_limits<double>::infinity();
const Bounds probability{0, 1};
constexpr std::string_view option_prefix = "--set ";

/// The declaration of every key. `Visit` is called as visit(key, field, meaning, bounds or choices, effect).
template <typename SomeRecipe, typename Visit>
void for_each_field(SomeRecipe& r, Visit&& visit) {
    Choices models = detector_names();
    models.insert(models.end(), classifier_names().begin(), classifier_names().end());
    visit("model", r.model, "the network", models, Effect::training);
    visit("initial_weights", r.initial_weights, "safetensors file to start from; empty: from the seed", Choices{},
          Effect::training);
    visit("small_images", r.small_images, "ResNet with a 3x3 stem and no max-pool, for images of 32 px", Choices{},
          Effect::training);
    visit("image_size", r.image_size,
          "side of the network's square input in pixels, a multiple of 32 for detectors; under scaling.rule squares "
          "that of evaluation, under published of no meaning",
          Bounds{8, 4096}, Effect::training);
    visit("batch", r.batch, "effective batch: images of one optimizer step, over all ranks and micro-steps",
          Bounds{1, 1e6}, Effect::training);
    visit("accumulate", r.accumulate, "micro-steps of one optimizer step; each takes this part of the effective batch",
          Bounds{1, 1e4}, Effect::training);
    visit("epochs", r.epochs, "times that every sample is seen", Bounds{1, 1e6}, Effect::training);
    visit("max_steps", r.max_steps,
          "stop after this many optimizer steps, with the schedule unchanged; 0: no such limit", Bounds{0, 1e12},
          Effect::none);
    visit("precision", r.precision,
          "arithmetic of forward and backward; bf16: autocast, FP32 weights; fp64: for proofs",
          Choices{"fp32", "bf16", "fp64"}, Effect::training);
    visit("force_precision", r.force_precision,
          "bf16 also on a processor that has no unit for it, where it is slower than fp32", Choices{}, Effect::none);
    visit("batch_norm", r.batch_norm,
          "statistics: of each rank's own micro-batch (local), of all ranks' together (sync), or the running ones held "
          "fixed (frozen)",
          Choices{"local", "sync", "frozen"}, Effect::training);
    visit("seed", r.seed, "initial weights, order and augmentation follow from it", Bounds{0, 9e15}, Effect::training);
    visit(
        "max_boxes", r.max_boxes,
        "boxes of one training image that the loss has room for, more is an error; 0: as many as mosaic and mixup can "
        "bring together",
        Bounds{0, 100000}, Effect::none);
    visit("box_gain", r.box_gain, "detection: weight of the CIoU loss", Bounds{0, 1000}, Effect::training);
    visit("classification_gain", r.classification_gain,
          "detection: weight of the classification loss; more where classes are hard to tell apart", Bounds{0, 1000},
          Effect::training);
    visit("distribution_gain", r.distribution_gain, "detection: weight of the distribution focal loss", Bounds{0, 1000},
          Effect::training);
    visit("one_to_one_alpha", r.one_to_one_alpha,
          "detection: exponent of the score where the one-to-one head picks a box's anchor; above the published 0.5 it "
          "keeps to its choice, and learns sooner to leave out duplicates",
          Bounds{0, 10}, Effect::training);
    visit("label_smoothing", r.label_smoothing, "classification: weight of the uniform distribution in the target",
          Bounds{0, 0.99}, Effect::training);
    visit("loss_reduction", r.loss_reduction,
          "gradient of the mean over targets, or of the mean times the images of the batch (sum, the YOLOv10 "
          "convention); auto: sum for detectors, mean for classifiers",
          Choices{"auto", "sum", "mean"}, Effect::training);
    visit("clip_norm", r.clip_norm, "largest global norm of the gradient; 0: no clipping", Bounds{0, unbounded},
          Effect::training);
    visit("on_nan", r.on_nan,
          "a step whose loss or gradient isn't finite stops the run, naming tensor and samples (stop), or leaves "
          "weights and state as they are and is counted (skip)",
          Choices{"stop", "skip"}, Effect::training);

    visit("data.train", r.data.train, "training data set (a directory made by lockstep import)", Choices{},
          Effect::none);
    visit("data.validation", r.data.validation, "validation data set; empty: no evaluation", Choices{}, Effect::none);
    visit("data.threads", r.data.threads, "loader threads of a rank; 0: by the cores that a rank has", Bounds{0, 256},
          Effect::none);
    visit("data.prefetch", r.data.prefetch, "effective batches kept ready", Bounds{1, 64}, Effect::none);
    visit("data.order", r.data.order,
          "full: any sample may follow any other, another order each epoch; block: blocks of neighbouring samples are "
          "shuffled, then the samples inside a window of blocks, so that reads stay local; sequential: the data set's",
          Choices{"full", "block", "sequential"}, Effect::training);
    visit("data.block", r.data.block, "order block: neighbouring samples that travel together", Bounds{1, 1e6},
          Effect::training);
    visit("data.window", r.data.window, "order block: blocks whose samples are mixed", Bounds{1, 1e6},
          Effect::training);
    visit("data.read", r.data.read,
          "mmap: pointers into the mapped shards; hdf5: through the library, also chunked and compressed shards; the "
          "same bytes",
          Choices{"mmap", "hdf5"}, Effect::none);
    visit("data.decode", r.data.decode,
          "scaled: the decoder gives training JPEGs at 1/2, 1/4 or 1/8 where image_size is that much smaller (faster, "
          "slightly other pixels); evaluation always decodes in full",
          Choices{"full", "scaled"}, Effect::training);
    visit("data.on_bad_sample", r.data.on_bad_sample,
          "a training sample that can't be read or decoded stops the run (error), or is left out and counted (skip)",
          Choices{"error", "skip"}, Effect::training);
    visit("data.verify_checksums", r.data.verify_checksums, "check each sample's CRC-32C when it is read", Choices{},
          Effect::none);
    visit("data.cache_mib", r.data.cache_mib,
          "decoded images that the ranks of a machine keep in memory together, in MiB; where that isn't room for all, "
          "those that are needed soonest",
          Bounds{0, 1e6}, Effect::none);
    visit(
        "data.disk_cache", r.data.disk_cache,
        "folder where the training set's samples are kept decoded at image_size, made at the first start; empty: none",
        Choices{}, Effect::none);
    visit("data.shared_cache", r.data.shared_cache,
          "Redis server where ranks of all nodes find what one has decoded, such as \"redis://node1:6379\" or, for its "
          "database 2, \"redis://node1:6379/2\"; training goes on without it when it dies; empty: none",
          Choices{}, Effect::none);

    visit("scaling.rule", r.scaling.rule,
          "detection: images in squares of image_size (fixed); in rectangles, the aspect kept, the short side "
          "short_side unless the long one would pass long_side, padded to a multiple, like shapes in a batch "
          "(published); or in squares of all sides from short_side to long_side, another one for each batch (squares)",
          Choices{"fixed", "published", "squares"}, Effect::training);
    visit("scaling.short_side", r.scaling.short_side, "published: short side of an image; squares: the smallest side",
          Bounds{32, 8192}, Effect::training);
    visit("scaling.long_side", r.scaling.long_side,
          "published: long side of an image at most; squares: the largest side", Bounds{32, 8192}, Effect::training);
    visit("scaling.multiple", r.scaling.multiple,
          "published: what sides are padded to a multiple of, greater for fewer shapes and better mixed batches; "
          "squares: the step between sides",
          Bounds{32, 1024}, Effect::training);
    visit("scaling.pixel_budget", r.scaling.pixel_budget,
          "megapixels of an effective batch, padding included: of larger images it holds fewer, of small ones no more "
          "than batch, and the gradient weighs each image alike; 0: batch images, whatever their size",
          Bounds{0, 1e6}, Effect::training);

    visit("optimizer.name", r.optimizer.name,
          "sgd (Nesterov momentum), adam (decay in the gradient), adamw (decay apart), or for large batches lars or "
          "lamb, which set each tensor's rate by its norm",
          Choices{"sgd", "adam", "adamw", "lars", "lamb"}, Effect::training);
    visit("optimizer.learning_rate", r.optimizer.learning_rate, "peak rate, before the rule below", Bounds{1e-12, 100},
          Effect::training);
    visit("optimizer.learning_rate_rule", r.optimizer.learning_rate_rule,
          "rate times (batch / reference_batch): not at all, linearly, or by its square root",
          Choices{"none", "linear", "sqrt"}, Effect::training);
    visit("optimizer.reference_batch", r.optimizer.reference_batch,
          "the effective batch for which learning_rate is meant", Bounds{1, 1e6}, Effect::training);
    visit("optimizer.momentum", r.optimizer.momentum, "momentum of sgd and lars, beta1 of the others",
          Bounds{0, 0.9999}, Effect::training);
    visit("optimizer.beta2", r.optimizer.beta2, "beta2 of adam, adamw and lamb", Bounds{0, 0.999999}, Effect::training);
    visit("optimizer.weight_decay", r.optimizer.weight_decay,
          "of convolution and linear weights; biases and norms have none", Bounds{0, 10}, Effect::training);
    visit("optimizer.trust_coefficient", r.optimizer.trust_coefficient,
          "lars: a tensor's rate is this times its norm over its gradient's", Bounds{1e-9, 1e3}, Effect::training);
    visit(
        "optimizer.rate_factors", r.optimizer.rate_factors,
        "of parameters by the beginning of their names, such as \"model.0=0 model.1=0.1\": factors of their rate; the "
        "longest beginning counts, and 0 freezes",
        Choices{}, Effect::training);
    visit("optimizer.zero_stage", r.optimizer.zero_stage,
          "what is cut into a shard for each rank: 0 nothing, 1 optimizer state and moving average, 2 also gradients "
          "(each micro-step then reduces them), 3 also parameters, gathered block by block while they are used, and "
          "whole at the start, for evaluation and for saving",
          Bounds{0, 3}, Effect::none);
    visit("optimizer.zero_scope", r.optimizer.zero_scope,
          "all: one set of shards between all ranks; node: a set in each node, so that parameters never cross the "
          "network and gradients do as shards, at the price of memory (nodes of equally many ranks)",
          Choices{"all", "node"}, Effect::none);

    visit("schedule.name", r.schedule.name, "rate over the run",
          Choices{"constant", "linear", "cosine", "step", "one_cycle", "plateau"}, Effect::training);
    visit("schedule.final_fraction", r.schedule.final_fraction,
          "rate at the end as a fraction of the peak (linear, cosine, one_cycle)", Bounds{0, 1}, Effect::training);
    visit("schedule.warmup_epochs", r.schedule.warmup_epochs, "rate (and momentum) rise linearly over so many epochs",
          Bounds{0, 1e6}, Effect::training);
    visit("schedule.warmup_momentum", r.schedule.warmup_momentum, "momentum at the start of the warm-up",
          Bounds{0, 0.9999}, Effect::training);
    visit("schedule.warmup_bias_rate", r.schedule.warmup_bias_rate,
          "rate of biases at the start of the warm-up (others start at 0)", Bounds{0, 10}, Effect::training);
    visit("schedule.step_epochs", r.schedule.step_epochs, "step: epochs between two reductions", Bounds{1e-3, 1e6},
          Effect::training);
    visit("schedule.step_factor", r.schedule.step_factor, "step and plateau: factor of each reduction", Bounds{1e-6, 1},
          Effect::training);
    visit("schedule.patience", r.schedule.patience,
          "plateau: evaluations in a row without a better result, after which the rate is reduced", Bounds{1, 1e6},
          Effect::training);
    visit("schedule.peak_fraction", r.schedule.peak_fraction, "one_cycle: part of the run that rises",
          Bounds{0.001, 0.999}, Effect::training);

    visit("ema.enabled", r.ema.enabled, "keep an exponential moving average of weights and batch-norm statistics",
          Choices{}, Effect::training);
    visit("ema.decay", r.ema.decay, "decay that the average tends to", Bounds{0, 0.9999999}, Effect::training);
    visit("ema.tau", r.ema.tau, "steps over which the decay rises: decay * (1 - exp(-step / tau))", Bounds{1e-3, 1e9},
          Effect::training);

    visit("augmentation.enabled", r.augmentation.enabled, "false: letterbox only", Choices{}, Effect::training);
    visit("augmentation.mosaic", r.augmentation.mosaic, "probability of a 2x2 mosaic", probability, Effect::training);
    visit("augmentation.mixup", r.augmentation.mixup, "probability of blending in a second image", probability,
          Effect::training);
    visit("augmentation.degrees", r.augmentation.degrees, "rotation, +-", Bounds{0, 180}, Effect::training);
    visit("augmentation.translate", r.augmentation.translate, "shift, +- this part of the side", probability,
          Effect::training);
    visit("augmentation.scale", r.augmentation.scale, "gain: 1 +- this", Bounds{0, 0.95}, Effect::training);
    visit("augmentation.shear", r.augmentation.shear, "shear in degrees, +-", Bounds{0, 40}, Effect::training);
    visit("augmentation.hsv_hue", r.augmentation.hsv_hue, "hue gain, +-", probability, Effect::training);
    visit("augmentation.hsv_saturation", r.augmentation.hsv_saturation, "saturation gain, +-", probability,
          Effect::training);
    visit("augmentation.hsv_value", r.augmentation.hsv_value, "value gain, +-", probability, Effect::training);
    visit("augmentation.contrast", r.augmentation.contrast, "gain of the difference from the image's mean gray, +-",
          probability, Effect::training);
    visit("augmentation.flip_horizontal", r.augmentation.flip_horizontal, "probability", probability, Effect::training);
    visit("augmentation.flip_vertical", r.augmentation.flip_vertical, "probability", probability, Effect::training);
    visit("augmentation.quarter_turns", r.augmentation.quarter_turns,
          "probability of a turn by 90, 180 or 270 degrees (aerial photos)", probability, Effect::training);
    visit(
        "augmentation.jitter_brightness", r.augmentation.jitter_brightness,
        "ColorJitter: gain, +-; where one of the three is on, they and contrast are applied in an order that is drawn",
        probability, Effect::training);
    visit("augmentation.jitter_saturation", r.augmentation.jitter_saturation, "ColorJitter: gain, +-", probability,
          Effect::training);
    visit("augmentation.jitter_hue", r.augmentation.jitter_hue, "ColorJitter: shift by +- this part of a turn",
          Bounds{0, 0.5}, Effect::training);
    visit("augmentation.resized_crop", r.augmentation.resized_crop,
          "classification: a window of at least this part of the area is resized to the square (RandomResizedCrop: "
          "0.08); "
          "0: off",
          probability, Effect::training);
    visit("augmentation.crop_padding", r.augmentation.crop_padding,
          "classification: pad by so many pixels and crop at random", Bounds{0, 1024}, Effect::training);
    visit("augmentation.erase", r.augmentation.erase, "classification: probability of erasing a rectangle", probability,
          Effect::training);
    visit("augmentation.closing_epochs", r.augmentation.closing_epochs, "the last epochs, without mosaic and mixup",
          Bounds{0, 1e6}, Effect::training);

    visit("evaluation.every_epochs", r.evaluation.every_epochs, "evaluate after so many epochs, and after the last",
          Bounds{1, 1e6}, Effect::none);
    visit("evaluation.first_epoch", r.evaluation.first_epoch, "no evaluation before this epoch", Bounds{0, 1e6},
          Effect::none);
    visit("evaluation.patience", r.evaluation.patience,
          "the run ends after so many evaluations in a row without a better result; 0: never", Bounds{0, 1e6},
          Effect::none);
    visit("evaluation.batch", r.evaluation.batch, "images at a time on each rank", Bounds{1, 4096}, Effect::none);
    visit("evaluation.min_score", r.evaluation.min_score, "detections below are not counted", probability,
          Effect::none);
    visit("evaluation.max_detections", r.evaluation.max_detections, "detections kept per image", Bounds{1, 10000},
          Effect::none);
    visit("evaluation.weights", r.evaluation.weights, "which weights are evaluated and saved for use",
          Choices{"ema", "live"}, Effect::none);

    visit("checkpoint.every_steps", r.checkpoint.every_steps, "save after so many steps; 0: by epochs only",
          Bounds{0, 1e9}, Effect::none);
    visit("checkpoint.every_epochs", r.checkpoint.every_epochs,
          "save after so many epochs (and at the end); 0: at the end only", Bounds{0, 1e6}, Effect::none);
    visit("checkpoint.keep", r.checkpoint.keep, "checkpoints kept, the newest ones", Bounds{1, 1e6}, Effect::none);
    visit("checkpoint.best", r.checkpoint.best,
          "write best.safetensors at each evaluation with a better result (detection: 0.1 AP50 + 0.9 AP)", Choices{},
          Effect::none);

    visit("communication.topology", r.communication.topology,
          "which ranks share a node: auto (as it is), flat (none), or NODESxRANKS such as 2x4", Choices{},
          Effect::none);
    visit("communication.algorithm", r.communication.algorithm,
          "how an all-reduce between nodes goes; auto: the fastest one by measurement at the start (a resumed run "
          "keeps it)",
          Choices{"auto", "direct", "ring", "halving_doubling", "central"}, Effect::none);
    visit("communication.wire", r.communication.wire, "what FP32 gradients are rounded to on their way between nodes",
          Choices{"fp32", "bf16", "fp16"}, Effect::none);
    visit("communication.bucket_mib", r.communication.bucket_mib,
          "gradients are reduced in buckets of this size; 0: by measurement at the start (a resumed run keeps it)",
          Bounds{0, 4096}, Effect::none);
    visit("communication.timeout_seconds", r.communication.timeout_seconds, "deadline of a collective operation",
          Bounds{1, 1e6}, Effect::none);
    visit("communication.agreement_steps", r.communication.agreement_steps,
          "parameters of all ranks are compared, bit for bit, after every so many steps and before they are saved; 0: "
          "only at the start and before they are saved",
          Bounds{0, 1e9}, Effect::none);

    visit("telemetry.prometheus", r.telemetry.prometheus,
          "host:port where rank 0 shows its figures to Prometheus, under /metrics; port 0: any that is free; empty: "
          "nowhere",
          Choices{}, Effect::none);
}

std::string allowed_text(const Choices& choices) {
    return choices.empty() ? "" : "one of " + base::join(choices, ", ");
}
std::string allowed_text(const Bounds& bounds) {
    if (bounds.high == unbounded) {
        return str("at least ", bounds.low);
    }
    return str(bounds.low, " to ", bounds.high);
}

template <typename T>
constexpr const char* type_name() {
    if constexpr (std::is_same_v<T, std::string>) {
        return "a string";
    } else if constexpr (std::is_same_v<T, bool>) {
        return "true or false";
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
        return "a whole number";
    } else {
        return "a number";
    }
}

void check_value(const std::string& where, const std::string& key, const std::string& value, const Choices& choices) {
    if (choices.empty() || std::ranges::find(choices, value) != choices.end()) {
        return;
    }
    const std::string near = base::nearest_word(value, choices);
    throw UsageError(str(where, ": ", key, " = \"", value, "\" is not known; ",
                         near.empty() ? "" : "did you mean \"" + near + "\"? ",
                         "allowed: ", base::join(choices, ", ")));
}
void check_value(const std::string&, const std::string&, bool, const Choices&) {}
template <typename Number>
void check_value(const std::string& where, const std::string& key, Number value, const Bounds& bounds) {
    const auto number = static_cast<double>(value);
    if (!(number >= bounds.low && number <= bounds.high) || !std::isfinite(number)) {
        throw UsageError(str(where, ": ", key, " = ", value, " is out of bounds; allowed: ", allowed_text(bounds)));
    }
}

/// `origin` is a file, or an option of the command line, which has no lines.
std::string location(const std::string& origin, const toml::source_region& region) {
    return origin.starts_with(option_prefix) ? origin : str(origin, ":", region.begin.line);
}

template <typename T>
T read_value(const toml::node& node, const std::string& where, const std::string& key) {
    if constexpr (std::is_same_v<T, double>) {
        if (node.is_integer() || node.is_floating_point()) {
            return *node.value<double>();
        }
    } else if (const auto value = node.value_exact<T>()) {
        return *value;
    }
    std::ostringstream given;
    given << toml::node_view<const toml::node>(&node);
    throw UsageError(str(where, ": ", key, " must be ", type_name<T>(), ", not ", given.str()));
}

/// Dotted keys of every leaf of the table.
void collect_keys(const toml::table& table, const std::string& prefix,
                  std::vector<std::pair<std::string, const toml::node*>>& out) {
    for (const auto& [name, node] : table) {
        const std::string key = prefix + std::string(name.str());
        if (const auto* inner = node.as_table()) {
            collect_keys(*inner, key + ".", out);
        } else {
            out.emplace_back(key, &node);
        }
    }
}

void apply(Recipe& recipe, const toml::table& table, const std::string& origin) {
    std::vector<std::pair<std::string, const toml::node*>> given;
    collect_keys(table, "", given);
    std::set<std::string> used;
    std::vector<std::string> known;
    for_each_field(recipe, [&](const std::string& key, auto& field, const char*, const auto& allowed, Effect) {
        using Field = std::remove_cvref_t<decltype(field)>;
        known.push_back(key);
        for (const auto& [name, node] : given) {
            if (name == key) {
                const std::string where = location(origin, node->source());
                field = read_value<Field>(*node, where, key);
                check_value(where, key, field, allowed);
                used.insert(key);
            }
        }
    });
    for (const auto& [name, node] : given) {
        if (!used.contains(name)) {
            const std::string near = base::nearest_word(name, known);
            throw UsageError(str(location(origin, node->source()), ": unknown key ", name,
                                 near.empty() ? "; docs/recipe.md lists the keys" : "; did you mean " + near + "?"));
        }
    }
}

toml::table parse_toml(const std::string& text, const std::string& origin) {
    try {
        return toml::parse(text, origin);
    } catch (const toml::parse_error& error) {
        throw UsageError(str(location(origin, error.source()), ": not valid TOML: ", std::string(error.description())));
    }
}

/// A value that isn't the default was given for a reason; where it can't act, that reason fails silently.
void refuse_without_effect(const Recipe& recipe) {
    const auto& schedule = recipe.schedule.name;
    const auto& optimizer = recipe.optimizer.name;
    const bool has_momentum = optimizer == "sgd" || optimizer == "lars";
    const bool warms_up = recipe.schedule.warmup_epochs > 0;
    const bool scales = recipe.scaling.rule != "fixed";
    const char* const when_scaling = "scaling.rule = \"published\" or \"squares\"";
    struct Condition {
        const char* key;
        bool acts;
        const char* when;
    };
    const Condition conditions[] = {
        {"optimizer.beta2", !has_momentum, "optimizer.name = \"adam\", \"adamw\" or \"lamb\""},
        {"optimizer.trust_coefficient", optimizer == "lars", "optimizer.name = \"lars\""},
        {"optimizer.reference_batch", recipe.optimizer.learning_rate_rule != "none",
         "optimizer.learning_rate_rule = \"linear\" or \"sqrt\""},
        {"schedule.warmup_momentum", has_momentum && warms_up,
         "optimizer.name = \"sgd\" or \"lars\", and schedule.warmup_epochs > 0"},
        {"schedule.warmup_bias_rate", warms_up, "schedule.warmup_epochs > 0"},
        {"schedule.step_epochs", schedule == "step", "schedule.name = \"step\""},
        {"schedule.step_factor", schedule == "step" || schedule == "plateau",
         "schedule.name = \"step\" or \"plateau\""},
        {"schedule.patience", schedule == "plateau", "schedule.name = \"plateau\""},
        {"schedule.peak_fraction", schedule == "one_cycle", "schedule.name = \"one_cycle\""},
        {"schedule.final_fraction", schedule != "step" && schedule != "plateau",
         "schedule.name other than \"step\" and \"plateau\""},
        {"scaling.short_side", scales, when_scaling},
        {"scaling.long_side", scales, when_scaling},
        {"scaling.multiple", scales, when_scaling},
        {"scaling.pixel_budget", scales, when_scaling},
        {"data.cache_mib", !scales || recipe.data.cache_mib == 0, "scaling.rule = \"fixed\""},
    };
    const auto given = describe(recipe), defaults = describe(Recipe{});
    for (std::size_t i = 0; i < given.size(); ++i) {
        for (const Condition& condition : conditions) {
            if (given[i].key == condition.key && !condition.acts && given[i].value != defaults[i].value) {
                throw UsageError(str("recipe: ", given[i].key, " = ", given[i].value, " acts only with ",
                                     condition.when, "; remove it"));
            }
        }
    }
}

}  // namespace

Override parse_override(const std::string& text) {
    const auto equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
        throw UsageError(
            str(option_prefix, text, ": expected key=value, for example --set optimizer.learning_rate=0.01"));
    }
    return {std::string(base::trim(text.substr(0, equals))), std::string(base::trim(text.substr(equals + 1)))};
}

Recipe parse_recipe(const std::string& toml, const std::string& origin, std::span<const Override> overrides) {
    Recipe recipe;
    apply(recipe, parse_toml(toml, origin), origin);
    for (const auto& [key, value] : overrides) {
        const std::string option = str(option_prefix, key, "=", value);
        toml::table table;
        try {
            table = toml::parse(str(key, " = ", value));
        } catch (const toml::parse_error&) {
            table = parse_toml(str(key, " = ", base::toml_literal(value)), option);  // a bare word is a string
        }
        apply(recipe, table, option);
    }
    if (recipe.model.empty()) {
        throw UsageError(str(origin, ": no model; give for example model = \"yolov10n\""));
    }
    if (recipe.data.train.empty()) {
        throw UsageError(str(origin, ": no training data; give data.train = \"DIR\" (made by lockstep import)"));
    }
    check_recipe(recipe, 1);
    refuse_without_effect(recipe);
    return recipe;
}

Recipe load_recipe(const std::filesystem::path& path, std::span<const Override> overrides) {
    return parse_recipe(base::read_text(path), path.string(), overrides);
}

namespace {

void check_scaling(const Recipe& recipe) {
    const auto refuse = [](const auto&... parts) { throw UsageError("recipe: " + str(parts...)); };
    const auto& scaling = recipe.scaling;
    if (scaling.rule == "fixed") {
        return;
    }
    if (!is_detector(recipe)) {
        refuse("scaling.rule = \"", scaling.rule,
               "\" is for detectors; a classifier's images are resized to the square");
    }
    if (scaling.multiple % 32 != 0) {
        refuse("scaling.multiple = ", scaling.multiple, " is not a multiple of 32, the largest stride of a detector");
    }
    for (const auto& [key, side] : {std::pair{"short_side", scaling.short_side}, {"long_side", scaling.long_side}}) {
        if (side % scaling.multiple != 0) {
            refuse("scaling.", key, " = ", side, " is not a multiple of scaling.multiple = ", scaling.multiple,
                   "; try ", (side + scaling.multiple - 1) / scaling.multiple * scaling.multiple);
        }
    }
    if (scaling.short_side > scaling.long_side) {
        refuse("scaling.short_side = ", scaling.short_side, " is more than scaling.long_side = ", scaling.long_side);
    }
    if (scaling.rule == "squares" && scaling.short_side == scaling.long_side) {
        refuse("scaling.rule = \"squares\" has one side only, ", scaling.short_side,
               "; give a range, or \"fixed\" with image_size");
    }
    if (scaling.rule == "published" && recipe.augmentation.enabled && recipe.augmentation.quarter_turns > 0) {
        refuse("augmentation.quarter_turns = ", recipe.augmentation.quarter_turns,
               " turns a rectangle, which then doesn't fit itself; set it to 0, or use scaling.rule = \"squares\"");
    }
    if (!recipe.data.shared_cache.empty()) {
        refuse("data.shared_cache holds samples at image_size, and scaling.rule = \"", scaling.rule,
               "\" needs them in other sizes; leave one out");
    }
    if (!recipe.data.disk_cache.empty()) {
        refuse("data.disk_cache holds samples at image_size, and scaling.rule = \"", scaling.rule,
               "\" needs them in other sizes; leave one out");
    }
}

}  // namespace

void check_recipe(const Recipe& recipe, std::int64_t ranks) {
    const auto refuse = [](const auto&... parts) { throw UsageError("recipe: " + str(parts...)); };
    check_scaling(recipe);
    if (!recipe.data.shared_cache.empty() && !recipe.data.disk_cache.empty()) {
        refuse("data.disk_cache gives every sample, so that data.shared_cache would never be asked; leave one out");
    }
    if (!recipe.data.shared_cache.empty() && recipe.augmentation.enabled && recipe.augmentation.resized_crop > 0) {
        refuse(
            "data.shared_cache holds samples at image_size, and augmentation.resized_crop cuts windows out of larger "
            "ones; leave one out");
    }
    if (is_detector(recipe) && recipe.image_size % 32 != 0) {
        refuse("image_size = ", recipe.image_size, " is not a multiple of 32, the largest stride of a detector; try ",
               (recipe.image_size + 31) / 32 * 32);
    }
    if (recipe.batch % recipe.accumulate != 0) {
        refuse("batch = ", recipe.batch, " can't be cut into accumulate = ", recipe.accumulate, " equal micro-steps");
    }
    if (recipe.batch / recipe.accumulate < ranks) {
        refuse("a micro-step of batch / accumulate = ", recipe.batch / recipe.accumulate,
               " images is smaller than the ", ranks, " ranks; use fewer ranks, a larger batch or less accumulation");
    }
    const bool adds_at_each_rank =
        recipe.communication.algorithm == "ring" || recipe.communication.algorithm == "halving_doubling";
    if (recipe.communication.wire != "fp32" && adds_at_each_rank) {
        refuse("communication.algorithm = \"", recipe.communication.algorithm, "\" would round sums to ",
               recipe.communication.wire,
               " at each rank on their way; use \"direct\", which rounds once, or wire = \"fp32\"");
    }
    if (recipe.data.validation.empty() && (recipe.schedule.name == "plateau" || recipe.evaluation.patience > 0)) {
        refuse(recipe.schedule.name == "plateau" ? "schedule.name = \"plateau\"" : "evaluation.patience",
               " looks at evaluations, and there are none; give data.validation");
    }
    if (recipe.optimizer.zero_scope == "node" && recipe.optimizer.zero_stage == 0) {
        refuse("optimizer.zero_scope = \"node\" has no effect at optimizer.zero_stage = 0, which cuts nothing");
    }
    if (is_detector(recipe) && recipe.label_smoothing > 0) {
        refuse("label_smoothing has no meaning for a detector: its targets are soft already");
    }
    if (is_detector(recipe) && (recipe.augmentation.crop_padding > 0 || recipe.augmentation.erase > 0 ||
                                recipe.augmentation.resized_crop > 0)) {
        refuse(
            "augmentation.crop_padding, augmentation.resized_crop and augmentation.erase are for classification; set "
            "them to 0");
    }
    if (!is_detector(recipe) && (recipe.augmentation.mosaic > 0 || recipe.augmentation.mixup > 0) &&
        recipe.augmentation.enabled) {
        refuse("augmentation.mosaic and augmentation.mixup need boxes; set both to 0 for ", recipe.model);
    }
    if (recipe.augmentation.enabled && recipe.augmentation.mosaic + recipe.augmentation.mixup > 0 &&
        recipe.augmentation.closing_epochs >= recipe.epochs) {
        refuse("augmentation.closing_epochs = ", recipe.augmentation.closing_epochs,
               " turns mosaic and mixup off in all ", recipe.epochs, " epochs; give fewer, or set both to 0");
    }
    for (const auto& [key, value, usual] :
         {std::tuple{"box_gain", recipe.box_gain, Recipe{}.box_gain},
          {"classification_gain", recipe.classification_gain, Recipe{}.classification_gain},
          {"distribution_gain", recipe.distribution_gain, Recipe{}.distribution_gain},
          {"one_to_one_alpha", recipe.one_to_one_alpha, Recipe{}.one_to_one_alpha}}) {
        if (!is_detector(recipe) && value != usual) {
            refuse(key, " is for detectors");
        }
    }
    if (!recipe.data.disk_cache.empty() && recipe.augmentation.enabled && recipe.augmentation.resized_crop > 0) {
        refuse(
            "data.disk_cache holds samples at image_size, and augmentation.resized_crop needs them larger; leave one "
            "out");
    }
    if (recipe.augmentation.crop_padding > 0 && recipe.augmentation.resized_crop > 0) {
        refuse("augmentation.crop_padding and augmentation.resized_crop both cut a window out; set one of them to 0");
    }
    if (recipe.augmentation.crop_padding >= recipe.image_size) {
        refuse("augmentation.crop_padding = ", recipe.augmentation.crop_padding,
               " could crop the whole image away; give less than image_size = ", recipe.image_size);
    }
    if (recipe.small_images && is_detector(recipe)) {
        refuse("small_images is for ResNets");
    }
    if (recipe.evaluation.weights == "ema" && !recipe.ema.enabled) {
        refuse("evaluation.weights = \"ema\" needs ema.enabled = true; or set evaluation.weights = \"live\"");
    }
    if (recipe.schedule.warmup_epochs >= static_cast<double>(recipe.epochs) && recipe.schedule.warmup_epochs > 0) {
        refuse("schedule.warmup_epochs = ", recipe.schedule.warmup_epochs,
               " leaves nothing of epochs = ", recipe.epochs);
    }
}

std::string to_toml(const Recipe& recipe) {
    std::string text;
    std::string section;
    for_each_field(recipe, [&](const std::string& key, const auto& field, const char*, const auto&, Effect) {
        const auto dot = key.find('.');
        const std::string own_section = dot == std::string::npos ? "" : key.substr(0, dot);
        if (own_section != section) {
            section = own_section;
            text += str("\n[", section, "]\n");
        }
        text += str(dot == std::string::npos ? key : key.substr(dot + 1), " = ", base::toml_literal(field), "\n");
    });
    return text;
}

std::vector<FieldDescription> describe(const Recipe& recipe) {
    std::vector<FieldDescription> fields;
    for_each_field(
        recipe, [&](const std::string& key, const auto& field, const char* meaning, const auto& allowed, Effect) {
            using Field = std::remove_cvref_t<decltype(field)>;
            const std::string text = allowed_text(allowed);
            fields.push_back({key, base::toml_literal(field), meaning, text.empty() ? type_name<Field>() : text});
        });
    return fields;
}

namespace {

/// Keys and values that decide what is learned.
std::vector<std::pair<std::string, std::string>> training_settings(const Recipe& recipe) {
    std::vector<std::pair<std::string, std::string>> settings;
    for_each_field(recipe, [&](const std::string& key, const auto& field, const char*, const auto&, Effect effect) {
        if (effect == Effect::training) {
            settings.emplace_back(key, base::toml_literal(field));
        }
    });
    return settings;
}

}  // namespace

std::uint64_t training_hash(const Recipe& recipe) {
    base::Hash64 hash;
    for (const auto& [key, value] : training_settings(recipe)) {
        hash.add(key).add(value);
    }
    return hash.value();
}

std::vector<std::string> training_differences(const Recipe& recipe, const Recipe& other) {
    std::vector<std::string> differences;
    const auto others = training_settings(other);
    std::size_t i = 0;
    for (const auto& [key, value] : training_settings(recipe)) {
        if (value != others[i].second) {
            differences.push_back(str(key, " = ", value, " instead of ", others[i].second));
        }
        ++i;
    }
    return differences;
}

bool is_detector(const Recipe& recipe) {
    return recipe.model.starts_with("yolo");
}

bool gathers_parameters(const Recipe& recipe) {
    return recipe.optimizer.zero_stage >= 3;
}

bool loss_is_sum(const Recipe& recipe) {
    return recipe.loss_reduction == "auto" ? is_detector(recipe) : recipe.loss_reduction == "sum";
}

}  // namespace lockstep::trainer
