#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "sharding/image.h"
#include "trainer/drawing.h"
#include "trainer/predictor.h"

namespace lockstep::app {
namespace {

namespace fs = std::filesystem;
using base::str;
using nlohmann::json;

struct PredictArguments {
    fs::path weights;
    std::vector<fs::path> images;
    fs::path out;
    bool json = false;
    std::string model;
    std::int64_t classes = 0;
    std::int64_t size = 640;
    std::string tile = "auto";
    std::int64_t overlap = -1;
    trainer::PredictOptions options;
};

/// Files as given; of a folder, the files in it that are named like images.
std::vector<fs::path> image_files(const std::vector<fs::path>& given) {
    static const std::vector<std::string> endings = {".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp"};
    std::vector<fs::path> files;
    for (const auto& path : given) {
        if (!fs::is_directory(path)) {
            files.push_back(path);
            continue;
        }
        std::vector<fs::path> inside;
        for (const auto& entry : fs::directory_iterator(path)) {
            std::string ending = entry.path().extension().string();
            std::ranges::transform(ending, ending.begin(),
                                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
            if (entry.is_regular_file() && std::ranges::find(endings, ending) != endings.end()) {
                inside.push_back(entry.path());
            }
        }
        if (inside.empty()) {
            throw base::Error(
                str(path.string(), ": no image in this folder (looked for ", base::join(endings, " "), ")"));
        }
        std::ranges::sort(inside);
        files.insert(files.end(), inside.begin(), inside.end());
    }
    return files;
}

std::optional<trainer::NetworkFacts> given_facts(const PredictArguments& arguments) {
    if (arguments.model.empty() && arguments.classes == 0) {
        return std::nullopt;
    }
    if (arguments.model.empty() || arguments.classes == 0) {
        throw base::UsageError("--model and --classes go together, for example --model yolov10n --classes 80");
    }
    trainer::NetworkFacts facts{arguments.model, {}, arguments.size};
    for (std::int64_t i = 0; i < arguments.classes; ++i) {
        facts.classes.push_back(str(i));
    }
    return facts;
}

void set_tiles(PredictArguments& arguments) {
    if (arguments.tile == "off") {
        arguments.options.tile = 0;
    } else if (arguments.tile != "auto") {
        try {
            std::size_t used = 0;
            const int side = std::stoi(arguments.tile, &used);
            if (used != arguments.tile.size() || side < 32) {
                throw std::invalid_argument("tile");
            }
            arguments.options.tile = static_cast<std::uint32_t>(side);
        } catch (const std::logic_error&) {
            throw base::UsageError(str("--tile ", arguments.tile, ": give auto, off or a side of at least 32 pixels"));
        }
    }
    if (arguments.overlap >= 0) {
        arguments.options.overlap = static_cast<std::uint32_t>(arguments.overlap);
    }
}

json as_json(const fs::path& file, const sharding::Image& image, const std::vector<trainer::PictureBox>& boxes,
             const std::vector<std::string>& classes) {
    json detections = json::array();
    for (const auto& box : boxes) {
        detections.push_back({{"box", {box.x1, box.y1, box.x2, box.y2}},
                              {"score", box.score},
                              {"class", classes.at(static_cast<std::size_t>(box.class_index))}});
    }
    return {{"file", file.string()}, {"width", image.width}, {"height", image.height}, {"detections", detections}};
}

/// Where each file's drawn picture goes. Throws base::UsageError where one would overwrite another or its own source.
std::vector<fs::path> drawn_files(const std::vector<fs::path>& files, const fs::path& out) {
    std::vector<fs::path> drawn;
    std::map<fs::path, fs::path> source_of;
    for (const fs::path& file : files) {
        const fs::path target = out / (file.stem().string() + ".png");
        const auto [known, is_new] = source_of.emplace(target, file);
        if (!is_new) {
            throw base::UsageError(base::str(known->second.string(), " and ", file.string(),
                                             " would both be drawn into ", target.string(),
                                             "; give them in separate calls with an --out each"));
        }
        std::error_code missing;
        if (fs::equivalent(target, file, missing)) {
            throw base::UsageError(base::str("--out ", out.string(), " would overwrite ", file.string(),
                                             " with its drawn picture; give another directory"));
        }
        drawn.push_back(target);
    }
    return drawn;
}

/// Nothing where the file holds no image: one of a thousand must not end the others' run.
std::optional<sharding::Image> read_image(const fs::path& file) {
    try {
        return sharding::decode_rgb(base::read_bytes(file), file.string());
    } catch (const base::Error& error) {
        base::log_error(error.what());
        return std::nullopt;
    }
}

void predict(PredictArguments& arguments) {
    set_tiles(arguments);
    const auto files = image_files(arguments.images);
    const auto drawn = arguments.out.empty() ? std::vector<fs::path>() : drawn_files(files, arguments.out);
    trainer::Predictor predictor(arguments.weights, given_facts(arguments));
    const auto& classes = predictor.facts().classes;
    json results = json::array();
    std::size_t unreadable = 0;
    base::Progress progress("predict", "images", files.size());
    for (std::size_t i = 0; i < files.size(); ++i) {
        progress.update(i);
        auto image = read_image(files[i]);
        if (!image) {
            ++unreadable;
            results.push_back({{"file", files[i].string()}, {"error", "not readable as an image"}});
            continue;
        }
        const auto boxes = predictor.predict(*image, arguments.options);
        if (arguments.json) {
            results.push_back(as_json(files[i], *image, boxes, classes));
        } else {
            std::printf("%s  %ux%u  %zu found\n", files[i].c_str(), image->width, image->height, boxes.size());
            for (const auto& box : boxes) {
                std::printf("  %-16s %.3f  %.1f %.1f %.1f %.1f\n",
                            classes.at(static_cast<std::size_t>(box.class_index)).c_str(), box.score, box.x1, box.y1,
                            box.x2, box.y2);
            }
        }
        if (!arguments.out.empty()) {
            fs::create_directories(arguments.out);
            trainer::draw_boxes(*image, boxes, classes);
            const auto png = sharding::encode_png(*image);
            base::write_whole(drawn[i], std::string_view(reinterpret_cast<const char*>(png.data()), png.size()));
        }
    }
    progress.update(files.size());
    progress.finish();
    if (arguments.json) {
        std::printf("%s\n", json{{"images", results}}.dump(1).c_str());
    }
    if (unreadable > 0) {
        throw base::Error(str(unreadable, " of ", files.size(), " files could not be read as images (named above)"));
    }
}

}  // namespace

void add_predict_command(CLI::App& app) {
    auto arguments = std::make_shared<PredictArguments>();
    CLI::App* command = app.add_subcommand("predict", "Find objects on images of any size");
    command->add_option("weights", arguments->weights, "a run's directory, or a safetensors file")->required();
    command->add_option("images", arguments->images, "image files, or folders of them")->required();
    command->add_option("--out", arguments->out, "write the images there with boxes drawn in");
    command->add_flag("--json", arguments->json, "results as JSON");
    command->add_option("--min-score", arguments->options.min_score, "leave out what scores less")
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    command
        ->add_option("--tile", arguments->tile,
                     "auto (tiles where the image is much larger than the network's input), off, or a side in pixels")
        ->capture_default_str();
    command->add_option("--overlap", arguments->overlap, "of tiles, in pixels (default: a quarter of the tile)")
        ->check(CLI::NonNegativeNumber);
    command->add_option("--model", arguments->model, "for weights whose metadata doesn't say it");
    command->add_option("--classes", arguments->classes, "likewise, their number")->check(CLI::PositiveNumber);
    command->add_option("--size", arguments->size, "likewise, the side of the network's input")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    command->footer(
        "Boxes that two tiles see are merged: whole ones go before ones cut by a tile's border, then higher scores.\n"
        "Example:\n  lockstep predict runs/trees photo.png --out found/ --json");
    command->callback([arguments] { predict(*arguments); });
}

}  // namespace lockstep::app
