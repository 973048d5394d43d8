#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::sharding {

struct ImageSize;

enum class Task : std::uint8_t { detection = 0, classification = 1 };
/// `encoded`: the original compressed bytes. `raw`: decoded RGB pixels, height x width x 3, uint8.
enum class Encoding : std::uint8_t { encoded = 0, raw = 1 };

/// How a sample's bytes are brought in; they are the same. `mmap`: pointers into the mapped shard, without a copy and
/// outside of libhdf5. `hdf5`: hyperslabs through the library, one thread at a time; also of chunked shards.
enum class ReadPath : std::uint8_t { mmap = 0, hdf5 = 1 };

enum BoxFlags : std::uint8_t { box_crowd = 1, box_difficult = 2 };

/// Absolute pixels of the stored image, x right and y down, corners half open: width is x2 - x1.
struct Box {
    float x1, y1, x2, y2;
    float area;  ///< the annotation's own area where the source gives one, else width * height; small/medium/large go
                 ///< by it
    std::int32_t class_index;
    std::uint8_t flags;
    std::int64_t annotation_id;
};

/// One sample as it lies in the data set: spans point into the mapped shard and live as long as the Dataset.
struct Sample {
    std::uint64_t id;       ///< position in the data set, 0 .. size()-1
    std::int64_t image_id;  ///< the source's id
    std::uint32_t width, height;
    std::int32_t label;                   ///< classification only, else -1
    std::span<const std::uint8_t> bytes;  ///< see Dataset::sample and Dataset::read
    std::span<const Box> boxes;
};

/// Reasons with counts, kept by import in the data set.
using DropCounts = std::map<std::string, std::uint64_t>;

/// An on-disk data set opened for reading: `index.h5` and its shards, mapped, untrusted. Opening checks what doesn't
/// grow with the set (kinds, types, lengths and ends of tables); the offsets, size, class index and boxes of a sample
/// are checked whenever it is used, so that a million of them are open at once and take no memory. Format:
/// docs/format.md. Thread-safe for reading.
class Dataset {
  public:
    /// Throws base::Error: missing, another format version, tables that don't fit each other (names file and table).
    /// Under ReadPath::mmap also: a shard whose pool is not contiguous, with the remedy.
    static Dataset open(const std::filesystem::path& directory, ReadPath read_path = ReadPath::mmap);
    Dataset(Dataset&&) noexcept;
    Dataset& operator=(Dataset&&) noexcept;
    ~Dataset();

    std::uint64_t size() const;
    Task task() const;
    Encoding encoding() const;
    const std::vector<std::string>& classes() const;
    const std::filesystem::path& directory() const;
    std::uint64_t content_hash()
        const;  ///< over samples, boxes, classes and encoding; not over shard boundaries or time
    std::uint64_t box_count() const;
    std::uint64_t max_boxes_per_image() const;  ///< looks at every sample's count: to be asked for once
    const DropCounts& dropped_images() const;
    const DropCounts& dropped_boxes() const;
    const DropCounts& notes() const;    ///< what was stored although something about it was odd
    const std::string& source() const;  ///< what it was imported from and how, for a person
    std::uint64_t shard_count() const;
    std::uint64_t bytes_on_disk() const;

    ReadPath read_path() const;

    /// Under ReadPath::hdf5 without its bytes, which only read() gives there. Throws base::Error naming file, table and
    /// record where the tables say something impossible about it.
    Sample sample(std::uint64_t id) const;
    /// With its bytes on either path: in the map, with `room` left as it is, or read into `room`, which must live as
    /// long as they are used. Throws base::Error where libhdf5 can't read them.
    Sample read(std::uint64_t id, std::vector<std::uint8_t>& room) const;
    /// As the tables say it, unchecked, and without a look at anything else of the sample.
    ImageSize size_of(std::uint64_t id) const;
    std::string file_name(std::uint64_t id) const;  ///< the source's file name, with "#x,y" for a tile
    /// Every record of every table, as sample() and file_name() check theirs.
    void check_tables() const;
    /// Throws base::Error naming shard, sample and both checksums when the stored bytes do not match their CRC-32C.
    void verify(std::uint64_t id) const;
    /// The same of a sample that read() gave, without reading it again.
    void verify(const Sample& sample) const;
    /// What content_hash() should be, from the tables and the stored checksums; `lockstep verify` compares the two.
    std::uint64_t compute_content_hash() const;
    /// Asks the kernel to read this sample's bytes ahead. Does nothing under ReadPath::hdf5.
    void prefetch(std::uint64_t id) const;
    /// Takes what was touched of the shards out of this process's memory, not out of the kernel's: mapped files
    /// would else grow by all that is read. Spans stay valid.
    void let_go() const;

  private:
    struct State;
    explicit Dataset(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace lockstep::sharding
