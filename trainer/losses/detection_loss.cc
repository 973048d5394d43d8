#include "trainer/losses/detection_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>

#include <span>

#include "base/error.h"
#include "trainer/losses/head_loss.h"

namespace lockstep::trainer {
namespace {

/// One head's output and the ground truth in the type that the loss is computed in.
struct HeadInputs {
    at::Tensor predictions;  // B x A x (distance_channels + classes)
    AnchorPoints anchors;
    DetectionTargets targets;
};

HeadInputs prepare(const std::vector<at::Tensor>& levels, const DetectionTargets& targets,
                   const DetectionLossOptions& options) {
    LOCKSTEP_CHECK_EQ(levels.size(), options.strides.size(), "levels and strides");
    const std::int64_t channels = distance_channels + options.classes;
    const at::ScalarType type = levels.front().scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    std::vector<at::Tensor> rows;
    for (const at::Tensor& level : levels) {
        LOCKSTEP_CHECK_EQ(level.size(1), channels, "channels of a head with ", options.classes, " classes");
        LOCKSTEP_CHECK_EQ(level.size(0), targets.boxes.size(0), "images in output and targets");
        rows.push_back(level.permute({0, 2, 3, 1}).reshape({level.size(0), level.size(2) * level.size(3), channels}));
    }
    LOCKSTEP_CHECK(targets.boxes.size(1) >= 1, "the targets have room for no box");
    HeadInputs inputs{.predictions = at::cat(rows, 1).to(type), .anchors = {}, .targets = targets};
    inputs.anchors = make_anchor_points(spatial_sizes(levels), options.strides, inputs.predictions.options());
    inputs.targets.boxes = targets.boxes.to(type);
    return inputs;
}

Assignment assign_anchors(const HeadInputs& inputs, std::int64_t topk) {
    const at::NoGradGuard no_grad;
    const auto& predictions = inputs.predictions;
    const auto logits = predictions.narrow(2, distance_channels, predictions.size(2) - distance_channels);
    const auto boxes = decode_boxes(predictions, inputs.anchors) * inputs.anchors.strides;
    return TaskAlignedAssigner(topk)(at::sigmoid(logits), boxes, inputs.anchors, inputs.targets);
}

}  // namespace

DetectionLoss::DetectionLoss(DetectionLossOptions options) : options_(std::move(options)) {}

comm::LossSums DetectionLoss::operator()(const DetectorOutput& output, const DetectionTargets& targets) const {
    comm::LossSums result;
    const auto add_head = [&](const std::vector<at::Tensor>& levels, std::int64_t topk) {
        const HeadInputs inputs = prepare(levels, targets, options_);
        const auto head_loss = inputs.predictions.is_cpu() ? head_loss_with_loops : head_loss_with_tensor_operations;
        const HeadSums head =
            head_loss(inputs.predictions, inputs.anchors, inputs.targets, assign_anchors(inputs, topk), options_.gains);
        result.sums.push_back(head.sum);
        result.denominators.push_back(head.denominator);
        result.parts.push_back(head.parts);
    };
    add_head(output.one_to_many, options_.one_to_many_topk);
    add_head(output.one_to_one, options_.one_to_one_topk);
    return result;
}

Assignment DetectionLoss::assign(Head head, const DetectorOutput& output, const DetectionTargets& targets) const {
    return head == one_to_many
               ? assign_anchors(prepare(output.one_to_many, targets, options_), options_.one_to_many_topk)
               : assign_anchors(prepare(output.one_to_one, targets, options_), options_.one_to_one_topk);
}

}  // namespace lockstep::trainer
