#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::trainer {

/// What a training run is: typed, complete, and the one place where a key is declared. The text of each field's
/// meaning, its bounds and its choices stand in for_each_field (recipe.cc), from which the TOML reader, the error
/// messages, the start-up table and docs/recipe.md are made.
struct Recipe {
    // The network.
    std::string model;
    std::string initial_weights;
    bool small_images = false;

    // The work of a step.
    std::int64_t image_size = 640;
    std::int64_t batch = 64;
    std::int64_t accumulate = 1;
    std::int64_t epochs = 100;
    std::int64_t max_steps = 0;
    std::string precision = "fp32";
    bool force_precision = false;
    std::string batch_norm = "local";
    std::int64_t seed = 0;
    std::int64_t max_boxes = 0;
    double box_gain = 7.5;
    double classification_gain = 0.5;
    double distribution_gain = 1.5;
    double one_to_one_alpha = 0.5;
    double label_smoothing = 0;
    std::string loss_reduction = "auto";
    double clip_norm = 10;
    std::string on_nan = "stop";

    struct Data {
        std::string train;
        std::string validation;
        std::int64_t threads = 0;
        std::int64_t prefetch = 2;
        std::string order = "full";
        std::int64_t block = 64;
        std::int64_t window = 16;
        std::string read = "mmap";
        std::string decode = "full";
        std::string on_bad_sample = "error";
        bool verify_checksums = true;
        std::int64_t cache_mib = 256;
        std::string disk_cache;
        std::string shared_cache;
    } data;

    struct Scaling {
        std::string rule = "fixed";
        std::int64_t short_side = 640;
        std::int64_t long_side = 1280;
        std::int64_t multiple = 32;
        double pixel_budget = 0;
    } scaling;

    struct Optimizer {
        std::string name = "sgd";
        double learning_rate = 0.01;
        std::string learning_rate_rule = "none";
        std::int64_t reference_batch = 64;
        double momentum = 0.937;
        double beta2 = 0.999;
        double weight_decay = 5e-4;
        double trust_coefficient = 0.001;
        std::string rate_factors;
        std::int64_t zero_stage = 0;
        std::string zero_scope = "all";
    } optimizer;

    struct Schedule {
        std::string name = "linear";
        double final_fraction = 0.01;
        double warmup_epochs = 3;
        double warmup_momentum = 0.8;
        double warmup_bias_rate = 0.1;
        double step_epochs = 30;
        double step_factor = 0.1;
        std::int64_t patience = 10;
        double peak_fraction = 0.3;
    } schedule;

    struct Ema {
        bool enabled = true;
        double decay = 0.9999;
        double tau = 2000;
    } ema;

    struct Augmentation {
        bool enabled = true;
        double mosaic = 1;
        double mixup = 0;
        double degrees = 0;
        double translate = 0.1;
        double scale = 0.5;
        double shear = 0;
        double hsv_hue = 0.015;
        double hsv_saturation = 0.7;
        double hsv_value = 0.4;
        double contrast = 0;
        double flip_horizontal = 0.5;
        double flip_vertical = 0;
        double quarter_turns = 0;
        double jitter_brightness = 0;
        double jitter_saturation = 0;
        double jitter_hue = 0;
        double resized_crop = 0;
        std::int64_t crop_padding = 0;
        double erase = 0;
        std::int64_t closing_epochs = 10;
    } augmentation;

    struct Evaluation {
        std::int64_t every_epochs = 1;
        std::int64_t first_epoch = 0;
        std::int64_t patience = 0;
        std::int64_t batch = 8;
        double min_score = 0.001;
        std::int64_t max_detections = 300;
        std::string weights = "ema";
    } evaluation;

    struct Checkpoint {
        std::int64_t every_steps = 0;
        std::int64_t every_epochs = 1;
        std::int64_t keep = 2;
        bool best = true;
    } checkpoint;

    struct Communication {
        std::string topology = "auto";
        std::string algorithm = "auto";
        std::string wire = "fp32";
        double bucket_mib = 0;
        double timeout_seconds = 600;
        std::int64_t agreement_steps = 500;
    } communication;

    struct Telemetry {
        std::string prometheus;
    } telemetry;
};

/// `key=value` of --set, in TOML syntax for the value (a bare word is taken as a string).
using Override = std::pair<std::string, std::string>;
Override parse_override(const std::string& text);

/// Reads a recipe, applies overrides, checks every field and the contradictions between them.
/// Throws base::UsageError naming file, line, key, and the nearest known key or the allowed values.
Recipe load_recipe(const std::filesystem::path& path, std::span<const Override> overrides = {});
Recipe parse_recipe(const std::string& toml, const std::string& origin, std::span<const Override> overrides = {});

/// Contradictions that no single field shows, and what needs the number of ranks: an effective batch smaller than the
/// ranks.
void check_recipe(const Recipe& recipe, std::int64_t ranks);

/// Every field, with its value, as TOML that parse_recipe reads back to an equal recipe.
std::string to_toml(const Recipe& recipe);

/// Key, value and meaning of every field, in declaration order.
struct FieldDescription {
    std::string key;
    std::string value;
    std::string meaning;
    std::string allowed;
};
std::vector<FieldDescription> describe(const Recipe& recipe);

/// Of everything that decides what is learned. Not of where the files lie, how the work is spread, or how often it is
/// saved.
std::uint64_t training_hash(const Recipe& recipe);
/// The keys, with both values, that make two recipes' training_hash differ: "batch = 8 instead of 16".
std::vector<std::string> training_differences(const Recipe& recipe, const Recipe& other);

bool is_detector(const Recipe& recipe);
/// Parameters are cut, too: ZeRO stage 3.
bool gathers_parameters(const Recipe& recipe);

/// loss_reduction with "auto" resolved: whether the gradient is the mean over targets times the images of the batch.
bool loss_is_sum(const Recipe& recipe);

}  // namespace lockstep::trainer
