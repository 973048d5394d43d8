#include "trainer/losses/assigner.h"

#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "trainer/losses/anchors_in_box.h"
#include "trainer/losses/complete_iou.h"

namespace lockstep::trainer {
namespace {

// Keeps the division by a box's greatest metric defined.
constexpr double least_metric = 1e-9;

/// A box's interest in an anchor.
template <typename T>
struct Match {
    std::int64_t anchor = 0;
    std::int64_t box = 0;
    T metric = 0;
    T overlap = 0;
};

/// The definition, image by image, over the tensors of a batch.
template <typename T>
class ImageAssigner {
  public:
    ImageAssigner(const at::Tensor& probabilities, const at::Tensor& boxes, const AnchorPoints& anchors,
                  const DetectionTargets& targets, std::int64_t topk, double alpha)
        : topk_(topk),
          alpha_(static_cast<T>(alpha)),
          anchors_in_box_(anchors),
          probabilities_(probabilities.accessor<T, 3>()),
          predicted_(boxes.accessor<T, 3>()),
          targets_(targets.boxes.accessor<T, 3>()),
          classes_(targets.classes.accessor<std::int64_t, 2>()),
          real_(targets.real.accessor<bool, 2>()) {}

    void operator()(std::int64_t image, at::TensorAccessor<std::int64_t, 1> box, at::TensorAccessor<T, 1> score,
                    at::TensorAccessor<T, 1> metric) {
        claims_.assign(probabilities_.size(1), 0);
        claimant_.assign(probabilities_.size(1), {});
        nearest_.assign(probabilities_.size(1), {});
        for (std::int64_t target = 0; target < targets_.size(1); ++target) {
            if (real_[image][target]) {
                find_candidates(image, target);
                keep_best_candidates();
                for (const Match<T>& match : candidates_) {
                    ++claims_[match.anchor];
                    claimant_[match.anchor] = match;
                }
            }
        }
        score_winners(box, score, metric);
    }

  private:
    void find_candidates(std::int64_t image, std::int64_t target) {
        const std::int64_t true_class = classes_[image][target];
        LOCKSTEP_CHECK(true_class >= 0 && true_class < probabilities_.size(2), "class ", true_class,
                       " of a target, with ", probabilities_.size(2), " classes");
        const Box<T> box = box_of(targets_[image][target]);
        candidates_.clear();
        anchors_in_box_.for_each(box, [&](std::int64_t anchor) {
            const T iou = complete_iou(box_of(predicted_[image][anchor]), box);
            // Comparisons that turn a diverged network's NaN into 0, so that sorting stays defined; the loss shows the
            // NaN.
            const T overlap = iou > 0 ? iou : T(0);
            const T square = overlap * overlap;
            const T score = probabilities_[image][anchor][true_class];
            const T metric =
                (alpha_ == T(0.5) ? std::sqrt(score) : std::pow(score, alpha_)) * (square * square * square);
            candidates_.push_back(
                {.anchor = anchor, .box = target, .metric = metric > 0 ? metric : T(0), .overlap = overlap});
            if (overlap > nearest_[anchor].overlap) {
                nearest_[anchor] = candidates_.back();
            }
        });
    }

    /// Leaves the candidates that are among the topk anchors of the image. Of the anchors with metric zero, most of
    /// which are no candidates, the lowest take the places that are left.
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
            const std::int64_t zeros_before = match.anchor - positive_before;
            const bool is_positive = match.metric > 0;
            positive_before += is_positive;
            if (is_positive || zeros_before < topk_ - positive) {
                candidates_[kept++] = match;
            }
        }
        candidates_.resize(kept);
    }

    void score_winners(at::TensorAccessor<std::int64_t, 1> box, at::TensorAccessor<T, 1> score,
                       at::TensorAccessor<T, 1> metric) {
        greatest_.assign(targets_.size(1), {});
        for (std::size_t anchor = 0; anchor < claimant_.size(); ++anchor) {
            Match<T>& winner = claimant_[anchor];
            if (claims_[anchor] > 1) {
                winner = nearest_[anchor];
            }
            Match<T>& greatest = greatest_[winner.box];
            greatest.metric = std::max(greatest.metric, winner.metric);
            greatest.overlap = std::max(greatest.overlap, winner.overlap);
        }
        for (std::size_t anchor = 0; anchor < claimant_.size(); ++anchor) {
            const Match<T>& winner = claimant_[anchor];
            const Match<T>& greatest = greatest_[winner.box];
            box[anchor] = winner.box;
            metric[anchor] = winner.metric;
            score[anchor] = winner.metric / (greatest.metric + T(least_metric)) * greatest.overlap;
        }
    }

    std::int64_t topk_;
    T alpha_;
    AnchorsInBox<T> anchors_in_box_;
    at::TensorAccessor<T, 3> probabilities_, predicted_, targets_;
    at::TensorAccessor<std::int64_t, 2> classes_;
    at::TensorAccessor<bool, 2> real_;

    std::vector<Match<T>> candidates_;  // of one target, anchors ascending until the best are chosen
    std::vector<std::int32_t> claims_;  // for each anchor, as are the next two
    std::vector<Match<T>> claimant_;
    std::vector<Match<T>> nearest_;   // greatest overlap among all targets
    std::vector<Match<T>> greatest_;  // for each target: greatest metric and greatest overlap of the anchors it got
};

}  // namespace

TaskAlignedAssigner::TaskAlignedAssigner(std::int64_t topk, double alpha) : topk_(topk), alpha_(alpha) {
    LOCKSTEP_CHECK(topk >= 1, "topk is ", topk);
    LOCKSTEP_CHECK(alpha >= 0, "alpha is ", alpha);
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
    Assignment result{.box = at::empty({images, anchor_count}, targets.classes.options()),
                      .score = at::empty({images, anchor_count}, probabilities.options()),
                      .metric = at::empty({images, anchor_count}, probabilities.options())};
    AT_DISPATCH_FLOATING_TYPES(probabilities.scalar_type(), "assign_targets", [&] {
        ImageAssigner<scalar_t> assign_image(probabilities, boxes, anchors, targets, topk_, alpha_);
        auto box = result.box.accessor<std::int64_t, 2>();
        auto score = result.score.accessor<scalar_t, 2>();
        auto metric = result.metric.accessor<scalar_t, 2>();
        for (std::int64_t image = 0; image < images; ++image) {
            assign_image(image, box[image], score[image], metric[image]);
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
        at::minimum(centres - corners.narrow(-1, 0, 2), corners.narrow(-1, 2, 2) - centres).amin(-1) > box_border;
    const auto is_candidate = inside & targets.real.unsqueeze(2);

    const auto of_class =
        targets.classes.masked_fill(~targets.real, 0).unsqueeze(2).expand({images, box_count, anchor_count});
    const auto probability = probabilities.transpose(1, 2).gather(1, of_class);
    const auto iou = complete_iou(boxes.unsqueeze(1), corners);
    // Comparisons that turn a diverged network's NaN into 0, as in the loops.
    const auto overlap = iou.masked_fill(~(is_candidate & (iou > 0)), 0);
    const auto square = overlap.square();
    const auto aligned = probability.pow(alpha_) * (square * square * square);
    const auto metric = aligned.masked_fill(~(aligned > 0), 0);

    // topk() breaks ties in any way, argmax takes the first of equals.
    auto claimed = at::zeros_like(is_candidate);
    auto remaining = metric.clone();
    for (std::int64_t place = 0; place < std::min(topk_, anchor_count); ++place) {
        const auto best = remaining.argmax(-1, /*keepdim=*/true);
        claimed.scatter_(-1, best, true);
        remaining.scatter_(-1, best, -1);
    }
    claimed = claimed & is_candidate;

    const auto rows = at::arange(box_count, targets.classes.options()).view({1, box_count, 1});
    const auto is_nearest = rows == overlap.argmax(1, /*keepdim=*/true);
    const auto is_disputed = claimed.sum(1, /*keepdim=*/true) > 1;
    const auto won = (claimed & ~is_disputed) | (is_nearest & is_disputed);

    const auto won_metric = metric * won;
    const auto greatest_metric = won_metric.amax(-1, /*keepdim=*/true);
    const auto greatest_overlap = (overlap * won).amax(-1, /*keepdim=*/true);
    const auto score = won_metric / (greatest_metric + least_metric) * greatest_overlap;
    // At most one box has won an anchor, so the greatest score of a column is its only one.
    auto [best_score, best_box] = score.max(1);
    return {.box = best_box, .score = best_score, .metric = won_metric.amax(1)};
}

}  // namespace lockstep::trainer
