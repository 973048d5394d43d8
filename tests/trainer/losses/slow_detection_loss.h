#pragma once

#include <array>
#include <vector>

namespace lockstep::trainer::slow {

// The detection loss as its papers and the published recipe state it, for one image and one head: plain loops in
// double, no tensor, nothing shared with the code under test. This is the version to read first.

struct Corners {
    double x1, y1, x2, y2;
};

struct Anchor {
    double x, y;  ///< in units of the stride
    double stride;
};

struct Target {
    Corners box;  ///< pixels
    int label;
    bool real;
};

/// What a head gives for one anchor.
struct Prediction {
    std::array<std::array<double, 16>, 4> distance_logits;  ///< left, top, right, bottom
    std::vector<double> class_logits;
};

struct Gains {
    double box, classification, distribution;
};

/// alpha of CIoU for a box and its target: a weight that no gradient goes through.
double aspect_weight(const Corners& box, const Corners& target);
/// CIoU with a given alpha; with aspect_weight(box, target) it is the published one.
double complete_iou(const Corners& box, const Corners& target, double alpha);
double complete_iou(const Corners& box, const Corners& target);

double probability(double logit);
/// In units of the stride.
Corners decode(const Prediction& prediction, const Anchor& anchor);

struct Assigned {
    int target;    ///< -1: background
    double score;  ///< 0 for background
};

struct Assignment {
    std::vector<Assigned> anchors;
    int disputed = 0;         ///< anchors that more than one target claimed
    int zero_candidates = 0;  ///< pairs of a target and an anchor inside it with metric zero
};

/// `class_probabilities` and `boxes` (pixels) for each anchor.
Assignment assign(const std::vector<std::vector<double>>& class_probabilities, const std::vector<Corners>& boxes,
                  const std::vector<Anchor>& anchors, const std::vector<Target>& targets, int topk, double alpha = 0.5);
Assignment assign(const std::vector<Prediction>& predictions, const std::vector<Anchor>& anchors,
                  const std::vector<Target>& targets, int topk);

struct Loss {
    double box = 0, classification = 0, distribution = 0, target_score_sum = 0;  ///< without gains
    double weighted(const Gains& gains) const;
};

/// aspect_weight of each anchor's decoded box and its target, in units of the stride; 0 for background.
std::vector<double> aspect_weights(const std::vector<Prediction>& predictions, const std::vector<Anchor>& anchors,
                                   const std::vector<Target>& targets, const Assignment& assignment);

/// Undivided sums. The weights are an argument so that the function can be differentiated numerically while they and
/// the assignment stay as they are.
Loss loss(const std::vector<Prediction>& predictions, const std::vector<Anchor>& anchors,
          const std::vector<Target>& targets, const Assignment& assignment, const std::vector<double>& aspect_weights);

}  // namespace lockstep::trainer::slow
