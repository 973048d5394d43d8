// What all importers of image files share, and the readers of COCO, YOLO and ImageFolder: every malformed case, on
// small files made here.
#include "sharding/import_images.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <set>
#include <thread>

#include "base/file.h"
#include "sharding/import_coco.h"
#include "sharding/import_imagefolder.h"
#include "sharding/import_journal.h"
#include "sharding/import_yolo.h"
#include "sharding/inspect.h"
#include "tests/sharding/scratch.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::error_of;
using Corners = std::array<float, 4>;

Image pattern(std::uint32_t width, std::uint32_t height, std::uint32_t seed = 0) {
    Image image = Image::blank(width, height);
    for (std::size_t i = 0; i < image.pixels.size(); ++i) {
        image.pixels[i] = static_cast<std::uint8_t>(i * 31 + i / 97 + seed * 7);
    }
    return image;
}

Corners corners(const Box& box) {
    return {box.x1, box.y1, box.x2, box.y2};
}

class ImportImagesTest : public test::Scratch {
  protected:
    ImportImagesTest() { options.out = path("out"); }

    void photo(const std::string& name, std::uint32_t seed = 0) { write(name, encode_png(pattern(64, 48, seed))); }

    template <typename Read>
    Dataset import(const Read& read) {
        Findings findings(options.strict);
        import_images(read(findings), options, findings);
        return Dataset::open(path("out"));
    }
    Dataset import_coco() {
        return import([&](Findings& findings) { return read_coco({path("in/instances.json"), {}}, findings); });
    }
    Dataset import_yolo() {
        return import([&](Findings& findings) { return read_yolo({path("in"), "train"}, findings); });
    }
    Dataset import_folder(const std::vector<std::string>& classes = {}) {
        return import([&](Findings& findings) { return read_imagefolder({path("in"), classes}, findings); });
    }
    void coco(const std::string& images, const std::string& annotations,
              const std::string& categories = R"({"id": 90, "name": "dog"}, {"id": 3, "name": "cat"})") {
        write("in/instances.json", base::str(R"({"images": [)", images, R"(], "annotations": [)", annotations,
                                             R"(], "categories": [)", categories, "]}"));
    }
    void yolo(const std::string& labels) {
        photo("in/images/train/a.png");
        write("in/data.yaml", "train: images/train\nnc: 2\nnames: [cat, dog]\n");
        write("in/labels/train/a.txt", labels);
    }

    ImportOptions options;
};

// ---- COCO ----

TEST_F(ImportImagesTest, CocoKeepsAreaIdsCrowdsAndCategoryGaps) {
    photo("in/a.png");
    coco(R"({"id": 397133, "file_name": "a.png", "width": 64, "height": 48})",
         R"({"id": 11, "image_id": 397133, "category_id": 90, "bbox": [1.5, 2, 10, 20], "area": 77.25, "iscrowd": 0,
             "segmentation": null},
            {"id": 12, "image_id": 397133, "category_id": 3, "bbox": [0, 0, 64, 48], "area": 5, "iscrowd": 1})");
    const Dataset set = import_coco();
    EXPECT_EQ(set.classes(), (std::vector<std::string>{"cat", "dog"}));
    const Sample sample = set.sample(0);
    EXPECT_EQ(sample.image_id, 397133);
    ASSERT_EQ(sample.boxes.size(), 2u);
    EXPECT_EQ(corners(sample.boxes[0]), (Corners{1.5f, 2, 11.5f, 22}));
    EXPECT_EQ(sample.boxes[0].area, 77.25f);
    EXPECT_EQ(sample.boxes[0].annotation_id, 11);
    EXPECT_EQ(sample.boxes[0].class_index, 1);
    EXPECT_EQ(sample.boxes[1].flags, box_crowd);
    EXPECT_EQ(set.dropped_boxes(), DropCounts{});
    EXPECT_EQ(verify_directory(path("out")), 1u);
}

TEST_F(ImportImagesTest, CocoMalformedCases) {
    photo("in/a.png");
    photo("in/b.png", 1);
    write("secret.png", encode_png(pattern(8, 8)));
    coco(R"({"id": 1, "file_name": "a.png"}, {"id": 1, "file_name": "b.png"}, {"id": "2", "file_name": "b.png"},
            {"file_name": "c.png"}, {"id": 5}, {"id": 6, "file_name": "../secret.png"}, {"id": 7, "file_name": "gone.png"})",
         R"({"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 1, 5, 0], "area": 1},
            {"id": 2, "image_id": 1, "category_id": 3, "bbox": [1, 1, -5, 5], "area": 1},
            {"id": 3, "image_id": 1, "category_id": 3, "bbox": [100, 1, 5, 5], "area": 1},
            {"id": 4, "image_id": 1, "category_id": 4, "bbox": [1, 1, 5, 5], "area": 1},
            {"id": 5, "image_id": 99, "category_id": 3, "bbox": [1, 1, 5, 5], "area": 1},
            {"id": 0, "image_id": 1, "category_id": 3, "bbox": [1, 1, 5, 5]},
            {"id": 0, "image_id": 1, "category_id": 3, "bbox": [1, 1, 5, 5], "area": 1},
            {"id": 6, "image_id": 1, "category_id": 3, "bbox": [1, 1, 5], "area": 1},
            {"id": 7, "image_id": 1, "category_id": 3, "bbox": [1, 1, null, 5], "area": 1},
            {"id": 8, "image_id": 1, "category_id": 3, "bbox": [1, 1, 1e300, 5], "area": 1},
            {"image_id": 1, "category_id": 3, "bbox": [1, 1, 5, 5], "area": 1}, 17,
            {"id": 9, "image_id": 1, "category_id": 3, "bbox": [60, 40, 20, 20], "area": 0},
            {"id": 10, "image_id": 6, "category_id": 3, "bbox": [1, 1, 5, 5], "area": 1})");
    const Dataset set = import_coco();
    EXPECT_EQ(set.size(), 2u);
    EXPECT_EQ(set.dropped_images(),
              (DropCounts{{"bad_image_entry", 2}, {"duplicate_image_id", 1}, {"outside_source", 1}, {"missing", 1}}));
    EXPECT_EQ(set.dropped_boxes(), (DropCounts{{"no_area", 1},
                                               {"inverted", 1},
                                               {"outside", 1},
                                               {"unknown_class", 1},
                                               {"absent_image", 1},
                                               {"duplicate_annotation_id", 1},
                                               {"bad_annotation_entry", 5}}));
    EXPECT_EQ(set.notes(),
              (DropCounts{{"string_id", 1}, {"no_area_field", 1}, {"annotation_id_zero", 1}, {"clipped", 1}}));
    ASSERT_EQ(set.sample(0).boxes.size(), 2u);
    EXPECT_EQ(set.sample(0).boxes[0].area, 25);
    EXPECT_EQ(corners(set.sample(0).boxes[1]), (Corners{60, 40, 64, 48}));
}

TEST_F(ImportImagesTest, StrictNamesTheFirstFinding) {
    photo("in/a.png");
    coco(R"({"id": 1, "file_name": "a.png"})",
         R"({"id": 918, "image_id": 1, "category_id": 3, "bbox": [1, 1, 5, 0], "area": 1})");
    options.strict = true;
    const std::string message = error_of([&] { import_coco(); });
    EXPECT_TRUE(contains(message, "no_area"));
    EXPECT_TRUE(contains(message, "a.png"));
    EXPECT_EQ(entries(), 1u);
}

TEST_F(ImportImagesTest, CocoThatIsNone) {
    write("in/instances.json", R"({"images": [)");
    EXPECT_TRUE(contains(error_of([&] { import_coco(); }), "not valid JSON"));
    write("in/instances.json", R"([1, 2])");
    EXPECT_TRUE(contains(error_of([&] { import_coco(); }), "no array \"categories\""));
    coco("", "", R"({"id": 1, "name": "cat"}, {"id": 1, "name": "dog"})");
    EXPECT_TRUE(contains(error_of([&] { import_coco(); }), "another category's too"));
}

// ---- YOLO ----

TEST_F(ImportImagesTest, YoloBoxesAreFractions) {
    yolo("1 0.5 0.5 0.25 0.5\n0 0.125 0.25 0.25 0.5");
    const Dataset set = import_yolo();
    ASSERT_EQ(set.sample(0).boxes.size(), 2u);
    EXPECT_EQ(corners(set.sample(0).boxes[0]), (Corners{24, 12, 40, 36}));
    EXPECT_EQ(set.sample(0).boxes[0].area, 16 * 24);
    EXPECT_EQ(set.sample(0).boxes[0].class_index, 1);
    EXPECT_EQ(corners(set.sample(0).boxes[1]), (Corners{0, 0, 16, 24}));
    EXPECT_EQ(set.notes(), DropCounts{});
}

TEST_F(ImportImagesTest, YoloMalformedCases) {
    yolo(
        "\xEF\xBB\xBF"
        "0 0.5 0.5 0.25 0.5\r\n"         // byte order mark, carriage returns: read as meant
        "0 0.5 0.5 0.25 0.5\r\n"         // again
        "1.0 0.5 0.5 0.5 0.5\r\n"        // class with a point
        "0 0.5 0.5 1.005 0.5\r\n"        // within 1 %: clipped
        "0 32 24 16 24\r\n"              // pixels
        "0 -0.5 0.5 0.1 0.1\r\n"         // negative
        "2 0.5 0.5 0.1 0.1\r\n"          // class >= nc
        "-1 0.5 0.5 0.1 0.1\r\n"         //
        "0.5 0.5 0.5 0.1 0.1\r\n"        //
        "0 0.5 0.5 0.1\r\n"              // too few columns
        "cat 0.5 0.5 0.1 0.1\r\n"        // no number
        "0 nan 0.5 0.1 0.1\r\n"          //
        "0 0.5 0.5 0 0.1\r\n"            // no width
        "0 0.5 0.5 -0.005 0.1\r\n"       // negative width
        "0 0.1 0.1 0.5 0.1 0.5 0.5\r\n"  // a triangle
        "\r\n");
    photo("in/images/train/b.png", 1);
    photo("in/images/train/c.png", 2);
    write("in/labels/train/c.txt", "");
    const Dataset set = import_yolo();
    EXPECT_EQ(set.size(), 3u);
    EXPECT_EQ(set.dropped_boxes(), (DropCounts{{"duplicate_row", 1},
                                               {"out_of_range", 2},
                                               {"bad_class", 3},
                                               {"bad_row", 2},
                                               {"not_finite", 1},
                                               {"no_area", 1},
                                               {"inverted", 1}}));
    EXPECT_EQ(set.notes(),
              (DropCounts{
                  {"float_class", 1}, {"clipped", 1}, {"polygon", 1}, {"no_label_file", 1}, {"empty_label_file", 1}}));
    ASSERT_EQ(set.sample(0).boxes.size(), 4u);
    const Corners triangle = corners(set.sample(0).boxes[3]);
    EXPECT_NEAR(triangle[0], 6.4, 1e-5);
    EXPECT_NEAR(triangle[3], 24, 1e-5);
}

TEST_F(ImportImagesTest, YoloDescriptions) {
    const auto read = [](const std::string& text) { return read_yolo_yaml(text, "train", "data.yaml"); };
    EXPECT_EQ(read("train: [a, b]\nnames: {0: cat, 1: dog}\n").split.size(), 2u);
    EXPECT_TRUE(contains(error_of([&] { read("train: a\nnames: {0: cat, 2: dog}\n"); }), "no class 1"));
    EXPECT_TRUE(contains(error_of([&] { read("train: a\nnc: 3\nnames: [cat]\n"); }), "\"nc\" is 3"));
    EXPECT_TRUE(contains(error_of([&] { read("val: a\nnames: [cat]\n"); }), "give one of val"));
    EXPECT_TRUE(contains(error_of([&] { read("train: [\n"); }), "not the YAML of a data set"));
    EXPECT_TRUE(contains(error_of([&] { read("names: [cat, cat]\ntrain: a\n"); }), "twice"));
    EXPECT_TRUE(contains(error_of([&] { read("7"); }), "no \"names\""));
}

// ---- ImageFolder ----

TEST_F(ImportImagesTest, ImageFolder) {
    photo("in/cat/a.png");
    photo("in/dog/deep/b.png", 1);
    photo("in/.ipynb_checkpoints/c.png");
    write("in/cat/.DS_Store", "x");
    write("in/cat/notes.txt", "x");
    fs::create_directories(path("in/bird"));
    fs::create_symlink(path("in/dog/deep/b.png"), path("in/cat/link.png"));
    fs::create_symlink(path("nowhere.png"), path("in/cat/dangling.png"));
    const Dataset set = import_folder();
    EXPECT_EQ(set.classes(), (std::vector<std::string>{"bird", "cat", "dog"}));
    ASSERT_EQ(set.size(), 3u);
    EXPECT_EQ(set.file_name(0), "cat/a.png");
    EXPECT_EQ(set.sample(0).label, 1);
    EXPECT_EQ(set.sample(2).label, 2);
    EXPECT_EQ(set.dropped_images(), (DropCounts{{"missing", 1}}));
    EXPECT_EQ(set.notes(),
              (DropCounts{{"hidden", 2}, {"not_an_image_file", 1}, {"empty_class", 1}, {"duplicate_content", 1}}));
}

TEST_F(ImportImagesTest, TheClassesOfTrainingHoldForValidation) {
    photo("in/dog/a.png");
    EXPECT_EQ(import_folder({"cat", "dog"}).sample(0).label, 1);
    fs::remove_all(path("out"));
    photo("in/wolf/b.png", 1);
    EXPECT_TRUE(contains(error_of([&] { import_folder({"cat", "dog"}); }), "class 'wolf'"));
}

TEST_F(ImportImagesTest, AWrongSourceSaysWhichSubcommandFits) {
    photo("in/cat/a.png");
    Findings findings(false);
    const std::string message = error_of([&] { read_coco({path("in"), {}}, findings); });
    EXPECT_TRUE(contains(message, "1 folders of images"));
    EXPECT_TRUE(contains(message, "lockstep import imagefolder"));
    write("other/a.xml", "<annotation/>");
    EXPECT_TRUE(contains(error_of([&] { read_yolo({path("other"), "train"}, findings); }), "lockstep import voc"));
}

// ---- images ----

TEST_F(ImportImagesTest, OddImagesAreCounted) {
    const std::vector<std::uint8_t> jpeg = encode_jpeg(pattern(64, 48), 90);
    write("in/c/a.png", jpeg);
    write("in/c/b.png", encode_png(pattern(9, 12)));
    write("in/c/c.jpg", std::span(jpeg).first(jpeg.size() / 2));
    write("in/c/d.jpg", "");
    const Dataset set = import_folder();
    EXPECT_EQ(set.size(), 2u);
    EXPECT_EQ(set.dropped_images(), (DropCounts{{"unreadable", 2}}));
    EXPECT_EQ(set.notes(), (DropCounts{{"wrong_extension", 1}, {"tiny", 1}}));
}

TEST_F(ImportImagesTest, RawIsWhatTheLoaderWouldMakeOfTheImage) {
    photo("in/a.png");
    coco(R"({"id": 1, "file_name": "a.png"})",
         R"({"id": 1, "image_id": 1, "category_id": 3, "bbox": [32, 24, 32, 24], "area": 100})");
    options.encoding = Encoding::raw;
    options.side = 32;
    const Dataset set = import_coco();
    const Sample sample = set.sample(0);
    EXPECT_EQ(sample.width, 32u);
    EXPECT_EQ(sample.height, 24u);
    const Image expected = resize(pattern(64, 48), {32, 24});
    EXPECT_EQ(std::vector(sample.bytes.begin(), sample.bytes.end()), expected.pixels);
    ASSERT_EQ(sample.boxes.size(), 1u);
    EXPECT_EQ(corners(sample.boxes[0]), (Corners{16, 12, 32, 24}));
    EXPECT_EQ(sample.boxes[0].area, 25);
    EXPECT_EQ(verify_directory(path("out")), 1u);
}

TEST_F(ImportImagesTest, AForecastIsOfTheSizeThatTheImportHas) {
    for (std::uint32_t i = 0; i < 5; ++i) {
        photo(base::str("in/c/", i, ".png"), i);
    }
    Findings findings(false);
    const ImportForecast forecast =
        forecast_import(read_imagefolder({path("in"), {}}, findings), options, findings, 100);
    EXPECT_FALSE(fs::exists(path("out")));
    EXPECT_EQ(forecast.images, 5u);
    double encoded = 0;
    for (std::uint32_t i = 0; i < 5; ++i) {
        encoded += static_cast<double>(fs::file_size(path(base::str("in/c/", i, ".png"))));
    }
    ASSERT_EQ(forecast.outputs.size(), 4u);
    EXPECT_EQ(forecast.outputs[0].bytes, encoded);
    EXPECT_EQ(forecast.outputs[1].bytes, 5.0 * 64 * 48 * 3);
    EXPECT_EQ(forecast.outputs[3].bytes, 5.0 * 640 * 480 * 3);
    EXPECT_TRUE(contains(forecast_text(forecast), "raw"));
    EXPECT_TRUE(contains(forecast_json(forecast, findings), "raw_pays_above_bytes_per_second"));
}

// ---- killed ----

std::vector<std::vector<std::uint8_t>> files_of(const fs::path& folder) {
    std::set<fs::path> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        names.insert(entry.path());
    }
    std::vector<std::vector<std::uint8_t>> contents;
    for (const fs::path& name : names) {
        contents.push_back(base::read_bytes(name));
    }
    return contents;
}

class KilledImportTest : public ImportImagesTest {
  protected:
    void SetUp() override {
        ImportImagesTest::SetUp();
        std::string images, annotations;
        for (std::uint32_t i = 0; i < 40; ++i) {
            photo(base::str("in/", i, ".png"), i % 30);
            images += base::str(i ? "," : "", R"({"id": )", i + 1, R"(, "file_name": ")", i, R"(.png"})");
            annotations += base::str(i ? "," : "", R"({"id": )", i + 1, R"(, "image_id": )", i + 1,
                                     R"(, "category_id": 3, "bbox": [1, 1, 5, )", i % 3, R"(], "area": 1})");
        }
        coco(images, annotations);
        options.max_shard_bytes = 3 * fs::file_size(path("in/0.png"));  // several shards
        options.threads = 1;
    }
    void expect_that_kills_change_nothing();
};

void KilledImportTest::expect_that_kills_change_nothing() {
    import_coco();
    const auto whole = files_of(path("out"));
    fs::remove_all(path("out"));

    const fs::path journal = path("out.importing/journal");
    int kills = 0;
    for (std::uintmax_t reached = 0; !fs::exists(path("out")) && kills < 60;) {
        const pid_t child = fork();
        if (child == 0) {
            try {
                import_coco();
            } catch (...) {
                _exit(1);
            }
            _exit(0);
        }
        // Killed when the journal has grown by a little, wherever the process then is.
        const std::uintmax_t goal = reached + 600;
        int status = 0;
        bool ended = false;
        while (!(ended = waitpid(child, &status, WNOHANG) == child)) {
            std::error_code ignored;
            const std::uintmax_t size = fs::file_size(journal, ignored);
            if (!ignored && size >= goal) {
                break;
            }
        }
        if (!ended) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            ++kills;
            std::error_code ignored;
            reached = fs::file_size(journal, ignored);
            reached = ignored ? 0 : reached;
        } else {
            ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
    }
    EXPECT_GE(kills, 2);
    if (!fs::exists(path("out"))) {
        import_coco();
    }
    EXPECT_EQ(files_of(path("out")), whole) << "after " << kills << " kills";
    EXPECT_FALSE(fs::exists(path("out.importing")));
}

TEST_F(KilledImportTest, GoesOnAndGivesTheSame) {
    write("in/17.png", "no image at all, found by the header");
    expect_that_kills_change_nothing();
}

TEST_F(KilledImportTest, CountsAPhotoThatCanNotBeDecodedOnceAndNotForEveryTile) {
    for (int i = 0; i < 40; i += 3) {
        const fs::path file = path(base::str("in/", i, ".png"));
        fs::resize_file(file, fs::file_size(file) / 2);  // its header is whole
    }
    options.tiles = TileOptions{.side = 16, .overlap = 4};
    expect_that_kills_change_nothing();
}

TEST_F(ImportImagesTest, AHalfDoneImportOfOtherWorkIsRefusedAndKept) {
    photo("in/c/a.png");
    fs::create_directories(path("out.importing"));
    ImportJournal(path("out.importing/journal"), {}).append(JournalEntry().put('W').put(std::uint64_t{12345}));
    const std::string message = error_of([&] { import_folder(); });
    EXPECT_TRUE(contains(message, "out.importing holds a half-done import of another source"));
    EXPECT_TRUE(fs::exists(path("out.importing/journal")));
    EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(ImportImagesTest, ATornJournalCountsForNothing) {
    photo("in/c/a.png");
    write("out.importing/journal", std::string_view("\x09\0\0\0\0\0\0\0", 8));
    write("out.importing/shard-00000.h5.pool", "torn");
    EXPECT_EQ(import_folder().size(), 1u);
    EXPECT_EQ(files_of(path("out")).size(), 3u) << "index, shard and checksums, nothing else";
}

// ---- verify, inspect ----

TEST_F(ImportImagesTest, VerifyFindsEveryFlippedByte) {
    photo("in/a.png");
    coco(R"({"id": 1, "file_name": "a.png"})",
         R"({"id": 1, "image_id": 1, "category_id": 3, "bbox": [32, 24, 32, 24], "area": 100})");
    import_coco();
    for (const fs::directory_entry& entry : fs::directory_iterator(path("out"))) {
        const std::vector<std::uint8_t> good = base::read_bytes(entry.path());
        const std::size_t step = good.size() > 4096 ? 101 : 1;  // a prime, so that no field is always missed
        for (std::size_t i = 0; i < good.size(); i += step) {
            std::vector<std::uint8_t> bad = good;
            bad[i] ^= static_cast<std::uint8_t>(1 + i % 255);
            write(base::str("out/", entry.path().filename().string()), bad);
            std::string message;
            try {
                verify_directory(path("out"), 1);
            } catch (const base::Error& error) {
                message = error.what();
            }
            ASSERT_TRUE(contains(message, "out/")) << entry.path() << " byte " << i << " of " << good.size();
        }
        write(base::str("out/", entry.path().filename().string()), good);
    }
    EXPECT_EQ(verify_directory(path("out")), 1u);
}

TEST_F(ImportImagesTest, InspectTellsSizesAndDrawsASheet) {
    photo("in/a.png");
    coco(R"({"id": 1, "file_name": "a.png"})",
         R"({"id": 1, "image_id": 1, "category_id": 3, "bbox": [0, 0, 10, 10], "area": 1023},
            {"id": 2, "image_id": 1, "category_id": 3, "bbox": [0, 0, 10, 10], "area": 1024},
            {"id": 3, "image_id": 1, "category_id": 3, "bbox": [0, 0, 10, 10], "area": 9217})");
    const Dataset set = import_coco();
    const BoxSizes sizes = box_sizes(set);
    EXPECT_EQ((std::array{sizes.small, sizes.medium, sizes.large}), (std::array<std::uint64_t, 3>{1, 1, 1}));
    const Image sheet = decode_rgb(draw_sheet(set), "sheet");
    EXPECT_EQ(sheet.width, 240u);
    const Image plain = resize(pattern(64, 48), {240, 180});
    EXPECT_EQ(std::vector(sheet.row(100) + 600, sheet.row(100) + 720),
              std::vector(plain.row(100) + 600, plain.row(100) + 720));
    EXPECT_NE(std::vector(sheet.row(0), sheet.row(0) + 90), std::vector(plain.row(0), plain.row(0) + 90));
}

// ---- documentation ----

TEST_F(ImportImagesTest, TheGuideListsEveryReasonWithItsOutcome) {
    const std::string guide = base::read_text(LOCKSTEP_IMPORT_DOCS);
    std::size_t rows = 0;
    for (const Reason& reason : all_reasons()) {
        EXPECT_TRUE(contains(
            guide, base::str("| `", reason.name, "` | ", outcome_name(reason.outcome), " | ", reason.meaning, " |\n")));
    }
    for (std::size_t at = guide.find("\n| `"); at != std::string::npos; at = guide.find("\n| `", at + 1)) {
        ++rows;
    }
    EXPECT_EQ(rows, all_reasons().size());
}

}  // namespace
}  // namespace lockstep::sharding
