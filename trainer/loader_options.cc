#include "trainer/loader_options.h"

#include <algorithm>

namespace lockstep::trainer {
namespace {

sharding::AugmentationOptions augmentation_options(const Recipe& recipe) {
    const auto& a = recipe.augmentation;
    sharding::AugmentationOptions options;
    options.enabled = a.enabled;
    options.mosaic = a.mosaic;
    options.mixup = a.mixup;
    options.degrees = a.degrees;
    options.translate = a.translate;
    options.scale = a.scale;
    options.shear = a.shear;
    options.hsv_hue = a.hsv_hue;
    options.hsv_saturation = a.hsv_saturation;
    options.hsv_value = a.hsv_value;
    options.contrast = a.contrast;
    options.flip_horizontal = a.flip_horizontal;
    options.flip_vertical = a.flip_vertical;
    options.quarter_turns = a.quarter_turns;
    options.jitter_brightness = a.jitter_brightness;
    options.jitter_saturation = a.jitter_saturation;
    options.jitter_hue = a.jitter_hue;
    options.resized_crop = a.resized_crop;
    options.crop_padding = static_cast<std::uint32_t>(a.crop_padding);
    options.erase = a.erase;
    return options;
}

}  // namespace

sharding::ReadPath read_path_of(const Recipe& recipe) {
    return recipe.data.read == "hdf5" ? sharding::ReadPath::hdf5 : sharding::ReadPath::mmap;
}

sharding::ScalingOptions scaling_options(const Recipe& recipe) {
    using enum sharding::ScalingRule;
    const auto& scaling = recipe.scaling;
    return {.rule = scaling.rule == "published" ? published : (scaling.rule == "squares" ? squares : fixed),
            .short_side = static_cast<std::uint32_t>(scaling.short_side),
            .long_side = static_cast<std::uint32_t>(scaling.long_side),
            .multiple = static_cast<std::uint32_t>(scaling.multiple),
            .megapixels = scaling.pixel_budget};
}

sharding::LoaderOptions loader_options(const Recipe& recipe, unsigned cores) {
    sharding::LoaderOptions options;
    options.image_size = static_cast<std::uint32_t>(recipe.image_size);
    options.scaling = scaling_options(recipe);
    options.effective_batch = static_cast<std::uint64_t>(recipe.batch);
    options.accumulate = static_cast<std::uint64_t>(recipe.accumulate);
    options.threads = recipe.data.threads > 0 ? static_cast<unsigned>(recipe.data.threads) : cores;
    options.prefetch = static_cast<unsigned>(recipe.data.prefetch);
    options.seed = static_cast<std::uint64_t>(recipe.seed);
    options.augmentation = augmentation_options(recipe);
    options.closing_epoch =
        static_cast<std::uint64_t>(std::max<std::int64_t>(0, recipe.epochs - recipe.augmentation.closing_epochs));
    options.verify_checksums = recipe.data.verify_checksums;
    options.decode = recipe.data.decode == "scaled" ? sharding::DecodeMode::scaled : sharding::DecodeMode::full;
    options.on_bad_sample =
        recipe.data.on_bad_sample == "skip" ? sharding::BadSamplePolicy::skip : sharding::BadSamplePolicy::error;
    options.decoded_cache_bytes = static_cast<std::uint64_t>(recipe.data.cache_mib) << 20;
    return options;
}

}  // namespace lockstep::trainer
