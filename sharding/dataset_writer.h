#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "sharding/dataset.h"
#include "sharding/dataset_format.h"

namespace lockstep::sharding {

struct DatasetDescription {
    Task task = Task::detection;
    Encoding encoding = Encoding::encoded;
    std::vector<std::string> classes;
    std::string source;  ///< what it was made from and how, for a person
    std::uint64_t max_shard_bytes = 512u << 20;
};

/// Takes the samples of a new data set in order; made by write_dataset only. Not thread-safe.
class DatasetWriter {
  public:
    ~DatasetWriter();
    DatasetWriter(const DatasetWriter&) = delete;
    DatasetWriter& operator=(const DatasetWriter&) = delete;

    /// `sample.id` is ignored: ids follow the order of the calls. The spans need to live for the call only.
    /// Throws base::Error where the disk is full; what a reader would refuse (sizes, boxes, class indices) is our own
    /// mistake here, since importers sort it out.
    void add(const Sample& sample, std::string_view file_name);
    void drop_image(const std::string& reason, std::uint64_t count = 1);
    void drop_box(const std::string& reason, std::uint64_t count = 1);

    std::uint64_t size() const { return image_ids_.size(); }

  private:
    friend void write_dataset(const std::filesystem::path&, const DatasetDescription&,
                              const std::function<void(DatasetWriter&)>&);
    DatasetWriter(std::filesystem::path directory, const DatasetDescription& description);
    void finish();

    struct CloseFile {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };
    void open_spool();
    void finish_shard();
    std::filesystem::path spool_path() const;

    std::filesystem::path directory_;
    DatasetDescription description_;
    format::ContentHash content_hash_;

    // The shard that is being assembled: its pool in a plain file aside, since a contiguous pool can't grow.
    std::unique_ptr<std::FILE, CloseFile> spool_;
    std::vector<std::uint64_t> shard_offsets_{0};
    std::vector<std::uint32_t> shard_crc32c_;

    std::vector<std::uint64_t> shard_begin_{0};
    std::vector<std::int64_t> image_ids_;
    std::vector<std::uint32_t> widths_, heights_;
    std::vector<std::int32_t> labels_;
    std::vector<std::uint64_t> box_offsets_{0};
    std::vector<Box> boxes_;
    std::vector<std::uint64_t> name_offsets_{0};
    std::vector<std::uint8_t> names_;
    DropCounts dropped_images_, dropped_boxes_;
};

/// Writes a whole data set or nothing: `fill` adds the samples, everything is assembled in a directory aside, synced
/// and renamed to `directory`, which must not exist (its parents are made). An exception from `fill` leaves nothing
/// behind; a set without a sample is an error that names the reasons for which images were dropped.
void write_dataset(const std::filesystem::path& directory, const DatasetDescription& description,
                   const std::function<void(DatasetWriter&)>& fill);

}  // namespace lockstep::sharding
