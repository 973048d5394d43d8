#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "base/error.h"
#include "base/log.h"
#include "sharding/import_coco.h"
#include "sharding/import_composed.h"
#include "sharding/import_idx.h"
#include "sharding/import_imagefolder.h"
#include "sharding/import_images.h"
#include "sharding/import_voc.h"
#include "sharding/import_yolo.h"
#include "sharding/inspect.h"

namespace lockstep::app {
namespace {

namespace fs = std::filesystem;

/// The closing report: what `inspect` says of the new data set.
void report(const fs::path& out, bool json) {
    const sharding::Dataset set = sharding::Dataset::open(out);
    std::puts((json ? sharding::describe_json(set) : sharding::describe_text(set)).c_str());
}

struct Common {
    fs::path out;
    bool json = false;
    unsigned threads = base::usable_cores();

    void add_to(CLI::App& command) {
        command.add_option("--out", out, "The data set to make: a directory that does not exist yet")->required();
        command.add_flag("--json", json, "Print the closing report as JSON");
    }
    void add_threads_to(CLI::App& command) {
        command.add_option("--threads", threads, "Threads; the result is the same for every number")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
    }
};

CLI::Option* add_classes(CLI::App& command, std::vector<std::string>& classes, const char* help) {
    return command.add_option("--classes", classes, help)->delimiter(',');
}

/// What the importers of image files share.
struct ImageArguments {
    Common common;
    sharding::ImportOptions options;
    sharding::TileOptions tiles;
    std::uint32_t side = 0;
    bool raw = false, dry_run = false;

    void add_to(CLI::App& command) {
        common.add_to(command);
        common.add_threads_to(command);
        command.add_flag("--strict", options.strict,
                         "Stop with an error at what otherwise is dropped, or repaired, and counted");
        command.add_flag("--raw", raw, "Store decoded pixels instead of image files: larger, and fastest to load");
        command.add_option("--side", side,
                           "Resize images so that their long side has this many pixels, as training at this "
                           "image_size would");
        command.add_flag("--dry-run", dry_run,
                         "Write nothing: predict size and time of encoded, raw and resized output, and the storage "
                         "bandwidth under which raw doesn't pay, from a sample of the images");
    }
    void add_tiles_to(CLI::App& command) {
        CLI::Option* tile =
            command.add_option("--tile", tiles.side,
                               "Cut images into square tiles of this many pixels, stored as PNG; the last row "
                               "and column align to the image's edge");
        command.add_option("--overlap", tiles.overlap, "Pixels that neighbouring tiles share (default: half a tile)")
            ->needs(tile);
        command
            .add_option("--min-visible", tiles.min_visible,
                        "A box belongs to every tile that holds at least this fraction of its area, clipped to the "
                        "tile; from other tiles that touch it, it is dropped and counted")
            ->needs(tile)
            ->capture_default_str();
        command.add_flag("--drop-empty-tiles", tiles.drop_empty, "Leave out tiles that no box belongs to")->needs(tile);
    }

    /// `read` gives the source and adds to the findings.
    template <typename Read>
    void import(const CLI::App& command, const Read& read) {
        options.out = common.out;
        options.threads = common.threads;
        options.encoding = raw ? sharding::Encoding::raw : sharding::Encoding::encoded;
        if (command.count("--side") > 0) {
            options.side = side;
        }
        if (command.get_option_no_throw("--tile") && command.count("--tile") > 0) {
            if (command.count("--overlap") == 0) {
                tiles.overlap = tiles.side / 2;
            }
            options.tiles = tiles;
        }
        sharding::Findings findings(options.strict);
        const sharding::ImportSource source = read(options, findings);
        if (dry_run) {
            const sharding::ImportForecast forecast = sharding::forecast_import(source, options, findings);
            std::puts((common.json ? sharding::forecast_json(forecast, findings) : sharding::forecast_text(forecast))
                          .c_str());
            return;
        }
        sharding::import_images(source, options, findings);
        report(common.out, common.json);
    }
};

/// --classes, or those of a data set that is there: training and validation sets must agree.
struct ClassArguments {
    std::vector<std::string> classes;
    fs::path like;
    bool skip_unknown = false;

    void add_to(CLI::App& command, const char* default_text) {
        CLI::Option* names = add_classes(command, classes, default_text);
        command
            .add_option("--like", like, "Take the class names of this data set (training and validation must agree)")
            ->excludes(names);
        command.add_flag("--skip-unknown-classes", skip_unknown, "Drop and count what has another class");
    }
    void resolve() {
        if (!like.empty()) {
            classes = sharding::Dataset::open(like).classes();
        }
        if (skip_unknown && classes.empty()) {
            throw base::UsageError("--skip-unknown-classes needs --classes or --like");
        }
    }
};

void add_voc(CLI::App& import) {
    struct Arguments {
        ImageArguments image;
        ClassArguments classes;
        sharding::VocOptions voc;
    };
    const auto arguments = std::make_shared<Arguments>();
    CLI::App* command = import.add_subcommand("voc", "Photos with boxes in Pascal VOC XML");
    arguments->image.add_to(*command);
    command
        ->add_option("SOURCE", arguments->voc.source,
                     "An XML file, a folder of them, or a folder that holds Annotations/ and JPEGImages/")
        ->required();
    command->add_flag("--one-based{true},--zero-based{false}", arguments->voc.one_based,
                      "Whether pixels count from 1 and xmax is inside the box, as Pascal VOC defines it (default), or "
                      "coordinates are the box's edges, from 0");
    arguments->classes.add_to(
        *command, "Class names in order, a,b,c (default: those that occur, sorted); any other name is an error");
    arguments->image.add_tiles_to(*command);
    command->footer("Example:\n  lockstep import voc photos/Annotations --tile 256 --overlap 128 --out data/train");
    command->callback([command, arguments] {
        arguments->image.import(*command, [&](const sharding::ImportOptions& options, sharding::Findings& findings) {
            arguments->classes.resolve();
            arguments->voc.classes = arguments->classes.classes;
            arguments->voc.skip_unknown_classes = arguments->classes.skip_unknown;
            return sharding::read_voc(arguments->voc, options.threads, findings);
        });
    });
}

void add_coco(CLI::App& import) {
    struct Arguments {
        ImageArguments image;
        sharding::CocoOptions coco;
    };
    const auto arguments = std::make_shared<Arguments>();
    CLI::App* command = import.add_subcommand("coco", "Photos with boxes in COCO JSON");
    arguments->image.add_to(*command);
    command->add_option("SOURCE", arguments->coco.source, "The annotations, instances_*.json")->required();
    command->add_option("--images", arguments->coco.images,
                        "The folder of the images (default: where COCO's archives put it, or beside the annotations)");
    arguments->image.add_tiles_to(*command);
    command->footer(
        "Example:\n  lockstep import coco coco/annotations/instances_val2017.json --images coco/val2017 --out "
        "data/val");
    command->callback([command, arguments] {
        arguments->image.import(*command, [&](const sharding::ImportOptions&, sharding::Findings& findings) {
            return sharding::read_coco(arguments->coco, findings);
        });
    });
}

void add_yolo(CLI::App& import) {
    struct Arguments {
        ImageArguments image;
        sharding::YoloOptions yolo;
    };
    const auto arguments = std::make_shared<Arguments>();
    CLI::App* command = import.add_subcommand("yolo", "Photos with boxes in YOLO text files");
    arguments->image.add_to(*command);
    command->add_option("SOURCE", arguments->yolo.source, "The data.yaml, or a folder that holds it")->required();
    command->add_option("--split", arguments->yolo.split, "Which images of data.yaml")
        ->check(CLI::IsMember({"train", "val", "test"}))
        ->capture_default_str();
    arguments->image.add_tiles_to(*command);
    command->footer("Example:\n  lockstep import yolo photos/data.yaml --split val --out data/val");
    command->callback([command, arguments] {
        arguments->image.import(*command, [&](const sharding::ImportOptions&, sharding::Findings& findings) {
            return sharding::read_yolo(arguments->yolo, findings);
        });
    });
}

void add_imagefolder(CLI::App& import) {
    struct Arguments {
        ImageArguments image;
        ClassArguments classes;
        sharding::ImageFolderOptions folder;
    };
    const auto arguments = std::make_shared<Arguments>();
    CLI::App* command = import.add_subcommand("imagefolder", "Labelled images, a folder for each class");
    arguments->image.add_to(*command);
    command->add_option("SOURCE", arguments->folder.source, "The folder that holds the classes' folders")->required();
    arguments->classes.add_to(*command, "Class names in order, a,b,c (default: the folders' names, sorted)");
    command->footer("Example:\n  lockstep import imagefolder photos/val --like data/train --out data/val");
    command->callback([command, arguments] {
        arguments->image.import(*command, [&](const sharding::ImportOptions&, sharding::Findings& findings) {
            arguments->classes.resolve();
            arguments->folder.classes = arguments->classes.classes;
            arguments->folder.skip_unknown_classes = arguments->classes.skip_unknown;
            return sharding::read_imagefolder(arguments->folder, findings);
        });
    });
}

void add_idx(CLI::App& import) {
    struct Arguments {
        Common common;
        sharding::IdxOptions idx;
    };
    const auto arguments = std::make_shared<Arguments>();
    CLI::App* command = import.add_subcommand("idx", "Labelled small images in the format of MNIST and Fashion-MNIST");
    arguments->common.add_to(*command);
    command
        ->add_option("SOURCE", arguments->idx.source,
                     "A folder with SPLIT-images-idx3-ubyte and SPLIT-labels-idx1-ubyte, each plain or .gz")
        ->required();
    command->add_option("--split", arguments->idx.split, "Which pair of files")
        ->check(CLI::IsMember({"train", "t10k"}))
        ->capture_default_str();
    add_classes(*command, arguments->idx.classes, "Class names in the order of the labels, a,b,c (default: 0,1,2,...)");
    command->footer(
        "Example:\n  lockstep import idx /usr/share/datasets/fashion-mnist --split t10k --out data/fashion-test \\\n"
        "    --classes t-shirt,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,boot");
    command->callback([arguments] {
        arguments->idx.out = arguments->common.out;
        sharding::import_idx(arguments->idx);
        report(arguments->common.out, arguments->common.json);
    });
}

void add_composed(CLI::App& import) {
    struct Arguments {
        Common common;
        sharding::ComposedOptions composed;
    };
    const auto arguments = std::make_shared<Arguments>();
    CLI::App* command = import.add_subcommand(
        "composed", "Composed scenes (not a real detection set): real articles of an IDX set on crops of real photos");
    arguments->common.add_to(*command);
    arguments->common.add_threads_to(*command);
    sharding::ComposedOptions& options = arguments->composed;
    command->add_option("--articles", options.articles, "Folder of the IDX files, such as Fashion-MNIST's")->required();
    command->add_option("--photos", options.photos, "Photos, or folders of them, for the background")->required();
    command
        ->add_option("--split", options.split, "Whose articles: train for training scenes, t10k for validation scenes")
        ->check(CLI::IsMember({"train", "t10k"}))
        ->capture_default_str();
    command->add_option("--images", options.images, "Number of scenes")->capture_default_str();
    command->add_option("--size", options.size, "Side of a scene, pixels")->capture_default_str();
    command->add_option("--longest", options.longest,
                        "Scenes of unlike shapes: --size is the short side, the long one is drawn up to this");
    command->add_option("--smallest", options.smallest, "Least side of an article, pixels")->capture_default_str();
    command->add_option("--largest", options.largest, "Greatest side of an article, pixels")->capture_default_str();
    command->add_option("--fewest-articles", options.fewest_articles, "Least number of articles that a scene is given")
        ->capture_default_str();
    command
        ->add_option("--most-articles", options.most_articles,
                     "Greatest number; those that find no free place are left out")
        ->capture_default_str();
    command->add_option("--seed", options.seed, "Scenes are a pure function of this and their number")
        ->capture_default_str();
    command->add_flag("--tint", options.tint, "Colour the articles at random");
    command->add_flag("--raw", options.raw, "Store pixels instead of JPEG");
    add_classes(*command, options.classes, "Class names in the order of the labels, a,b,c (default: 0,1,2,...)");
    command->footer(
        "Example:\n  lockstep import composed --articles /usr/share/datasets/fashion-mnist --photos photos --images "
        "1000 \\\n"
        "    --split t10k --out data/composed-val");
    command->callback([arguments] {
        arguments->composed.out = arguments->common.out;
        arguments->composed.threads = arguments->common.threads;
        sharding::import_composed(arguments->composed);
        report(arguments->common.out, arguments->common.json);
    });
}

}  // namespace

void add_import_command(CLI::App& app) {
    CLI::App* import = app.add_subcommand("import", "Make a data set of images and annotations in another format");
    import->require_subcommand(1);
    add_coco(*import);
    add_yolo(*import);
    add_voc(*import);
    add_imagefolder(*import);
    add_idx(*import);
    add_composed(*import);
    import->footer(
        "Example:\n  lockstep import voc photos/Annotations --tile 256 --overlap 128 --out data/train\n"
        "Each format has its own --help: lockstep import voc --help");
}

}  // namespace lockstep::app
