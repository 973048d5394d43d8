#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/resources.h"
#include "sharding/image.h"
#include "trainer/batch_tensors.h"
#include "trainer/evaluation/coco_evaluation.h"
#include "trainer/evaluation/distributed_evaluation.h"
#include "trainer/letterbox_boxes.h"
#include "trainer/losses/detection_loss.h"
#include "trainer/models/decode.h"
#include "trainer/models/model_factory.h"
#include "trainer/models/yolov10.h"
#include "trainer/precision.h"
#include "trainer/tasks.h"

namespace lockstep::trainer {
namespace {

std::vector<std::string> part_names_of(const std::string& head) {
    std::vector<std::string> names;
    for (const char* part : DetectionLoss::part_names) {
        names.push_back(base::str(head, "_", part));
    }
    return names;
}

class DetectionTask final : public Task {
  public:
    DetectionTask(const Recipe& recipe, std::int64_t classes, std::int64_t max_boxes)
        : network_(make_detector({recipe.model, classes, recipe.image_size}, static_cast<std::uint64_t>(recipe.seed))),
          loss_({.classes = classes,
                 .gains = {.box = recipe.box_gain,
                           .classification = recipe.classification_gain,
                           .distribution = recipe.distribution_gain},
                 .one_to_one_alpha = recipe.one_to_one_alpha}),
          max_boxes_(max_boxes),
          type_(weight_type(recipe)),
          autocast_(recipe.precision == "bf16"),
          shares_statistics_(recipe.batch_norm == "sync") {
        prepare_network(*network_, recipe);
    }

    torch::nn::Module& network() override { return *network_; }
    std::int32_t head_of(const std::string& parameter) const override {
        return parameter.find("one2one") == std::string::npos ? DetectionLoss::one_to_many : DetectionLoss::one_to_one;
    }
    std::vector<std::vector<std::string>> part_names() const override {
        return {part_names_of("many"), part_names_of("one")};
    }
    std::string headline() const override { return "AP50"; }

    comm::LossSums losses(const sharding::MicroBatch& micro) override {
        if (micro.count == 0 && !shares_statistics_) {
            return no_losses(2, DetectionLoss::part_names.size());
        }
        return loss_(forward(micro), detection_targets(micro, max_boxes_, type_));
    }

    Evaluation evaluate(const sharding::Dataset& data, const EvaluationOptions& options,
                        comm::Communicator& communicator) override;

  private:
    DetectorOutput forward(const sharding::MicroBatch& micro) {
        const AutocastScope autocast(autocast_);
        return network_->forward(image_tensor(micro, type_));
    }

    std::shared_ptr<Yolov10> network_;
    DetectionLoss loss_;
    std::int64_t max_boxes_;
    at::ScalarType type_;
    bool autocast_;
    bool shares_statistics_;  ///< an empty micro-batch, too, has its part in the batch norms' collectives
};

/// What the images of one rank hold and what was found in them, in source pixels.
class Findings {
  public:
    explicit Findings(const sharding::Dataset& data) : data_(data) {}

    void add_image(std::uint64_t id, const std::vector<PictureBox>& found) {
        const auto image_id = static_cast<std::int64_t>(id);
        image_ids_.push_back(image_id);
        for (const auto& box : data_.sample(id).boxes) {
            boxes_.push_back({.image_id = image_id,
                              .category = box.class_index,
                              .box = {box.x1, box.y1, double{box.x2} - box.x1, double{box.y2} - box.y1},
                              .area = box.area,
                              .crowd = (box.flags & sharding::box_crowd) != 0,
                              .ignore = (box.flags & sharding::box_difficult) != 0,
                              .id = static_cast<std::int64_t>(boxes_.size()) + 1});
        }
        for (const auto& box : found) {
            detections_.push_back(
                {image_id, box.class_index, {box.x1, box.y1, box.x2 - box.x1, box.y2 - box.y1}, box.score});
        }
    }

    /// Collective. Difficult boxes are neither misses nor hits, as Pascal VOC has them.
    coco::Result score(comm::Communicator& communicator) const {
        std::vector<std::int64_t> categories(data_.classes().size());
        std::iota(categories.begin(), categories.end(), 0);
        const coco::Options options{.honor_ignore = true, .threads = 1};
        return coco::accumulate_over_ranks(coco::match_images(image_ids_, categories, boxes_, detections_, options),
                                           data_.size(), communicator, 1);
    }

  private:
    const sharding::Dataset& data_;
    std::vector<std::int64_t> image_ids_;
    std::vector<coco::GroundTruthBox> boxes_;
    std::vector<coco::Detection> detections_;
};

Picture picture_of(const sharding::Dataset& data, std::uint64_t id, std::vector<PictureBox> found) {
    std::vector<std::uint8_t> room;
    const sharding::Sample sample = data.read(id, room);
    Picture picture{.caption = data.file_name(id),
                    .width = sample.width,
                    .height = sample.height,
                    .pixels = {},
                    .truth = {},
                    .predicted = std::move(found)};
    if (data.encoding() == sharding::Encoding::raw) {
        picture.pixels.assign(sample.bytes.begin(), sample.bytes.end());
    } else {
        picture.pixels = sharding::decode_rgb(sample.bytes, picture.caption).pixels;
    }
    for (const auto& box : sample.boxes) {
        picture.truth.push_back({box.x1, box.y1, box.x2, box.y2, 1, box.class_index});
    }
    return picture;
}

Evaluation DetectionTask::evaluate(const sharding::Dataset& data, const EvaluationOptions& options,
                                   comm::Communicator& communicator) {
    const double started = base::monotonic_seconds();
    const at::NoGradGuard no_grad;
    network_->eval();
    const auto share = evaluation_share(data, communicator);
    // Spread over the rank's images, so that the report shows more than the data set's first corner.
    const std::uint64_t picture_every =
        std::max<std::uint64_t>(1, share.count() / std::max<std::uint64_t>(1, options.pictures));
    sharding::SequentialReader reader(data, share,
                                      {.image_size = options.image_size,
                                       .scaling = options.scaling,
                                       .batch = options.batch,
                                       .threads = options.threads});
    Findings findings(data);
    Evaluation result;
    while (auto micro = reader.next()) {
        const DecodedMaps decoded = decode_maps(forward(*micro).one_to_one, Yolov10::strides);
        const auto selected = select_detections(decoded, options.min_score, options.max_detections);
        for (std::size_t i = 0; i < selected.size(); ++i) {
            std::vector<PictureBox> found;
            for (const Detection& detection : selected[i]) {
                found.push_back(to_source(detection, micro->letterboxes[i]));
            }
            const std::uint64_t id = micro->sample_ids[i];
            findings.add_image(id, found);
            if (result.pictures.size() < options.pictures && (id - share.begin) % picture_every == 0) {
                result.pictures.push_back(picture_of(data, id, std::move(found)));
            }
        }
        reader.give_back(std::move(*micro));
    }
    network_->train();
    const coco::Result scores = findings.score(communicator);
    for (std::size_t i = 0; i < coco::stat_names.size(); ++i) {
        result.metrics[std::string(coco::stat_names[i])] = scores.stats[i];
    }
    result.table = coco::summary_text(scores);
    result.seconds = base::monotonic_seconds() - started;
    return result;
}

}  // namespace

std::unique_ptr<Task> make_detection_task(const Recipe& recipe, std::int64_t classes, std::int64_t max_boxes) {
    return std::make_unique<DetectionTask>(recipe, classes, max_boxes);
}

}  // namespace lockstep::trainer
