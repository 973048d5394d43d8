#include "trainer/predictor.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "sharding/augmentation.h"
#include "sharding/loader.h"
#include "sharding/tiling.h"
#include "trainer/batch_tensors.h"
#include "trainer/letterbox_boxes.h"
#include "trainer/models/decode.h"
#include "trainer/models/model_factory.h"
#include "trainer/models/yolov10.h"

namespace lockstep::trainer {
namespace {

using base::Error;
using base::str;
using sharding::Image;
using sharding::Rectangle;

constexpr double tiling_from = 1.5;  ///< times the network's size
constexpr double same_object_iou = 0.5;
constexpr double same_object_cover = 0.6;  ///< of the smaller box
constexpr double border_pixels = 2;

sharding::MicroBatch letterboxed(const Image& image, const sharding::Canvas& canvas) {
    sharding::Sample sample{};
    sample.width = image.width;
    sample.height = image.height;
    const auto pixels = std::shared_ptr<const std::uint8_t>(std::shared_ptr<void>(), image.pixels.data());
    const sharding::ImageSize size{image.width, image.height};
    sharding::ImageBuffers buffers;
    const auto fitted =
        sharding::resized({.source = sample, .width = size.width, .height = size.height, .pixels = pixels},
                          sharding::fitted_size(size, canvas.bounds), buffers);
    const sharding::Augmenter augmenter({}, sharding::Task::detection, canvas.width, 0, 0, 1);
    sharding::MicroBatch micro;
    micro.count = 1;
    micro.width = canvas.width;
    micro.height = canvas.height;
    micro.pixels.resize(canvas.pixels() * 3);
    const auto placement = augmenter.make(
        0, 0, canvas, [&](std::uint64_t) { return fitted; }, micro.pixels, micro.boxes);
    micro.letterboxes.push_back(placement.letterbox);
    return micro;
}

double area(const PictureBox& box) {
    return std::max(0.0, box.x2 - box.x1) * std::max(0.0, box.y2 - box.y1);
}

bool is_same_object(const PictureBox& a, const PictureBox& b) {
    const double width = std::min(a.x2, b.x2) - std::max(a.x1, b.x1);
    const double height = std::min(a.y2, b.y2) - std::max(a.y1, b.y1);
    if (width <= 0 || height <= 0) {
        return false;
    }
    const double shared = width * height;
    return shared > same_object_iou * (area(a) + area(b) - shared) ||
           shared > same_object_cover * std::min(area(a), area(b));
}

bool touches_inner_border(const PictureBox& box, const Rectangle& tile, const Image& image) {
    return (tile.x > 0 && box.x1 < tile.x + border_pixels) || (tile.y > 0 && box.y1 < tile.y + border_pixels) ||
           (tile.right() < image.width && box.x2 > tile.right() - border_pixels) ||
           (tile.bottom() < image.height && box.y2 > tile.bottom() - border_pixels);
}

}  // namespace

std::filesystem::path weights_of(const std::filesystem::path& run_or_weights) {
    const bool is_run = std::filesystem::is_directory(run_or_weights);
    const auto path = is_run ? run_or_weights / "weights.safetensors" : run_or_weights;
    if (!std::filesystem::exists(path)) {
        throw Error(str(path.string(), ": no such file",
                        is_run ? "; a run has it from its first checkpoint after an epoch on" : ""));
    }
    return path;
}

std::vector<PictureBox> merge_tiles(std::vector<TiledBox> boxes) {
    std::ranges::stable_sort(boxes, [](const TiledBox& a, const TiledBox& b) {
        return a.is_cut != b.is_cut ? b.is_cut : a.box.score > b.box.score;
    });
    std::vector<TiledBox> taken;
    for (const TiledBox& candidate : boxes) {
        const bool is_known = std::ranges::any_of(taken, [&](const TiledBox& known) {
            return known.tile != candidate.tile && known.box.class_index == candidate.box.class_index &&
                   is_same_object(known.box, candidate.box);
        });
        if (!is_known) {
            taken.push_back(candidate);
        }
    }
    std::vector<PictureBox> merged;
    for (const TiledBox& item : taken) {
        merged.push_back(item.box);
    }
    std::ranges::stable_sort(merged, std::ranges::greater{}, &PictureBox::score);
    return merged;
}

struct Predictor::State {
    NetworkFacts facts;
    std::shared_ptr<Yolov10> network;

    bool is_published() const { return facts.scaling.rule == sharding::ScalingRule::published; }

    std::vector<PictureBox> look(const Image& image, const PredictOptions& options) const {
        const auto micro =
            letterboxed(image, is_published() ? sharding::Canvas::of_sample({image.width, image.height}, facts.scaling)
                                              : sharding::Canvas::square(static_cast<std::uint32_t>(facts.image_size)));
        const DecodedMaps decoded =
            decode_maps(network->forward(image_tensor(micro, at::kFloat)).one_to_one, Yolov10::strides);
        std::vector<PictureBox> found;
        const auto selected = select_detections(decoded, options.min_score, options.max_detections);
        for (const Detection& detection : selected.front()) {
            found.push_back(to_source(detection, micro.letterboxes.front()));
        }
        return found;
    }
};

Predictor::Predictor(const std::filesystem::path& run_or_weights, const std::optional<NetworkFacts>& facts)
    : state_(std::make_unique<State>()) {
    const auto path = weights_of(run_or_weights);
    state_->facts = facts ? *facts : read_network_facts(path);
    const auto& known = state_->facts;
    if (!known.model.starts_with("yolo")) {
        throw base::UsageError(
            str(path.string(), " holds a ", known.model, "; predict draws boxes and needs a detector"));
    }
    state_->network =
        make_detector({known.model, static_cast<std::int64_t>(known.classes.size()), known.image_size}, 0);
    load_whole_network(*state_->network, path, str(known.model, " with ", known.classes.size(), " classes"));
    state_->network->eval();
    state_->network->fuse_for_deployment();
}

Predictor::~Predictor() = default;

const NetworkFacts& Predictor::facts() const {
    return state_->facts;
}

std::vector<PictureBox> Predictor::predict(const Image& image, const PredictOptions& options) {
    const at::NoGradGuard no_grad;
    const auto side = static_cast<std::uint32_t>(state_->facts.image_size);
    const std::uint32_t longest = std::max(image.width, image.height);
    const bool is_large = longest > tiling_from * side && !state_->is_published();
    const std::uint32_t tile = options.tile.value_or(is_large ? side : 0);
    if (tile == 0 || longest <= tile) {
        return state_->look(image, options);
    }
    std::vector<TiledBox> seen;
    const auto tiles =
        sharding::tiles_of({image.width, image.height}, {.side = tile, .overlap = options.overlap.value_or(tile / 4)});
    for (std::size_t i = 0; i < tiles.size(); ++i) {
        const Rectangle& part = tiles[i];
        for (PictureBox box : state_->look(sharding::crop(image, part.x, part.y, part.width, part.height), options)) {
            box.x1 += part.x;
            box.x2 += part.x;
            box.y1 += part.y;
            box.y2 += part.y;
            seen.push_back({box, i, touches_inner_border(box, part, image)});
        }
    }
    return merge_tiles(std::move(seen));
}

}  // namespace lockstep::trainer
