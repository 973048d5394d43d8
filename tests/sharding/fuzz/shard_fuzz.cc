// A data set whose tables, pools and images are changed inside a well-formed container: the input is a list of changes,
// four bytes each (which region, where in it, the new byte).
#include <unistd.h>

#include <fstream>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hdf5.h"
#include "sharding/dataset_writer.h"
#include "sharding/inspect.h"

namespace {

namespace fs = std::filesystem;
using namespace lockstep;
using namespace lockstep::sharding;

struct Region {
    std::size_t file;
    std::uint64_t offset, bytes;
};

class Target {
  public:
    Target() : folder_(fs::temp_directory_path() / ("lockstep-shard-fuzz-" + std::to_string(getpid()))) {
        fs::remove_all(folder_);
        write_dataset(folder_, {.classes = {"cat", "dog"}, .source = "fuzz"}, [](DatasetWriter& writer) {
            const Image image = Image::blank(16, 8);
            const std::vector<Box> boxes{{1, 1, 5, 5, 16, 1, 0, 7}, {0, 0, 16, 8, 128, 0, box_crowd, 8}};
            for (const auto& bytes : {encode_png(image), encode_jpeg(image, 80)}) {
                writer.add(
                    {.id = 0, .image_id = 1, .width = 16, .height = 8, .label = -1, .bytes = bytes, .boxes = boxes},
                    "a");
            }
            writer.drop_box("outside");
        });
        fs::remove(folder_ / format::checksum_file);
        for (const char* name : {"index.h5", "shard-00000.h5"}) {
            const base::Hdf5File file = base::Hdf5File::open_read_only(folder_ / name);
            for (const char* table :
                 {"pool", "offsets", "crc32c", "width", "height", "image_id", "box_offsets", "boxes", "name_offsets",
                  "names", "classes", "shard_begin", "dropped/boxes/reasons", "dropped/boxes/counts"}) {
                if (file.has(table)) {
                    const base::Hdf5Extent extent = file.extent(table);
                    regions_.push_back({contents_.size(), extent.file_offset, extent.bytes});
                }
            }
            contents_.push_back(base::read_bytes(folder_ / name));
        }
    }
    ~Target() { fs::remove_all(folder_); }
    Target(const Target&) = delete;
    Target& operator=(const Target&) = delete;

    void run(std::span<const std::uint8_t> changes) const {
        std::vector<std::vector<std::uint8_t>> changed = contents_;
        for (; changes.size() >= 4; changes = changes.subspan(4)) {
            const Region& region = regions_[changes[0] % regions_.size()];
            const std::uint64_t at = (changes[1] << 8 | changes[2]) % region.bytes;
            changed[region.file][region.offset + at] = changes[3];
        }
        std::size_t file = 0;
        for (const char* name : {"index.h5", "shard-00000.h5"}) {
            const auto& bytes = changed[file++];
            std::ofstream(folder_ / name, std::ios::binary)
                .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
        }
        try {
            const Dataset set = Dataset::open(folder_);
            describe_json(set);
            for (std::uint64_t id = 0; id < set.size(); ++id) {
                set.file_name(id);
                try {  // the decoder gets changed bytes too, which their checksum would refuse
                    decode_rgb(set.sample(id).bytes, "sample");
                } catch (const base::Error&) {
                }
            }
            verify_all(set, 1);
        } catch (const base::Error&) {
        }
    }

  private:
    fs::path folder_;
    std::vector<std::vector<std::uint8_t>> contents_;
    std::vector<Region> regions_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const Target target;
    target.run({data, size});
    return 0;
}
