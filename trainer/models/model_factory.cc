#include "trainer/models/model_factory.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "trainer/models/resnet.h"
#include "trainer/models/yolov10.h"

namespace lockstep::trainer {

namespace {

/// Position of the spec's name among the names; checks what both kinds have in common.
std::size_t find_name(const ModelSpec& spec, const std::vector<std::string>& names, std::string_view kind) {
    if (spec.classes < 1) {
        throw base::UsageError(
            base::str("model ", spec.name, " with ", spec.classes, " classes: there must be at least 1"));
    }
    const auto found = std::find(names.begin(), names.end(), spec.name);
    if (found == names.end()) {
        const std::string nearest = base::nearest_word(spec.name, names);
        throw base::UsageError(base::str("no ", kind, " is named \"", spec.name, "\"",
                                         nearest.empty() ? "" : base::str(" (did you mean \"", nearest, "\"?)"),
                                         "; known: ", base::join(names, ", ")));
    }
    return static_cast<std::size_t>(found - names.begin());
}

}  // namespace

std::shared_ptr<Yolov10> make_detector(const ModelSpec& spec, std::uint64_t seed) {
    using enum Yolov10Variant;
    constexpr std::array variants = {n, s, m, b, l, x};
    const Yolov10Variant variant = variants.at(find_name(spec, detector_names(), "detector"));
    const std::int64_t multiple = Yolov10::strides.back();
    if (spec.image_size < multiple || spec.image_size % multiple != 0) {
        throw base::UsageError(base::str("image size ", spec.image_size, " for ", spec.name,
                                         ": it must be a positive multiple of ", multiple,
                                         ", the detector's coarsest stride"));
    }
    if (spec.small_images) {
        throw base::UsageError(
            base::str("small_images has no effect on ", spec.name, ": it is for classifiers; leave it out"));
    }
    auto model = std::make_shared<Yolov10>(variant, spec.classes);
    model->initialise(seed);
    return model;
}

std::shared_ptr<ResNet> make_classifier(const ModelSpec& spec, std::uint64_t seed) {
    constexpr std::array<std::int64_t, 4> depths = {18, 34, 50, 101};
    const std::int64_t depth = depths.at(find_name(spec, classifier_names(), "classifier"));
    if (spec.image_size < 1) {
        throw base::UsageError(base::str("image size ", spec.image_size, " for ", spec.name, ": it must be positive"));
    }
    auto model = std::make_shared<ResNet>(resnet_options(depth, spec.classes, spec.small_images));
    model->initialise(seed);
    return model;
}

}  // namespace lockstep::trainer
