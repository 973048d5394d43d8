// A data set whose tables, pools and images are changed inside a well-formed container. The first byte of the input
// chooses one of four data sets (bits 0 and 1), the read path (bit 2) and the decoder (bit 3); then come changes: which
// table, where in it (two bytes), how many bytes (1 to 16, of the low four bits), and those bytes.
#include <unistd.h>

#include <array>
#include <fstream>
#include <opencv2/imgcodecs.hpp>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hdf5.h"
#include "sharding/augmentation.h"
#include "sharding/dataset_writer.h"
#include "sharding/inspect.h"
#include "sharding/sample_reader.h"

namespace {

namespace fs = std::filesystem;
using namespace lockstep;
using namespace lockstep::sharding;
using Bytes = std::vector<std::uint8_t>;

constexpr std::array file_names{"index.h5", "shard-00000.h5"};

/// What each decoder has to read.
std::vector<Bytes> encoded_images(const Image& image) {
    std::vector<Bytes> all{encode_png(image), encode_jpeg(image, 80)};
    const cv::Mat pixels(static_cast<int>(image.height), static_cast<int>(image.width), CV_8UC3,
                         const_cast<std::uint8_t*>(image.pixels.data()));
    for (const char* extension : {".tif", ".webp", ".bmp"}) {
        LOCKSTEP_CHECK(cv::imencode(extension, pixels, all.emplace_back()), extension);
    }
    return all;
}

/// A small data set, its files in memory, and where their tables lie.
class Original {
  public:
    Original(const fs::path& folder, Task task, Encoding encoding) {
        constexpr std::uint32_t width = 16, height = 8;
        Image image = Image::blank(width, height);
        for (std::size_t i = 0; i < image.pixels.size(); ++i) {
            image.pixels[i] = static_cast<std::uint8_t>(i * 7);
        }
        const std::vector<Bytes> images =
            encoding == Encoding::raw ? std::vector<Bytes>{image.pixels} : encoded_images(image);
        const std::vector<Box> boxes{{1, 1, 5, 5, 16, 1, 0, 7}, {0, 0, 16, 8, 128, 0, box_crowd, 8}};
        const bool is_detection = task == Task::detection;
        write_dataset(folder, {.task = task, .encoding = encoding, .classes = {"cat", "dog"}, .source = "fuzz"},
                      [&](DatasetWriter& writer) {
                          for (const Bytes& bytes : images) {
                              writer.add({.id = 0,
                                          .image_id = 1,
                                          .width = width,
                                          .height = height,
                                          .label = is_detection ? -1 : 1,
                                          .bytes = bytes,
                                          .boxes = is_detection ? std::span(boxes) : std::span<const Box>{}},
                                         "a");
                          }
                          writer.drop_box("outside");
                      });
        for (const char* name : file_names) {
            const base::Hdf5File file = base::Hdf5File::open_read_only(folder / name);
            for (const char* table :
                 {"pool", "offsets", "crc32c", "width", "height", "image_id", "label", "box_offsets", "boxes",
                  "name_offsets", "names", "classes", "shard_begin", "dropped/boxes/reasons", "dropped/boxes/counts"}) {
                if (file.has(table)) {
                    const base::Hdf5Extent extent = file.extent(table);
                    regions_.push_back({files_.size(), extent.file_offset, extent.bytes});
                }
            }
            files_.push_back(base::read_bytes(folder / name));
        }
        fs::remove_all(folder);
    }

    std::vector<Bytes> changed(std::span<const std::uint8_t> changes) const {
        std::vector<Bytes> files = files_;
        constexpr std::size_t head = 4;
        while (changes.size() > head) {
            const Region& region = regions_[changes[0] % regions_.size()];
            const std::uint64_t at = (changes[1] << 8 | changes[2]) % region.bytes;
            const std::size_t wanted = (changes[3] & 15U) + 1;
            const std::size_t count = std::min({wanted, changes.size() - head, region.bytes - at});
            std::copy_n(changes.begin() + head, count,
                        files[region.file].begin() + static_cast<std::ptrdiff_t>(region.offset + at));
            changes = changes.subspan(std::min(head + wanted, changes.size()));
        }
        return files;
    }

  private:
    struct Region {
        std::size_t file;
        std::uint64_t offset, bytes;
    };
    std::vector<Bytes> files_;
    std::vector<Region> regions_;
};

class Target {
  public:
    Target() : folder_(fs::temp_directory_path() / ("lockstep-shard-fuzz-" + std::to_string(getpid()))) {
        fs::remove_all(folder_);
        for (const Task task : {Task::detection, Task::classification}) {
            for (const Encoding encoding : {Encoding::encoded, Encoding::raw}) {
                originals_.emplace_back(folder_, task, encoding);
            }
        }
        fs::create_directories(folder_);
    }
    ~Target() { fs::remove_all(folder_); }
    Target(const Target&) = delete;
    Target& operator=(const Target&) = delete;

    void run(std::span<const std::uint8_t> input) const {
        const unsigned choice = input.empty() ? 0 : input[0];
        const std::vector<Bytes> files =
            originals_[choice & 3U].changed(input.subspan(std::min<std::size_t>(1, input.size())));
        for (std::size_t i = 0; i < files.size(); ++i) {
            std::ofstream(folder_ / file_names[i], std::ios::binary)
                .write(reinterpret_cast<const char*>(files[i].data()), static_cast<std::streamsize>(files[i].size()));
        }
        unless_refused([&] {
            const Dataset set = Dataset::open(folder_, (choice & 4U) != 0 ? ReadPath::hdf5 : ReadPath::mmap);
            unless_refused([&] { describe_json(set); });
            unless_refused([&] { box_sizes(set); });
            use_samples(set, (choice & 8U) != 0 ? DecodeMode::scaled : DecodeMode::full);
            verify(set);
        });
    }

  private:
    template <typename Action>
    static void unless_refused(Action action) {
        try {
            action();
        } catch (const base::Error&) {
        }
    }

    /// As a training does, but that changed bytes reach the decoder, which their checksums would keep from it.
    static void use_samples(const Dataset& set, DecodeMode decode) {
        constexpr std::uint32_t side = 8;
        const SampleReader reader(set, {.image_size = side, .verify_checksums = false, .decode = decode});
        AugmentationOptions options{.enabled = true, .degrees = 10, .scale = 0.5, .flip_horizontal = 0.5};
        options.mosaic = set.task() == Task::detection ? 0.5 : 0;
        const Augmenter augmenter(options, set.task(), side, 0, UINT64_MAX, set.size());
        ImageBuffers buffers;
        Bytes pixels(std::size_t{side} * side * 3);
        for (std::uint64_t id = 0; id < set.size(); ++id) {
            unless_refused([&] { set.file_name(id); });
            unless_refused([&] {
                std::vector<TargetBox> boxes;
                augmenter.make(
                    0, id, [&](std::uint64_t wanted) { return reader.read(wanted, buffers); }, pixels, boxes);
            });
        }
    }

    /// What verify_all does with tables and bytes, without its threads: starting them takes longer than all the rest.
    static void verify(const Dataset& set) {
        for (std::uint64_t id = 0; id < set.size(); ++id) {
            unless_refused([&] { set.verify(id); });
        }
        unless_refused([&] { set.check_tables(); });
        unless_refused([&] { set.compute_content_hash(); });
        unless_refused([&] { set.max_boxes_per_image(); });
    }

    fs::path folder_;
    std::vector<Original> originals_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const Target target;
    target.run({data, size});
    return 0;
}
