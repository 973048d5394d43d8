#include "trainer/losses/detection_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>

#include <span>

#include "base/error.h"
#include "trainer/losses/head_loss.h"
#include "trainer/models/decode.h"

namespace lockstep::trainer {
namespace {

/// One head's output and the ground truth in the type that the loss is computed in, contiguous.
struct HeadInputs {
    HeadPredictions predictions;
    AnchorPoints anchors;
    DetectionTargets targets;
};

HeadInputs prepare(const std::vector<at::Tensor>& levels, const DetectionTargets& targets,
                   const DetectionLossOptions& options) {
    LOCKSTEP_CHECK_EQ(levels.size(), options.strides.size(), "levels and strides");
    LOCKSTEP_CHECK(targets.boxes.size(1) >= 1, "the targets have room for no box");
    const std::int64_t images = targets.boxes.size(0);
    std::vector<at::Tensor> distances, classes;
    for (const at::Tensor& level : levels) {
        LOCKSTEP_CHECK_EQ(level.size(0), images, "images in the output and in the targets");
        LOCKSTEP_CHECK_EQ(level.size(1), distance_channels + options.classes, "channels of a head's level");
        const std::int64_t anchors = level.size(2) * level.size(3);
        const auto kinds = level.permute({0, 2, 3, 1}).split_with_sizes({distance_channels, options.classes}, -1);
        distances.push_back(kinds[0].reshape({images, anchors, distance_channels}));
        classes.push_back(kinds[1].reshape({images, anchors, options.classes}));
    }
    const at::ScalarType type = levels.front().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    HeadInputs inputs{
        .predictions = {.distances = at::cat(distances, 1).to(type), .classes = at::cat(classes, 1).to(type)},
        .anchors = {},
        .targets = {.boxes = targets.boxes.to(type).contiguous(),
                    .classes = targets.classes.contiguous(),
                    .real = targets.real.contiguous()},
    };
    inputs.anchors = make_anchor_points(spatial_sizes(levels), options.strides, inputs.predictions.distances.options());
    return inputs;
}

Assignment assign_anchors(const HeadInputs& inputs, const TaskAlignedAssigner& assigner) {
    const at::NoGradGuard no_grad;
    const auto& [predictions, anchors, targets] = inputs;
    const auto boxes = predictions.distances.is_cpu() ? decode_boxes_in_targets(predictions.distances, anchors, targets)
                                                      : decode_boxes(predictions.distances, anchors);
    return assigner(at::sigmoid(predictions.classes), boxes * anchors.strides, anchors, targets);
}

}  // namespace

DetectionLoss::DetectionLoss(DetectionLossOptions options) : options_(std::move(options)) {}

comm::LossSums DetectionLoss::operator()(const DetectorOutput& output, const DetectionTargets& targets) const {
    comm::LossSums result;
    const auto add_head = [&](const std::vector<at::Tensor>& levels, Head which) {
        const HeadInputs inputs = prepare(levels, targets, options_);
        const auto head_loss =
            inputs.predictions.distances.is_cpu() ? head_loss_with_loops : head_loss_with_tensor_operations;
        const HeadSums head = head_loss(inputs.predictions, inputs.anchors, inputs.targets,
                                        assign_anchors(inputs, assigner_of(which)), options_.gains);
        result.sums.push_back(head.sum);
        result.denominators.push_back(head.denominator);
        result.parts.push_back(head.parts);
    };
    add_head(output.one_to_many, one_to_many);
    add_head(output.one_to_one, one_to_one);
    return result;
}

Assignment DetectionLoss::assign(Head head, const DetectorOutput& output, const DetectionTargets& targets) const {
    return assign_anchors(prepare(head == one_to_many ? output.one_to_many : output.one_to_one, targets, options_),
                          assigner_of(head));
}

TaskAlignedAssigner DetectionLoss::assigner_of(Head head) const {
    return head == one_to_many ? TaskAlignedAssigner(options_.one_to_many_topk)
                               : TaskAlignedAssigner(options_.one_to_one_topk, options_.one_to_one_alpha);
}

}  // namespace lockstep::trainer
