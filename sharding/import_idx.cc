#include "sharding/import_idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "sharding/dataset_writer.h"
#include "sharding/image.h"
#include "sharding/import_images.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;

/// One IDX file, through zlib, which also reads plain files. Format: two zero bytes, the element type, the number of
/// dimensions, then each dimension as a big-endian 32-bit number, then the elements.
class IdxFile {
  public:
    explicit IdxFile(const fs::path& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
        if (!file_) {
            throw base::Error(base::str("can't read ", path.string()));
        }
    }

    /// The dimensions, checked against what a file of this size can hold before anything is allocated.
    std::vector<std::uint32_t> read_dimensions(std::size_t expected) {
        constexpr std::uint8_t unsigned_byte = 8;
        std::array<std::uint8_t, 4> magic{};
        read(magic);
        if (magic[0] != 0 || magic[1] != 0 || magic[2] != unsigned_byte || magic[3] != expected) {
            fail(base::str("not an IDX file of bytes with ", expected, " dimension", expected == 1 ? "" : "s"));
        }
        std::vector<std::uint32_t> dimensions;
        std::uint64_t elements = 1;
        for (std::size_t d = 0; d < expected; ++d) {
            std::array<std::uint8_t, 4> bytes{};
            read(bytes);
            dimensions.push_back(std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
                                 std::uint32_t{bytes[2]} << 8 | bytes[3]);
            if (dimensions.back() == 0) {
                fail("a dimension is 0: the set is empty");
            }
            if (__builtin_mul_overflow(elements, std::uint64_t{dimensions.back()}, &elements)) {
                fail("its dimensions are impossible");
            }
        }
        constexpr std::uint64_t greatest_ratio = 1032;  // of deflate
        if (elements / greatest_ratio > fs::file_size(path_)) {
            fail(base::str("its header declares ", elements, " bytes, more than a file of ", fs::file_size(path_),
                           " bytes can hold"));
        }
        return dimensions;
    }

    std::vector<std::uint8_t> read_elements(std::uint64_t count) {
        std::vector<std::uint8_t> elements(count);
        read(elements);
        std::uint8_t more = 0;
        if (gzread(file_.get(), &more, 1) != 0) {
            fail("it is longer than its header says");
        }
        return elements;
    }

  private:
    [[noreturn]] void fail(const std::string& what) const { throw base::Error(base::str(path_.string(), ": ", what)); }

    void read(std::span<std::uint8_t> into) {
        constexpr std::size_t piece = std::size_t{1} << 30;  // gzread counts in int
        while (!into.empty()) {
            const int got = gzread(file_.get(), into.data(), static_cast<unsigned>(std::min(into.size(), piece)));
            if (got <= 0) {
                int code = 0;
                const std::string reason = gzerror(file_.get(), &code);
                fail(base::str("damaged, or shorter than its header says",
                               code == Z_OK || code == Z_STREAM_END ? "" : ": " + reason));
            }
            into = into.subspan(static_cast<std::size_t>(got));
        }
    }

    struct Close {
        void operator()(gzFile file) const { gzclose(file); }
    };
    fs::path path_;
    std::unique_ptr<gzFile_s, Close> file_;
};

fs::path find(const fs::path& folder, const std::string& name) {
    for (const char* suffix : {"", ".gz"}) {
        if (fs::exists(folder / (name + suffix))) {
            return folder / (name + suffix);
        }
    }
    throw base::Error(base::str(folder.string(), ": has neither ", name, " nor ", name, ".gz"));
}

}  // namespace

IdxSet read_idx(const fs::path& folder, const std::string& split) {
    IdxSet set;
    set.images_file = find(folder, split + "-images-idx3-ubyte");
    IdxFile images(set.images_file);
    const std::vector<std::uint32_t> dimensions = images.read_dimensions(3);
    const auto [count, height, width] = std::array{dimensions[0], dimensions[1], dimensions[2]};
    set.width = width;
    set.height = height;
    set.pixels = images.read_elements(std::uint64_t{count} * height * width);

    const fs::path labels_file = find(folder, split + "-labels-idx1-ubyte");
    IdxFile labels(labels_file);
    const std::uint32_t label_count = labels.read_dimensions(1)[0];
    if (label_count != count) {
        throw base::Error(base::str(labels_file.string(), ": ", label_count, " labels for the ", count, " images of ",
                                    set.images_file.string()));
    }
    set.labels = labels.read_elements(count);
    return set;
}

void import_idx(const IdxOptions& options) {
    check_class_names(options.classes);
    const IdxSet set = read_idx(options.source, options.split);
    std::vector<std::string> classes = options.classes;
    if (classes.empty()) {
        for (unsigned label = 0; label <= *std::max_element(set.labels.begin(), set.labels.end()); ++label) {
            classes.push_back(std::to_string(label));
        }
    }
    const DatasetDescription description{.task = Task::classification,
                                         .encoding = Encoding::raw,
                                         .classes = classes,
                                         .source = base::str("IDX ", options.source.string(), ", ", options.split)};
    base::require_free_space(options.out, set.pixels.size() * 3, "the data set");
    write_dataset(options.out, description, [&](DatasetWriter& writer) {
        base::Progress progress("import", "images", set.size());
        const std::string file = set.images_file.filename().string();
        Image rgb = Image::blank(set.width, set.height);
        for (std::size_t i = 0; i < set.size(); ++i) {
            if (set.labels[i] >= classes.size()) {
                throw base::Error(base::str(options.source.string(), ": record ", i, " of ", options.split,
                                            " has label ", unsigned{set.labels[i]}, ", and ", classes.size(),
                                            " classes are given: name them all with --classes"));
            }
            std::uint8_t* to = rgb.pixels.data();
            for (const std::uint8_t value : set.image(i)) {
                to = std::fill_n(to, 3, value);
            }
            writer.add({.id = 0,
                        .image_id = static_cast<std::int64_t>(i),
                        .width = set.width,
                        .height = set.height,
                        .label = set.labels[i],
                        .bytes = rgb.pixels,
                        .boxes = {}},
                       base::str(file, "#", i));
            progress.update(i + 1);
        }
        progress.finish();
    });
}

}  // namespace lockstep::sharding
