#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "sharding/dataset.h"
#include "sharding/dataset_format.h"
#include "sharding/image.h"
#include "sharding/import_journal.h"

namespace lockstep::sharding {

struct DatasetDescription {
    Task task = Task::detection;
    Encoding encoding = Encoding::encoded;
    std::vector<std::string> classes;
    std::vector<std::int64_t> class_ids = {};  ///< the source's number of each class; empty where it has none
    std::string source;                        ///< what it was made from and how, for a person
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
    /// mistake here, since importers sort it out. `original` is the image's size before the importer resized it.
    /// Returns whether an earlier sample has the very same bytes (by size and CRC-32C).
    bool add(const Sample& sample, std::string_view file_name, std::optional<ImageSize> original = std::nullopt);
    void drop_image(const std::string& reason, std::uint64_t count = 1);
    void drop_box(const std::string& reason, std::uint64_t count = 1);
    /// Counts what was stored although something about it was odd.
    void note(const std::string& reason, std::uint64_t count = 1);

    /// For write_dataset_resumably: takes up what a killed process did, and from here on records what is done so that
    /// a kill loses nothing. Returns how many parts of the work that process had finished: 0 where there was none. What
    /// was added or counted before this call is done again by every process. `fingerprint` stands for the work; throws
    /// base::Error where the half-done import was of other work, naming what to remove.
    std::uint64_t resume(std::uint64_t fingerprint);
    /// `parts` of the work are finished, with everything that was added and counted so far.
    void finished_parts(std::uint64_t parts);

    std::uint64_t size() const { return image_ids_.size(); }
    std::uint64_t shard_count() const { return shard_begin_.size() - 1; }  ///< finished ones

  private:
    friend void write_dataset(const std::filesystem::path&, const DatasetDescription&,
                              const std::function<void(DatasetWriter&)>&);
    friend void write_dataset_resumably(const std::filesystem::path&, const DatasetDescription&,
                                        const std::function<void(DatasetWriter&)>&);
    DatasetWriter(std::filesystem::path directory, const DatasetDescription& description);
    void finish();

    struct CloseFile {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };
    struct Row;
    bool append_row(const Row& row);
    void count(char kind, const std::string& reason, std::uint64_t count);
    void open_spool();
    void finish_shard();
    void take_up_spool();
    std::uint64_t shard() const { return shard_begin_.size() - 1; }
    std::filesystem::path spool_path() const;
    std::filesystem::path shard_path() const;

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
    std::vector<std::uint32_t> original_widths_, original_heights_;
    bool has_resized_ = false;
    std::set<std::pair<std::uint64_t, std::uint32_t>> contents_;  // size and CRC-32C of every sample
    std::vector<std::int32_t> labels_;
    std::vector<std::uint64_t> box_offsets_{0};
    std::vector<Box> boxes_;
    std::vector<std::uint64_t> name_offsets_{0};
    std::vector<std::uint8_t> names_;
    DropCounts dropped_images_, dropped_boxes_, notes_;
    std::optional<ImportJournal> journal_;
};

/// Writes a whole data set or nothing: `fill` adds the samples, everything is assembled in a directory aside, synced
/// and renamed to `directory`, which must not exist (its parents are made). An exception from `fill` leaves nothing
/// behind; a set without a sample is an error that names the reasons for which images were dropped.
void write_dataset(const std::filesystem::path& directory, const DatasetDescription& description,
                   const std::function<void(DatasetWriter&)>& fill);

/// The same for long work: the directory aside is `directory` + ".importing" and outlives a kill, so that the same call
/// goes on where that process stopped, when `fill` calls DatasetWriter::resume. Throws base::Error where another
/// process is writing it at this moment. An exception from `fill` leaves behind what was there before.
void write_dataset_resumably(const std::filesystem::path& directory, const DatasetDescription& description,
                             const std::function<void(DatasetWriter&)>& fill);

}  // namespace lockstep::sharding
