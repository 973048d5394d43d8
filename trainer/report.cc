#include "trainer/report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "sharding/image.h"
#include "trainer/run_directory.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;
using base::escape_html;
using base::fixed;
using base::str;
using nlohmann::json;

constexpr double shown_score = 0.25;  ///< the reference's threshold for predictions that a person looks at
constexpr std::size_t most_points = 400;
constexpr int jpeg_quality = 85;

constexpr const char* style = R"(
:root{--ink:#1c2430;--soft:#5b6675;--line:#d9dee5;--paper:#fdfdfc;--card:#fff;--c0:#2563a8;--c1:#b4530a;--c2:#2e7d4f;--c3:#8a3b8f;--c4:#0f7f86;--c5:#a3293d;--truth:#ffd54a}
@media (prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#9aa5b4;--line:#343c48;--paper:#14181e;--card:#1b2028;--c0:#6ba6e8;--c1:#f0a35e;--c2:#6cc492;--c3:#cf8dd4;--c4:#5cc4ca;--c5:#ee7f90}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1180px;padding:24px 18px 60px;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 4px}h2{font-size:1.1rem;margin:36px 0 10px}p{margin:0 0 12px}.soft{color:var(--soft)}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));gap:18px}figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}
figcaption{font-size:.85rem;color:var(--soft);margin-top:6px;overflow-wrap:anywhere}svg{display:block;width:100%;height:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:3px 18px 3px 0;text-align:left;border-bottom:1px solid var(--line);overflow-wrap:anywhere}td.n{text-align:right}
text{fill:var(--soft);font:11px system-ui,sans-serif}.axis{stroke:var(--line)}.key{font-size:.8rem;margin-right:12px;white-space:nowrap}.key i{display:inline-block;width:14px;height:3px;margin-right:5px;vertical-align:middle}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:.82rem;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}
@media print{body{max-width:none}figure{break-inside:avoid}}
)";

struct Point {
    double x, y;
};
struct Curve {
    std::string name;
    std::vector<Point> points;
};

std::string colour(std::size_t index) {
    return str("var(--c", index % 6, ")");
}

/// Means of equal stretches, so that a long run stays readable and the file small.
std::vector<Point> thinned(const std::vector<Point>& points) {
    if (points.size() <= most_points) {
        return points;
    }
    std::vector<Point> means;
    for (std::size_t i = 0; i < most_points; ++i) {
        const std::size_t begin = i * points.size() / most_points, end = (i + 1) * points.size() / most_points;
        Point mean{0, 0};
        for (std::size_t k = begin; k < end; ++k) {
            mean.x += points[k].x;
            mean.y += points[k].y;
        }
        means.push_back({mean.x / static_cast<double>(end - begin), mean.y / static_cast<double>(end - begin)});
    }
    return means;
}

/// 1, 2 or 5 times a power of ten, so that about `wanted` steps cover `range`.
double tick_step(double range, int wanted) {
    const double raw = range / wanted;
    const double power = std::pow(10, std::floor(std::log10(raw)));
    for (double factor : {1.0, 2.0, 5.0}) {
        if (raw <= factor * power) {
            return factor * power;
        }
    }
    return 10 * power;
}

std::string tick_label(double value) {
    std::ostringstream out;
    out.precision(4);
    out << (std::abs(value) < 1e-12 ? 0 : value);
    return out.str();
}

std::string chart(const std::string& caption, const std::string& x_name, std::vector<Curve> curves) {
    std::erase_if(curves, [](const Curve& curve) { return curve.points.empty(); });
    if (curves.empty()) {
        return {};
    }
    constexpr double width = 520, height = 260, left = 52, right = 10, top = 10, bottom = 34;
    double x_high = 0, y_high = 0;
    for (auto& curve : curves) {
        curve.points = thinned(curve.points);
        for (const auto& point : curve.points) {
            x_high = std::max(x_high, point.x);
            y_high = std::max(y_high, point.y);
        }
    }
    x_high = std::max(x_high, 1e-12);
    y_high = y_high > 0 ? y_high * 1.05 : 1;
    const auto x_at = [&](double x) { return left + x / x_high * (width - left - right); };
    const auto y_at = [&](double y) { return height - bottom - y / y_high * (height - top - bottom); };
    std::string svg = str("<figure><svg viewBox=\"0 0 ", width, " ", height, "\" role=\"img\" aria-label=\"",
                          escape_html(caption), "\">");
    const double y_step = tick_step(y_high, 5), x_step = tick_step(x_high, 6);
    for (double y = 0; y <= y_high; y += y_step) {
        svg += str("<line class=\"axis\" x1=\"", left, "\" x2=\"", width - right, "\" y1=\"", y_at(y), "\" y2=\"",
                   y_at(y), "\"/><text x=\"", left - 6, "\" y=\"", y_at(y) + 4, "\" text-anchor=\"end\">",
                   tick_label(y), "</text>");
    }
    for (double x = 0; x <= x_high; x += x_step) {
        svg += str("<text x=\"", x_at(x), "\" y=\"", height - bottom + 16, "\" text-anchor=\"middle\">", tick_label(x),
                   "</text>");
    }
    svg += str("<text x=\"", width - right, "\" y=\"", height - 4, "\" text-anchor=\"end\">", escape_html(x_name),
               "</text>");
    std::string key;
    for (std::size_t i = 0; i < curves.size(); ++i) {
        std::string path;
        for (const auto& point : curves[i].points) {
            if (std::isfinite(point.y)) {
                path +=
                    str(path.empty() ? "M" : "L", fixed(x_at(point.x), 1), " ", fixed(y_at(std::max(0.0, point.y)), 1));
            }
        }
        svg += str("<path d=\"", path, "\" fill=\"none\" stroke-width=\"1.6\" stroke=\"", colour(i), "\"/>");
        key += str("<span class=\"key\"><i style=\"background:", colour(i), "\"></i>", escape_html(curves[i].name),
                   "</span>");
    }
    return svg + "</svg>" + (curves.size() > 1 ? key : "") + "<figcaption>" + escape_html(caption) +
           "</figcaption></figure>\n";
}

/// The numbers of `key` in lines of `kind`, over the number of the step or the epoch.
Curve curve_of(const std::vector<json>& metrics, const std::string& kind, const std::string& key,
               const std::string& x_key, const std::string& name) {
    Curve curve{name, {}};
    for (const auto& line : metrics) {
        if (line.value("kind", "") == kind && line.contains(key) && line[key].is_number()) {
            curve.points.push_back({line.value(x_key, 0.0), line[key].get<double>()});
        }
    }
    return curve;
}

std::string charts(const std::vector<json>& metrics) {
    std::vector<Curve> parts;
    for (const char* key : {"many_box", "many_classification", "many_distribution", "one_box", "one_classification",
                            "one_distribution", "cross_entropy"}) {
        std::string name = key;
        std::ranges::replace(name, '_', ' ');
        parts.push_back(curve_of(metrics, "step", key, "step", name));
    }
    std::string page = "<h2>Curves</h2><div class=\"grid\">\n";
    page += chart("Accuracy on the validation data over epochs", "epoch",
                  {curve_of(metrics, "epoch", "AP50", "epoch", "AP50"), curve_of(metrics, "epoch", "AP", "epoch", "AP"),
                   curve_of(metrics, "epoch", "accuracy", "epoch", "accuracy")});
    page += chart("Loss over optimizer steps", "step", {curve_of(metrics, "step", "loss", "step", "loss")});
    page +=
        chart("Parts of the loss over optimizer steps (many: one-to-many head, one: one-to-one head)", "step", parts);
    page += chart("Learning rate over optimizer steps", "step",
                  {curve_of(metrics, "step", "learning_rate", "step", "learning rate")});
    page += chart("Gradient norm over optimizer steps, before clipping", "step",
                  {curve_of(metrics, "step", "gradient_norm", "step", "norm")});
    page += chart("Training speed over epochs, in images per second", "epoch",
                  {curve_of(metrics, "epoch", "images_per_second", "epoch", "images/s")});
    page += chart("Part of the step that waits for data (0 to 1), over epochs", "epoch",
                  {curve_of(metrics, "epoch", "data_wait_fraction", "epoch", "data wait")});
    return page + "</div>\n";
}

std::string base64(std::span<const std::uint8_t> bytes) {
    constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    text.reserve((bytes.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
        std::uint32_t word = 0;
        for (std::size_t k = 0; k < 3; ++k) {
            word = word << 8 | (k < count ? bytes[i + k] : 0u);
        }
        for (std::size_t k = 0; k < 4; ++k) {
            text += k <= count ? digits[word >> (18 - 6 * k) & 63] : '=';
        }
    }
    return text;
}

std::string rectangle(const PictureBox& box, const std::string& stroke, const char* extra) {
    return str("<rect x=\"", fixed(box.x1, 1), "\" y=\"", fixed(box.y1, 1), "\" width=\"", fixed(box.x2 - box.x1, 1),
               "\" height=\"", fixed(box.y2 - box.y1, 1), "\" fill=\"none\" stroke=\"", stroke, "\"", extra, "/>");
}

std::string picture(const Picture& picture, std::span<const std::string> classes) {
    const sharding::Image image{picture.width, picture.height, picture.pixels};
    std::string svg =
        str("<figure><svg viewBox=\"0 0 ", picture.width, " ", picture.height, "\" role=\"img\" aria-label=\"",
            escape_html(picture.caption), "\"><image width=\"", picture.width, "\" height=\"", picture.height,
            "\" href=\"data:image/jpeg;base64,", base64(sharding::encode_jpeg(image, jpeg_quality)), "\"/>");
    for (const auto& box : picture.truth) {
        svg += rectangle(box, "var(--truth)", " stroke-width=\"1.2\" stroke-dasharray=\"4 3\"");
    }
    std::size_t shown = 0;
    for (const auto& box : picture.predicted) {
        if (box.score < shown_score) {
            continue;
        }
        ++shown;
        const auto index = static_cast<std::size_t>(box.class_index);
        const std::string label =
            str(index < classes.size() ? classes[index] : str("class ", index), " ", fixed(box.score, 2));
        svg += rectangle(box, colour(index), " stroke-width=\"1.6\"");
        svg += str("<text x=\"", fixed(box.x1 + 2, 1), "\" y=\"", fixed(std::max(9.0, box.y1 - 2), 1),
                   "\" style=\"font-size:9px;fill:#fff;stroke:#000;stroke-width:2px;paint-order:stroke\">",
                   escape_html(label), "</text>");
    }
    return svg + str("</svg><figcaption>", escape_html(picture.caption), ": ", picture.truth.size(),
                     " true boxes (dashed), ", shown, " found with a score of at least ", shown_score,
                     "</figcaption></figure>\n");
}

std::string metric_rows(const json& metrics) {
    std::string rows;
    for (const char* name :
         {"AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl", "accuracy"}) {
        if (metrics.contains(name)) {
            const double value = metrics[name];
            rows += str("<tr><td>", name, "</td><td class=\"n\">", value < 0 ? "no such box" : fixed(value, 4),
                        "</td></tr>");
        }
    }
    return rows;
}

}  // namespace

void write_report(const fs::path& run, std::span<const Picture> pictures, std::span<const std::string> classes) {
    const json summary = json::parse(base::read_text(run / "summary.json"));
    const std::vector<json> metrics = read_metrics(run);
    const json& scores = summary.at("metrics");
    const std::string headline = scores.contains("AP50")
                                     ? str("AP50 ", fixed(scores["AP50"], 3), ", AP ", fixed(scores["AP"], 3))
                                 : scores.contains("accuracy") ? str("accuracy ", fixed(scores["accuracy"], 4))
                                                               : std::string("no validation data");
    const std::string model = summary.at("model");
    std::string page =
        str("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" "
            "content=\"width=device-width, initial-scale=1\"/><title>",
            escape_html(model), ": ", headline, "</title><style>", style, "</style></head><body>\n");
    page += str("<h1>", escape_html(model), ": ", headline, "</h1>\n<p class=\"soft\">", summary.at("epochs").dump(),
                " epochs, ", summary.at("steps").dump(), " steps on ", summary.at("ranks").dump(), " rank(s); ",
                fixed(summary.at("images_per_second"), 1), " images/s; data wait ",
                fixed(100 * summary.at("data_wait_fraction").get<double>(), 1), "% of the step; memory ",
                fixed(summary.at("peak_pss_mib"), 0), " MiB a rank</p>\n");
    page += "<h2>Result on the validation data</h2><table>" + metric_rows(scores) + "</table>\n";
    page += charts(metrics);
    if (!pictures.empty()) {
        page += "<h2>Validation images</h2><div class=\"grid\">\n";
        for (const auto& item : pictures) {
            page += picture(item, classes);
        }
        page += "</div>\n";
    }
    page += "<h2>Settings</h2><pre>" + escape_html(base::read_text(run / "recipe.resolved.toml")) + "</pre>\n";
    page += "<h2>Environment</h2><pre>" + escape_html(base::read_text(run / "environment.json")) +
            "</pre>\n</body></html>\n";
    base::write_whole(run / "report.html", page);
}

}  // namespace lockstep::trainer
