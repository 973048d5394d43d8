#include "bench/figures.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.h"

namespace lockstep::bench {
namespace {

using base::escape_html;
using base::fixed;
using base::str;

constexpr double width = 400;
constexpr double row = 38;        ///< a label, and what it labels under it
constexpr double label = 13;      ///< baseline of a row's label from its top
constexpr double track = 25;      ///< middle of what is under it
constexpr std::size_t name = 44;  ///< characters of a label that has a number beside it

std::string text_at(double x, double y, const std::string& text, const char* anchor = "start", const char* kind = "") {
    return str("<text x=\"", fixed(x, 1), "\" y=\"", fixed(y, 1), "\" text-anchor=\"", anchor, "\"",
               *kind != '\0' ? str(" class=\"", kind, "\"") : "", ">", escape_html(text), "</text>");
}

std::string line_of(double x1, double y1, double x2, double y2, const std::string& attributes) {
    return str("<line x1=\"", fixed(x1, 1), "\" y1=\"", fixed(y1, 1), "\" x2=\"", fixed(x2, 1), "\" y2=\"",
               fixed(y2, 1), "\" ", attributes, "/>");
}

std::string rectangle(double x, double y, double wide, double high, const std::string& attributes) {
    return str("<rect x=\"", fixed(x, 1), "\" y=\"", fixed(y, 1), "\" width=\"", fixed(std::max(0.0, wide), 1),
               "\" height=\"", fixed(high, 1), "\" ", attributes, "/>");
}

std::string circle(double x, double y, double radius, const std::string& attributes) {
    return str("<circle cx=\"", fixed(x, 1), "\" cy=\"", fixed(y, 1), "\" r=\"", fixed(radius, 1), "\" ", attributes,
               "/>");
}

std::string fill(const char* colour) {
    return str("fill=\"var(--", colour, ")\"");
}

std::string figure_of(double height, const std::string& drawing, const std::string& caption) {
    return str("<figure><svg viewBox=\"0 0 ", width, " ", fixed(height, 0), "\" role=\"img\" aria-label=\"",
               escape_html(caption), "\">", drawing, "</svg><figcaption>", escape_html(caption),
               "</figcaption></figure>\n");
}

/// Cut between characters, not in the middle of one.
std::string shortened(const std::string& text, std::size_t most) {
    if (text.size() <= most) {
        return text;
    }
    std::size_t end = most - 1;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
        --end;
    }
    return text.substr(0, end) + "…";
}

struct Axis {
    double low, high;
    double at(double value) const { return 4 + (std::clamp(value, low, high) - low) / (high - low) * (width - 8); }
};

const char* colour_of(const MetricResult& metric, const Comparison& comparison) {
    return is_gain(metric, comparison) ? "good" : is_loss(metric, comparison) ? "bad" : "mid";
}

/// Means of equally many neighbours, so that a curve has at most `most` points.
std::vector<double> thinned(const std::vector<double>& values, std::size_t most) {
    const std::size_t count = std::min(most, values.size());
    std::vector<double> means;
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t begin = i * values.size() / count, end = (i + 1) * values.size() / count;
        double sum = 0;
        for (std::size_t k = begin; k < end; ++k) {
            sum += values[k];
        }
        means.push_back(sum / static_cast<double>(end - begin));
    }
    return means;
}

const Record* first_training(const SweepAnalysis& sweep, const std::string& arm) {
    for (const char* kind : {"accuracy", "speed"}) {
        const auto found = std::ranges::find_if(sweep.records, [&](const Record& record) {
            return record.arm == arm && record.measurement == kind && record.status == LaunchStatus::ok;
        });
        if (found != sweep.records.end()) {
            return &*found;
        }
    }
    return nullptr;
}

}  // namespace

std::string interval_figure(const SweepAnalysis& sweep, const MetricResult& metric) {
    const double band = metric.comparison.band;
    Axis axis{.low = 1 / (1 + band), .high = 1 + band};
    std::vector<std::pair<std::size_t, Comparison>> shown;
    for (std::size_t arm = control_arm; arm < sweep.info.arms.size(); ++arm) {
        if (const auto ours = metric.of_arm(arm); ours && ours->blocks > 0) {
            shown.emplace_back(arm, *ours);
            axis.low = std::min(axis.low, ours->interval.low);
            axis.high = std::max(axis.high, ours->interval.high);
        }
    }
    const double pad = 0.04 * (axis.high - axis.low) + 1e-9;
    axis.low -= pad;
    axis.high += pad;
    constexpr double top = 20;
    const double height = top + row * static_cast<double>(shown.size());
    const double low = axis.at(1 / (1 + band)), high = axis.at(1 + band);
    std::string drawing = rectangle(low, top, high - low, height - top, "class=\"band\"") +
                          line_of(axis.at(1), top - 4, axis.at(1), height, "class=\"one\"") +
                          text_at(std::clamp(axis.at(1), 50.0, width - 50), 12, "baseline 100%", "middle", "s");
    double y = top;
    for (const auto& [arm, ours] : shown) {
        const char* colour = arm == control_arm ? "soft" : colour_of(metric, ours);
        drawing += text_at(0, y + label, shortened(sweep.marked_name(arm), name)) +
                   text_at(width, y + label, percent(ours.ratio), "end") +
                   line_of(axis.at(ours.interval.low), y + track, axis.at(ours.interval.high), y + track,
                           str("stroke=\"var(--", colour, ")\" stroke-width=\"2\"")) +
                   circle(axis.at(ours.ratio), y + track, 4, fill(colour));
        y += row;
    }
    return figure_of(
        height, drawing,
        str("Ratio to the baseline in ", metric.metric.title, ", ", metric.metric.lower_is_better ? "lower" : "higher",
            " is better: median over blocks and 95% interval. Green: better, red: worse, blue: neither is "
            "shown. Gray band: no difference. \"again\" is the baseline against itself."));
}

std::string strip_figure(const SweepAnalysis& sweep, const MetricResult& metric) {
    std::vector<double> all;
    std::size_t rows = 0;
    for (const auto& values : metric.values) {
        rows += values.empty() ? 0 : 1;
        for (const auto& [block, value] : values) {
            all.push_back(value * metric.metric.scale);
        }
    }
    const double low = std::ranges::min(all), high = std::ranges::max(all);
    const double pad = 0.02 * (high - low) + 1e-9;
    const Axis axis{.low = low - pad, .high = high + pad};
    constexpr double top = 20;
    std::string drawing = text_at(0, 12, fixed(low, 2), "start", "s") +
                          text_at(width, 12, str(fixed(high, 2), " ", metric.metric.unit), "end", "s");
    double y = top;
    for (std::size_t arm = 0; arm < metric.values.size(); ++arm) {
        if (metric.values[arm].empty()) {
            continue;
        }
        drawing += text_at(0, y + label, shortened(sweep.marked_name(arm), name)) +
                   line_of(0, y + track, width, y + track, "class=\"axis\"");
        for (const auto& [block, value] : metric.values[arm]) {
            drawing +=
                circle(axis.at(value * metric.metric.scale), y + track, 3.5, fill("mid") + " fill-opacity=\"0.5\"");
        }
        y += row;
    }
    return figure_of(top + row * static_cast<double>(rows), drawing,
                     str("All samples of ", metric.metric.title, ": a dot a block's launch"));
}

std::string waterfall_figure(const std::vector<FactorSteps>& steps, const MetricResult& metric) {
    double most = 1;
    for (const FactorSteps& entry : steps) {
        most = std::max({most, entry.cumulative.value_or(1), entry.taken_out.value_or(1)});
    }
    const Axis axis{.low = 0, .high = most * 1.02};
    constexpr double top = 20, tall = 64;
    const double height = top + tall * static_cast<double>(steps.size());
    std::string drawing = line_of(axis.at(1), top - 4, axis.at(1), height, "class=\"one\"") +
                          text_at(std::min(axis.at(1) - 4, width), 12, "baseline 100%", "end", "s");
    const auto bar = [&](double a, double b, double y, double high, const char* colour) {
        return rectangle(axis.at(std::min(a, b)), y, std::max(1.0, std::abs(axis.at(a) - axis.at(b))), high,
                         fill(colour));
    };
    double y = top, before = 1;
    for (const FactorSteps& entry : steps) {
        drawing += text_at(0, y + label, shortened(entry.name, 30));
        if (entry.cumulative) {
            const bool gains = (*entry.cumulative < before) == metric.metric.lower_is_better;
            drawing += text_at(width, y + label, "to " + percent(*entry.cumulative), "end") +
                       bar(before, *entry.cumulative, y + 18, 12, gains ? "good" : "bad");
            before = *entry.cumulative;
        }
        if (entry.taken_out) {
            drawing += bar(1, *entry.taken_out, y + 32, 6, "warm") +
                       text_at(width, y + 51, "in the company of all others " + percent(*entry.taken_out), "end", "s");
        }
        y += tall;
    }
    return figure_of(height, drawing,
                     str("Waterfall of ", metric.metric.title,
                         ": factors switched on one after the other (wide bars, green for the better), and under each "
                         "what it still does in the company of all the others (narrow orange bars: all against all "
                         "without it)"));
}

std::vector<TimeParts> time_parts(const SweepAnalysis& sweep) {
    std::vector<TimeParts> all;
    for (std::size_t arm = 0; arm < sweep.info.arms.size(); ++arm) {
        constexpr std::array shares = {"data_wait_fraction", "exposed_communication_fraction", "rank_skew_fraction",
                                       "communication_core_fraction"};
        std::vector<double> totals;
        std::array<std::vector<double>, shares.size()> parts;
        for (const Record& record : sweep.records) {
            if (record.arm == sweep.info.arms[arm].name && record.measurement == "speed" &&
                record.status == LaunchStatus::ok) {
                totals.push_back(record.metrics.at("seconds_per_image") * 1000);
                for (std::size_t i = 0; i < shares.size(); ++i) {
                    const auto found = record.metrics.find(shares[i]);
                    parts[i].push_back(found == record.metrics.end() ? 0 : found->second * totals.back());
                }
            }
        }
        if (!totals.empty()) {
            all.push_back({.arm = arm,
                           .total = median(totals),
                           .data = median(parts[0]),
                           .exposed = median(parts[1]),
                           .skew = median(parts[2]),
                           .core = median(parts[3])});
        }
    }
    return all;
}

std::string breakdown_figure(const SweepAnalysis& sweep, const std::vector<TimeParts>& parts) {
    if (parts.empty()) {
        return {};
    }
    const double most = std::ranges::max(parts, {}, &TimeParts::total).total;
    std::string drawing;
    double y = 0;
    for (const TimeParts& bar : parts) {
        drawing += text_at(0, y + label, shortened(sweep.marked_name(bar.arm), name)) +
                   text_at(width, y + label, str(fixed(bar.total, 2), " ms"), "end");
        double x = 0;
        for (const auto& [value, colour] : {std::pair{std::max(0.0, bar.total - bar.data - bar.exposed), "mid"},
                                            {bar.data, "warm"},
                                            {bar.exposed, "bad"}}) {
            drawing += rectangle(x, y + 18, width * value / most, 12, fill(colour));
            x += width * value / most;
        }
        y += row;
    }
    return figure_of(y, drawing,
                     "Where the time of an image goes, in ms: computing (blue), waiting for data (orange), waiting for "
                     "gradients (red)");
}

std::string loss_figure(const SweepAnalysis& sweep) {
    struct Curve {
        std::string name;
        std::vector<double> values;
    };
    constexpr std::array colours = {"mid", "warm", "good", "bad", "soft", "ink"};
    std::vector<Curve> curves;
    double most = 0;
    for (const SweepArm& arm : sweep.info.arms) {
        const Record* training = first_training(sweep, arm.name);
        if (arm.is_control || training == nullptr || curves.size() == colours.size()) {
            continue;
        }
        curves.push_back({arm.name, thinned(training->steps.loss, 120)});
        for (const double value : curves.back().values) {
            most = std::isfinite(value) ? std::max(most, value) : most;
        }
    }
    if (most <= 0) {
        return {};
    }
    constexpr double left = 44, top = 8, bottom = 190, legend = 20;
    std::string drawing =
        line_of(left, bottom, width, bottom, "class=\"axis\"") + line_of(left, top, left, bottom, "class=\"axis\"") +
        text_at(left - 6, top + 8, fixed(most, most < 10 ? 2 : 1), "end", "s") +
        text_at(left - 6, bottom, "0", "end", "s") + text_at(left, bottom + 16, "start", "start", "s") +
        text_at(width, bottom + 16, "end of the launch", "end", "s");
    double y = bottom + 38;
    for (std::size_t c = 0; c < curves.size(); ++c) {
        std::string path;
        const auto& values = curves[c].values;
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (std::isfinite(values[i])) {
                const double x = left + (width - left) * static_cast<double>(i) /
                                            std::max<double>(1, static_cast<double>(values.size()) - 1);
                path += str(path.empty() ? "M" : "L", fixed(x, 1), " ",
                            fixed(bottom - (bottom - top) * std::max(0.0, values[i]) / most, 1));
            }
        }
        drawing +=
            str("<path d=\"", path, "\" fill=\"none\" stroke-width=\"1.6\" stroke=\"var(--", colours[c], ")\"/>") +
            rectangle(0, y - 6, 14, 4, fill(colours[c])) + text_at(22, y, shortened(curves[c].name, 54));
        y += legend;
    }
    return figure_of(y - legend + 8, drawing, "Loss of the first launch of each arm, from its first step to its last");
}

std::string scaling_figure(const SweepAnalysis& sweep) {
    const MetricResult* metric = sweep.find("seconds_per_image", "speed");
    const auto factor = std::ranges::find(sweep.info.factors, "ranks", &SweepFactor::name);
    if (metric == nullptr || factor == sweep.info.factors.end()) {
        return {};
    }
    const auto index = static_cast<std::size_t>(factor - sweep.info.factors.begin());
    struct Point {
        double ranks, speed;
        std::string mark;
    };
    std::vector<Point> points;
    double most = 0;
    for (std::size_t arm = 0; arm < sweep.info.arms.size(); ++arm) {
        const SweepArm& info = sweep.info.arms[arm];
        std::vector<std::size_t> only(sweep.info.factors.size(), 0);
        only[index] = info.levels[index];
        const auto ours = arm == baseline_arm ? std::optional(Comparison{.blocks = 1, .ratio = 1, .interval = {1, 1}})
                                              : metric->of_arm(arm);
        if (!info.is_control && info.levels == only && ours && ours->blocks > 0) {
            points.push_back({static_cast<double>(info.ranks), 1 / ours->ratio, sweep.mark(info)});
            most = std::max({most, points.back().ranks, points.back().speed});
        }
    }
    if (points.size() < 2) {
        return {};
    }
    constexpr double left = 24, right = width - 40, top = 12, bottom = 200, legend = 20;
    const auto x_at = [&](double x) { return left + (right - left) * x / most; };
    const auto y_at = [&](double y) { return bottom - (bottom - top) * y / most; };
    const double first = points.front().ranks;
    std::string drawing = line_of(left, bottom, right, bottom, "class=\"axis\"") +
                          line_of(left, top, left, bottom, "class=\"axis\"") +
                          line_of(x_at(first), y_at(1), x_at(most), y_at(most / first), "class=\"one\"") +
                          text_at(right, bottom + 16, "ranks", "end", "s") +
                          text_at(right + 4, y_at(most / first) + 4, "ideal", "start", "s");
    double y = bottom + 38;
    bool is_marked = false;
    for (const Point& point : points) {
        const bool hollow = !point.mark.empty();
        is_marked = is_marked || hollow;
        drawing += circle(x_at(point.ranks), y_at(point.speed), 4.5,
                          hollow ? "fill=\"none\" stroke=\"var(--warm)\" stroke-width=\"2\"" : fill("mid")) +
                   text_at(0, y,
                           str(point.ranks, point.ranks == 1 ? " rank: " : " ranks: ", fixed(point.speed, 2), "x",
                               hollow ? ", " + point.mark : ""));
        y += legend;
    }
    return figure_of(
        y - legend + 8, drawing,
        str("Images a second over ranks, the baseline as 1, with the ideal line",
            is_marked ? ". Hollow points are no scaling: their ranks share cores or their nodes are simulated" : ""));
}

}  // namespace lockstep::bench
