#include "tests/trainer/losses/slow_detection_loss.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace lockstep::trainer::slow {
namespace {

constexpr double epsilon = 1e-7;

double width(const Corners& box) {
    return box.x2 - box.x1;
}
double height(const Corners& box) {
    return box.y2 - box.y1 + epsilon;
}

double iou(const Corners& a, const Corners& b) {
    const double w = std::max(0.0, std::min(a.x2, b.x2) - std::max(a.x1, b.x1));
    const double h = std::max(0.0, std::min(a.y2, b.y2) - std::max(a.y1, b.y1));
    return w * h / (width(a) * height(a) + width(b) * height(b) - w * h + epsilon);
}

double aspect_difference(const Corners& a, const Corners& b) {
    const double angle = std::atan(width(b) / height(b)) - std::atan(width(a) / height(a));
    return 4.0 / std::pow(std::numbers::pi, 2) * std::pow(angle, 2);
}

std::array<double, 16> softmax(const std::array<double, 16>& logits) {
    std::array<double, 16> result;
    double sum = 0;
    for (int i = 0; i < 16; ++i) {
        sum += result[i] = std::exp(logits[i]);
    }
    for (double& p : result) {
        p /= sum;
    }
    return result;
}

Corners scaled(const Corners& box, double factor) {
    return {box.x1 * factor, box.y1 * factor, box.x2 * factor, box.y2 * factor};
}

bool is_inside(const Anchor& anchor, const Corners& box) {
    const double x = anchor.x * anchor.stride, y = anchor.y * anchor.stride;
    return std::min({x - box.x1, y - box.y1, box.x2 - x, box.y2 - y}) > 1e-9;
}

}  // namespace

double aspect_weight(const Corners& box, const Corners& target) {
    const double v = aspect_difference(box, target);
    return v / (v - iou(box, target) + 1 + epsilon);
}

double complete_iou(const Corners& box, const Corners& target, double alpha) {
    const double centre_x = (target.x1 + target.x2) / 2 - (box.x1 + box.x2) / 2;
    const double centre_y = (target.y1 + target.y2) / 2 - (box.y1 + box.y2) / 2;
    const double enclosing_x = std::max(box.x2, target.x2) - std::min(box.x1, target.x1);
    const double enclosing_y = std::max(box.y2, target.y2) - std::min(box.y1, target.y1);
    const double rho2 = centre_x * centre_x + centre_y * centre_y;
    const double c2 = enclosing_x * enclosing_x + enclosing_y * enclosing_y + epsilon;
    return iou(box, target) - (rho2 / c2 + alpha * aspect_difference(box, target));
}

double complete_iou(const Corners& box, const Corners& target) {
    return complete_iou(box, target, aspect_weight(box, target));
}

double probability(double logit) {
    return 1 / (1 + std::exp(-logit));
}

Corners decode(const Prediction& prediction, const Anchor& anchor) {
    std::array<double, 4> distance{};
    for (int side = 0; side < 4; ++side) {
        const auto p = softmax(prediction.distance_logits[side]);
        for (int bin = 0; bin < 16; ++bin) {
            distance[side] += bin * p[bin];
        }
    }
    return {anchor.x - distance[0], anchor.y - distance[1], anchor.x + distance[2], anchor.y + distance[3]};
}

Assignment assign(const std::vector<std::vector<double>>& class_probabilities, const std::vector<Corners>& boxes,
                  const std::vector<Anchor>& anchors, const std::vector<Target>& targets, int topk, double alpha) {
    const std::size_t anchor_count = anchors.size(), target_count = targets.size();
    using Table = std::vector<std::vector<double>>;
    Table overlap(target_count, std::vector<double>(anchor_count)), metric = overlap;
    std::vector<std::vector<bool>> is_candidate(target_count, std::vector<bool>(anchor_count)), claims = is_candidate;
    Assignment result{.anchors = std::vector<Assigned>(anchor_count, {-1, 0.0})};

    for (std::size_t t = 0; t < target_count; ++t) {
        for (std::size_t a = 0; a < anchor_count; ++a) {
            if (targets[t].real && is_inside(anchors[a], targets[t].box)) {
                is_candidate[t][a] = true;
                overlap[t][a] = std::max(0.0, complete_iou(boxes[a], targets[t].box));
                metric[t][a] = std::pow(class_probabilities[a][targets[t].label], alpha) * std::pow(overlap[t][a], 6.0);
                result.zero_candidates += metric[t][a] == 0;
            }
        }
        // The topk of all anchors; equals stay in the order of their index.
        std::vector<std::size_t> order(anchor_count);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](std::size_t a, std::size_t b) { return metric[t][a] > metric[t][b]; });
        for (std::size_t place = 0; place < std::min<std::size_t>(topk, anchor_count); ++place) {
            claims[t][order[place]] = is_candidate[t][order[place]];
        }
    }

    for (std::size_t a = 0; a < anchor_count; ++a) {
        int claimants = 0;
        std::size_t nearest = 0;
        for (std::size_t t = 0; t < target_count; ++t) {
            if (claims[t][a]) {
                ++claimants;
                result.anchors[a].target = static_cast<int>(t);
            }
            if (overlap[t][a] > overlap[nearest][a]) {
                nearest = t;
            }
        }
        if (claimants > 1) {
            ++result.disputed;
            result.anchors[a].target = static_cast<int>(nearest);
        }
    }

    for (std::size_t t = 0; t < target_count; ++t) {
        double greatest_metric = 0, greatest_overlap = 0;
        for (std::size_t a = 0; a < anchor_count; ++a) {
            if (result.anchors[a].target == static_cast<int>(t)) {
                greatest_metric = std::max(greatest_metric, metric[t][a]);
                greatest_overlap = std::max(greatest_overlap, overlap[t][a]);
            }
        }
        for (std::size_t a = 0; a < anchor_count; ++a) {
            if (result.anchors[a].target == static_cast<int>(t)) {
                result.anchors[a].score = metric[t][a] / (greatest_metric + 1e-9) * greatest_overlap;
            }
        }
    }
    return result;
}

Assignment assign(const std::vector<Prediction>& predictions, const std::vector<Anchor>& anchors,
                  const std::vector<Target>& targets, int topk) {
    std::vector<std::vector<double>> probabilities;
    std::vector<Corners> boxes;
    for (std::size_t a = 0; a < anchors.size(); ++a) {
        std::vector<double> of_anchor;
        for (const double logit : predictions[a].class_logits) {
            of_anchor.push_back(probability(logit));
        }
        probabilities.push_back(of_anchor);
        boxes.push_back(scaled(decode(predictions[a], anchors[a]), anchors[a].stride));
    }
    return assign(probabilities, boxes, anchors, targets, topk);
}

double Loss::weighted(const Gains& gains) const {
    return gains.box * box + gains.classification * classification + gains.distribution * distribution;
}

std::vector<double> aspect_weights(const std::vector<Prediction>& predictions, const std::vector<Anchor>& anchors,
                                   const std::vector<Target>& targets, const Assignment& assignment) {
    std::vector<double> weights(anchors.size());
    for (std::size_t a = 0; a < anchors.size(); ++a) {
        if (const int target = assignment.anchors[a].target; target >= 0) {
            weights[a] =
                aspect_weight(decode(predictions[a], anchors[a]), scaled(targets[target].box, 1 / anchors[a].stride));
        }
    }
    return weights;
}

Loss loss(const std::vector<Prediction>& predictions, const std::vector<Anchor>& anchors,
          const std::vector<Target>& targets, const Assignment& assignment, const std::vector<double>& aspect_weights) {
    Loss sums;
    for (std::size_t a = 0; a < anchors.size(); ++a) {
        const auto [target, score] = assignment.anchors[a];
        for (std::size_t c = 0; c < predictions[a].class_logits.size(); ++c) {
            const double p = probability(predictions[a].class_logits[c]);
            const double wanted = target >= 0 && targets[target].label == static_cast<int>(c) ? score : 0.0;
            sums.classification -= wanted * std::log(p) + (1 - wanted) * std::log(1 - p);
        }
        if (target < 0) {
            continue;
        }
        const Corners box = scaled(targets[target].box, 1 / anchors[a].stride);
        sums.box += score * (1 - complete_iou(decode(predictions[a], anchors[a]), box, aspect_weights[a]));
        sums.target_score_sum += score;
        const std::array<double, 4> distances = {anchors[a].x - box.x1, anchors[a].y - box.y1, box.x2 - anchors[a].x,
                                                 box.y2 - anchors[a].y};
        for (int side = 0; side < 4; ++side) {
            const double d = std::clamp(distances[side], 0.0, 14.99);
            const int f = static_cast<int>(std::floor(d));
            const auto p = softmax(predictions[a].distance_logits[side]);
            sums.distribution += score * ((f + 1 - d) * -std::log(p[f]) + (d - f) * -std::log(p[f + 1])) / 4;
        }
    }
    return sums;
}

}  // namespace lockstep::trainer::slow
