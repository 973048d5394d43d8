#include "tests/trainer/losses/scene.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "base/random.h"

namespace lockstep::trainer {

Scene random_scene(const SceneOptions& options, std::uint64_t seed) {
    base::Random random(seed, base::RandomPurpose::test, 0, 0);
    Scene scene;
    for (const std::int64_t stride : {8, 16, 32}) {
        at::Tensor level = at::empty(
            {options.images, 64 + options.classes, options.height / stride, options.width / stride}, at::kDouble);
        auto value = level.accessor<double, 4>();
        for (std::int64_t image = 0; image < value.size(0); ++image) {
            for (std::int64_t row = 0; row < value.size(2); ++row) {
                for (std::int64_t column = 0; column < value.size(3); ++column) {
                    for (std::int64_t side = 0; side < 4; ++side) {
                        const double likely = random.uniform(0, 6);
                        for (std::int64_t bin = 0; bin < 16; ++bin) {
                            value[image][side * 16 + bin][row][column] =
                                5 * std::exp(-std::pow(static_cast<double>(bin) - likely, 2) / 2) +
                                0.5 * random.normal();
                        }
                    }
                    for (std::int64_t c = 0; c < options.classes; ++c) {
                        value[image][64 + c][row][column] = 2 * random.normal();
                    }
                }
            }
        }
        scene.levels.push_back(level);
    }

    scene.targets = {.boxes = at::empty({options.images, options.max_boxes, 4}, at::kDouble),
                     .classes = at::empty({options.images, options.max_boxes}, at::kLong),
                     .real = at::empty({options.images, options.max_boxes}, at::kBool)};
    auto box = scene.targets.boxes.accessor<double, 3>();
    auto label = scene.targets.classes.accessor<std::int64_t, 2>();
    auto real = scene.targets.real.accessor<bool, 2>();
    for (std::int64_t image = 0; image < options.images; ++image) {
        std::int64_t still_real = options.boxes;
        for (std::int64_t m = 0; m < options.max_boxes; ++m) {
            real[image][m] = random.below(static_cast<std::uint64_t>(options.max_boxes - m)) <
                             static_cast<std::uint64_t>(still_real);
            still_real -= real[image][m];
            const double x = random.uniform(0, static_cast<double>(options.width));
            const double y = random.uniform(0, static_cast<double>(options.height));
            const double size = std::exp(random.uniform(std::log(3.0), std::log(300.0)));
            const double half_width = size * random.uniform(0.3, 1), half_height = size * random.uniform(0.3, 1);
            box[image][m][0] = x - half_width, box[image][m][1] = y - half_height;
            box[image][m][2] = x + half_width, box[image][m][3] = y + half_height;
            label[image][m] = real[image][m]
                                  ? static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(options.classes)))
                                  : -1;
        }
    }
    return scene;
}

std::vector<slow::Anchor> slow_anchors(const Scene& scene) {
    std::vector<slow::Anchor> anchors;
    double stride = 8;
    for (const at::Tensor& level : scene.levels) {
        for (std::int64_t row = 0; row < level.size(2); ++row) {
            for (std::int64_t column = 0; column < level.size(3); ++column) {
                anchors.push_back({static_cast<double>(column) + 0.5, static_cast<double>(row) + 0.5, stride});
            }
        }
        stride *= 2;
    }
    return anchors;
}

std::vector<slow::Prediction> slow_predictions(const Scene& scene, std::int64_t image) {
    std::vector<slow::Prediction> predictions;
    for (const at::Tensor& level : scene.levels) {
        const auto value = level.accessor<double, 4>();
        for (std::int64_t row = 0; row < value.size(2); ++row) {
            for (std::int64_t column = 0; column < value.size(3); ++column) {
                slow::Prediction& prediction = predictions.emplace_back();
                for (std::int64_t channel = 0; channel < value.size(1); ++channel) {
                    const double logit = value[image][channel][row][column];
                    if (channel < 64) {
                        prediction.distance_logits[channel / 16][channel % 16] = logit;
                    } else {
                        prediction.class_logits.push_back(logit);
                    }
                }
            }
        }
    }
    return predictions;
}

std::vector<slow::Target> slow_targets(const Scene& scene, std::int64_t image) {
    const auto box = scene.targets.boxes.accessor<double, 3>();
    const auto label = scene.targets.classes.accessor<std::int64_t, 2>();
    const auto real = scene.targets.real.accessor<bool, 2>();
    std::vector<slow::Target> targets;
    for (std::int64_t m = 0; m < box.size(1); ++m) {
        const auto corners = box[image][m];
        targets.push_back({.box = {corners[0], corners[1], corners[2], corners[3]},
                           .label = static_cast<int>(label[image][m]),
                           .real = real[image][m]});
    }
    return targets;
}

Scene images_of(const Scene& scene, std::int64_t begin, std::int64_t end) {
    Scene part;
    for (const at::Tensor& level : scene.levels) {
        part.levels.push_back(level.slice(0, begin, end));
    }
    part.targets = {.boxes = scene.targets.boxes.slice(0, begin, end),
                    .classes = scene.targets.classes.slice(0, begin, end),
                    .real = scene.targets.real.slice(0, begin, end)};
    return part;
}

std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& levels, at::ScalarType type) {
    std::vector<at::Tensor> result;
    for (const at::Tensor& level : levels) {
        result.push_back(level.detach().to(type, /*non_blocking=*/false, /*copy=*/true).set_requires_grad(true));
    }
    return result;
}

}  // namespace lockstep::trainer
