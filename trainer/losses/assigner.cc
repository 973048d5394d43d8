#include "trainer/losses/assigner.h"

#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <span>
#include <vector>

#include "base/error.h"
#include "trainer/losses/complete_iou.h"

namespace lockstep::trainer {
namespace {

// A centre this near to the border of a box, in pixels, counts as outside.
constexpr double border = 1e-9;
// Keeps the division by a box's greatest metric defined.
constexpr double least_metric = 1e-9;

template <typename T>
struct Match {
    std::int64_t anchor = 0;
    std::int64_t box = 0;
    T metric = 0;
    T overlap = 0;
};

template <typename T>
Box<T> box_at(const T* corners, std::int64_t index) {
    const T* c = corners + 4 * index;
    return {c[0], c[1], c[2], c[3]};
}

/// One image at a time, with buffers that live over the batch.
template <typename T>
class ImageAssigner {
  public:
    ImageAssigner(const AnchorPoints& anchors, std::int64_t classes, std::int64_t boxes, std::int64_t topk)
        : centres_((anchors.points * anchors.strides).contiguous()),
          anchors_(centres_.size(0)),
          classes_(classes),
          boxes_(boxes),
          topk_(topk) {}

    void operator()(const T* probabilities, const T* predicted, const T* targets, const std::int64_t* target_classes,
                    const bool* real, std::int64_t* assigned, T* scores) {
        claims_.assign(anchors_, 0);
        claimant_.assign(anchors_, {});
        nearest_.assign(anchors_, {});
        for (std::int64_t box = 0; box < boxes_; ++box) {
            if (real[box]) {
                LOCKSTEP_CHECK(target_classes[box] >= 0 && target_classes[box] < classes_, "target class ",
                               target_classes[box], " of a network with ", classes_, " classes");
                find_candidates(box, box_at(targets, box), probabilities + target_classes[box], predicted);
                keep_best_candidates();
                for (const Match<T>& match : candidates_) {
                    ++claims_[match.anchor];
                    claimant_[match.anchor] = match;
                }
            }
        }
        score_winners(assigned, scores);
    }

  private:
    void find_candidates(std::int64_t box, const Box<T>& target, const T* probabilities, const T* predicted) {
        candidates_.clear();
        const T* centre = centres_.template const_data_ptr<T>();
        for (std::int64_t anchor = 0; anchor < anchors_; ++anchor, centre += 2) {
            const T horizontal = std::min(centre[0] - target.x1, target.x2 - centre[0]);
            const T vertical = std::min(centre[1] - target.y1, target.y2 - centre[1]);
            if (!(std::min(horizontal, vertical) > T(border))) {
                continue;
            }
            Match<T> match{.anchor = anchor, .box = box};
            const T iou = complete_iou(box_at(predicted, anchor), target);
            // Written so that a diverged network's NaN becomes 0 and sorting stays defined; the loss itself shows the
            // NaN.
            match.overlap = iou > 0 ? iou : T(0);
            const T square = match.overlap * match.overlap;
            const T metric = std::sqrt(probabilities[anchor * classes_]) * (square * square * square);
            match.metric = metric > 0 ? metric : T(0);
            if (match.overlap > nearest_[anchor].overlap) {
                nearest_[anchor] = match;
            }
            candidates_.push_back(match);
        }
    }

    /// Leaves the candidates that are among the topk anchors of the image. Of the anchors with metric zero, most of
    /// which are no candidates, the lowest fill the places that are left.
    void keep_best_candidates() {
        const std::int64_t positive = std::count_if(candidates_.begin(), candidates_.end(),
                                                    [](const Match<T>& match) { return match.metric > 0; });
        if (positive >= topk_) {
            std::nth_element(candidates_.begin(), candidates_.begin() + (topk_ - 1), candidates_.end(),
                             [](const Match<T>& a, const Match<T>& b) {
                                 return a.metric != b.metric ? a.metric > b.metric : a.anchor < b.anchor;
                             });
            candidates_.resize(topk_);
            return;
        }
        std::int64_t positive_before = 0;
        std::size_t kept = 0;
        for (const Match<T>& match : candidates_) {
            const bool is_positive = match.metric > 0;
            const std::int64_t zeros_before = match.anchor - positive_before;
            if (is_positive || zeros_before < topk_ - positive) {
                candidates_[kept++] = match;
            }
            positive_before += is_positive;
        }
        candidates_.resize(kept);
    }

    void score_winners(std::int64_t* assigned, T* scores) {
        greatest_.assign(boxes_, {});
        for (std::int64_t anchor = 0; anchor < anchors_; ++anchor) {
            if (claims_[anchor] > 1) {
                claimant_[anchor] = nearest_[anchor];
            }
            const Match<T>& winner = claimant_[anchor];
            Match<T>& greatest = greatest_[winner.box];
            greatest.metric = std::max(greatest.metric, winner.metric);
            greatest.overlap = std::max(greatest.overlap, winner.overlap);
        }
        for (std::int64_t anchor = 0; anchor < anchors_; ++anchor) {
            const Match<T>& winner = claimant_[anchor];
            const Match<T>& greatest = greatest_[winner.box];
            assigned[anchor] = winner.box;
            scores[anchor] = winner.metric / (greatest.metric + T(least_metric)) * greatest.overlap;
        }
    }

    at::Tensor centres_;  // A x 2, pixels
    std::int64_t anchors_;
    std::int64_t classes_;
    std::int64_t boxes_;
    std::int64_t topk_;
    std::vector<Match<T>> candidates_;  // of one box, by anchor
    std::vector<std::int32_t> claims_;  // per anchor, as are the next two
    std::vector<Match<T>> claimant_;
    std::vector<Match<T>> nearest_;   // of greatest overlap among all boxes
    std::vector<Match<T>> greatest_;  // per box: greatest metric and greatest overlap of the anchors it got
};

}  // namespace

TaskAlignedAssigner::TaskAlignedAssigner(std::int64_t topk) : topk_(topk) {
    LOCKSTEP_CHECK(topk >= 1, "topk is ", topk);
}

Assignment TaskAlignedAssigner::operator()(const at::Tensor& probabilities, const at::Tensor& boxes,
                                           const AnchorPoints& anchors, const DetectionTargets& targets) const {
    return probabilities.is_cpu() ? with_loops(probabilities, boxes, anchors, targets)
                                  : with_tensor_operations(probabilities, boxes, anchors, targets);
}

Assignment TaskAlignedAssigner::with_loops(const at::Tensor& probabilities, const at::Tensor& boxes,
                                           const AnchorPoints& anchors, const DetectionTargets& targets) const {
    const at::NoGradGuard no_grad;
    const std::int64_t images = probabilities.size(0), anchor_count = probabilities.size(1);
    const std::int64_t classes = probabilities.size(2), box_count = targets.boxes.size(1);
    const auto likely = probabilities.contiguous(), predicted = boxes.contiguous(),
               corners = targets.boxes.contiguous();
    const auto target_classes = targets.classes.contiguous(), real = targets.real.contiguous();

    Assignment result{.box = at::zeros_like(probabilities.select(2, 0), at::kLong, at::MemoryFormat::Contiguous),
                      .score = at::zeros_like(probabilities.select(2, 0), at::MemoryFormat::Contiguous)};
    AT_DISPATCH_FLOATING_TYPES(probabilities.scalar_type(), "assign_targets", [&] {
        ImageAssigner<scalar_t> assign_image(anchors, classes, box_count, topk_);
        for (std::int64_t image = 0; image < images; ++image) {
            assign_image(likely.const_data_ptr<scalar_t>() + image * anchor_count * classes,
                         predicted.const_data_ptr<scalar_t>() + image * anchor_count * 4,
                         corners.const_data_ptr<scalar_t>() + image * box_count * 4,
                         target_classes.const_data_ptr<std::int64_t>() + image * box_count,
                         real.const_data_ptr<bool>() + image * box_count,
                         result.box.mutable_data_ptr<std::int64_t>() + image * anchor_count,
                         result.score.mutable_data_ptr<scalar_t>() + image * anchor_count);
        }
    });
    return result;
}

Assignment TaskAlignedAssigner::with_tensor_operations(const at::Tensor& probabilities, const at::Tensor& boxes,
                                                       const AnchorPoints& anchors,
                                                       const DetectionTargets& targets) const {
    const at::NoGradGuard no_grad;
    const std::int64_t images = probabilities.size(0), anchor_count = probabilities.size(1);
    const std::int64_t box_count = targets.boxes.size(1);

    // B x M x A from here on: a row for each box.
    const auto centres = (anchors.points * anchors.strides).view({1, 1, anchor_count, 2});
    const auto corners = targets.boxes.unsqueeze(2);
    const auto inside =
        at::minimum(centres - corners.narrow(-1, 0, 2), corners.narrow(-1, 2, 2) - centres).amin(-1) > border;
    const auto is_candidate = inside.logical_and(targets.real.unsqueeze(2));

    const auto of_class = targets.classes.masked_fill(targets.real.logical_not(), 0)
                              .unsqueeze(2)
                              .expand({images, box_count, anchor_count});
    const auto probability = probabilities.transpose(1, 2).gather(1, of_class);
    const auto overlap = complete_iou(boxes.unsqueeze(1), corners).clamp_min(0) * is_candidate;
    const auto square = overlap.square();
    const auto metric = probability.sqrt() * (square * square * square) * is_candidate;

    // topk() breaks ties in any way, argmax takes the first of equals.
    auto claimed = at::zeros_like(is_candidate);
    auto remaining = metric.clone();
    for (std::int64_t place = 0; place < std::min(topk_, anchor_count); ++place) {
        const auto best = remaining.argmax(-1, /*keepdim=*/true);
        claimed.scatter_(-1, best, true);
        remaining.scatter_(-1, best, -1);
    }
    claimed = claimed.logical_and(is_candidate);

    const auto rows = at::arange(box_count, targets.classes.options()).view({1, box_count, 1});
    const auto is_nearest = rows == overlap.argmax(1, /*keepdim=*/true);
    const auto is_disputed = claimed.sum(1, /*keepdim=*/true) > 1;
    const auto won = at::where(is_disputed, is_nearest, claimed);

    const auto won_metric = metric * won;
    const auto greatest_metric = won_metric.amax(-1, /*keepdim=*/true);
    const auto greatest_overlap = (overlap * won).amax(-1, /*keepdim=*/true);
    const auto score = won_metric / (greatest_metric + least_metric) * greatest_overlap;
    // At most one box has won an anchor, so the greatest score of a column is its only one.
    auto [best_score, best_box] = score.max(1);
    return {.box = best_box, .score = best_score};
}

}  // namespace lockstep::trainer
