#include "sharding/dataset_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "sharding/checksums.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;
using base::Hdf5File;

[[noreturn]] void fail_writing(const fs::path& path, int error) {
    throw base::Error(base::str("can't write ", path.string(), ": ", std::generic_category().message(error)));
}

template <typename T>
void write_table(Hdf5File& file, const char* name, const std::vector<T>& values) {
    file.write<T>(name, values);
}

void write_drop_counts(Hdf5File& file, const std::string& group, const DropCounts& drops) {
    std::vector<std::string> reasons;
    std::vector<std::uint64_t> counts;
    for (const auto& [reason, count] : drops) {
        reasons.push_back(reason);
        counts.push_back(count);
    }
    file.write_strings(group + "/reasons", reasons);
    file.write<std::uint64_t>(group + "/counts", counts);
}

void write_kind(Hdf5File& file) {
    file.write_attribute(format::attribute::kind, format::kind);
    file.write_attribute(format::attribute::version, format::version);
}

/// A copy whose padding bytes are zero, so that equal data sets are equal files.
Box with_zero_padding(const Box& box) {
    Box clean;
    std::memset(static_cast<void*>(&clean), 0, sizeof(clean));
    clean.x1 = box.x1;
    clean.y1 = box.y1;
    clean.x2 = box.x2;
    clean.y2 = box.y2;
    clean.area = box.area;
    clean.class_index = box.class_index;
    clean.flags = box.flags;
    clean.annotation_id = box.annotation_id;
    return clean;
}

constexpr const char* journal_file = "journal";
constexpr const char* lock_file = "lock";
/// What an entry of the journal is.
constexpr char entry_work = 'W', entry_sample = 'S', entry_mark = 'M';
constexpr char entry_dropped_image = 'I', entry_dropped_box = 'B', entry_note = 'N';

/// Held while a process writes a directory; the system lets go of it when the process ends in whatever way.
class DirectoryLock {
  public:
    explicit DirectoryLock(const fs::path& file) : fd_(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
        if (fd_ < 0) {
            fail_writing(file, errno);
        }
        int result = 0;
        do {
            result = flock(fd_, LOCK_EX | LOCK_NB);
        } while (result != 0 && errno == EINTR);
        if (result == 0) {
            return;
        }
        const int error = errno;
        close(fd_);
        if (error == EWOULDBLOCK) {
            throw WrittenByAnother(
                base::str(file.parent_path().string(), ": another process is importing to it at this moment"));
        }
        throw base::Error(base::str(file.string(), ": can't be locked (", std::strerror(error),
                                    "), and without a lock two processes could write there at once; choose a file "
                                    "system that knows locks (Lustre: mounted with -o flock)"));
    }
    ~DirectoryLock() { close(fd_); }
    DirectoryLock(const DirectoryLock&) = delete;
    DirectoryLock& operator=(const DirectoryLock&) = delete;

  private:
    int fd_;
};

/// Processes that were killed may have left more than the journal. The lock stays until the directory has its name.
void remove_all_but_the_data(const fs::path& directory, std::uint64_t shards) {
    std::set<std::string> wanted{format::index_file, format::checksum_file, lock_file};
    for (std::uint64_t shard = 0; shard < shards; ++shard) {
        wanted.insert(format::shard_file(shard));
    }
    std::vector<fs::path> others;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
        if (!wanted.contains(entry.path().filename().string())) {
            others.push_back(entry.path());
        }
    }
    for (const fs::path& other : others) {
        fs::remove_all(other);
    }
}

}  // namespace

DatasetWriter::DatasetWriter(fs::path directory, const DatasetDescription& description)
    : directory_(std::move(directory)), description_(description) {
    LOCKSTEP_CHECK(!description_.classes.empty(), "a data set has classes");
}

DatasetWriter::~DatasetWriter() = default;

/// All that is kept of a sample beside its bytes.
struct DatasetWriter::Row {
    std::int64_t image_id;
    std::uint32_t width, height;
    std::uint32_t original_width, original_height;
    std::int32_t label;
    std::uint32_t crc32c;
    std::uint64_t size;  // of its bytes
    std::span<const Box> boxes;
    std::string_view name;
};

fs::path DatasetWriter::spool_path() const {
    return directory_ / base::str(format::shard_file(shard()), ".pool");
}
fs::path DatasetWriter::shard_path() const {
    return directory_ / format::shard_file(shard());
}

void DatasetWriter::open_spool() {
    spool_.reset(std::fopen(spool_path().c_str(), "wb"));
    if (!spool_) {
        fail_writing(spool_path(), errno);
    }
}

bool DatasetWriter::append_row(const Row& row) {
    const std::uint64_t pool_bytes = shard_offsets_.back();
    if (pool_bytes > 0 && pool_bytes + row.size > description_.max_shard_bytes) {
        finish_shard();
    }
    shard_offsets_.push_back(shard_offsets_.back() + row.size);
    shard_crc32c_.push_back(row.crc32c);
    // The hash goes by the number of bytes and their checksum, so the bytes themselves needn't be at hand.
    const Sample sample{.id = 0,
                        .image_id = row.image_id,
                        .width = row.width,
                        .height = row.height,
                        .label = row.label,
                        .bytes = std::span(static_cast<const std::uint8_t*>(nullptr), row.size),
                        .boxes = row.boxes};
    content_hash_.add(sample, row.crc32c);
    image_ids_.push_back(row.image_id);
    widths_.push_back(row.width);
    heights_.push_back(row.height);
    original_widths_.push_back(row.original_width);
    original_heights_.push_back(row.original_height);
    has_resized_ |= row.original_width != row.width || row.original_height != row.height;
    labels_.push_back(row.label);
    for (const Box& box : row.boxes) {
        boxes_.push_back(with_zero_padding(box));
    }
    box_offsets_.push_back(boxes_.size());
    names_.insert(names_.end(), row.name.begin(), row.name.end());
    name_offsets_.push_back(names_.size());
    return !contents_.emplace(row.size, row.crc32c).second;
}

bool DatasetWriter::add(const Sample& sample, std::string_view file_name, std::optional<ImageSize> original) {
    LOCKSTEP_CHECK(sample.width > 0 && sample.height > 0 && !sample.bytes.empty(), file_name);
    if (description_.encoding == Encoding::raw) {
        LOCKSTEP_CHECK_EQ(sample.bytes.size(), std::uint64_t{sample.width} * sample.height * 3, file_name);
    }
    const auto classes = static_cast<std::int32_t>(description_.classes.size());
    if (description_.task == Task::classification) {
        LOCKSTEP_CHECK(sample.label >= 0 && sample.label < classes && sample.boxes.empty(), file_name);
    } else {
        LOCKSTEP_CHECK_EQ(sample.label, -1, file_name);
    }
    for (const Box& box : sample.boxes) {
        LOCKSTEP_CHECK(format::is_valid(box, sample.width, sample.height, classes), file_name);
    }
    const ImageSize before = original.value_or(ImageSize{sample.width, sample.height});
    const Row row{.image_id = sample.image_id,
                  .width = sample.width,
                  .height = sample.height,
                  .original_width = before.width,
                  .original_height = before.height,
                  .label = sample.label,
                  .crc32c = base::crc32c(sample.bytes),
                  .size = sample.bytes.size(),
                  .boxes = sample.boxes,
                  .name = file_name};
    const bool is_repeated = append_row(row);
    if (!spool_) {
        LOCKSTEP_CHECK_EQ(shard_crc32c_.size(), 1u, "a pool is begun with its first sample");
        open_spool();
    }
    if (std::fwrite(sample.bytes.data(), 1, sample.bytes.size(), spool_.get()) != sample.bytes.size()) {
        fail_writing(spool_path(), errno);
    }
    if (journal_) {
        // The bytes first: an entry of the journal means that they are in the system's hands.
        if (std::fflush(spool_.get()) != 0) {
            fail_writing(spool_path(), errno);
        }
        JournalEntry entry;
        entry.put(entry_sample).put(row.image_id).put(row.width).put(row.height);
        entry.put(row.original_width).put(row.original_height).put(row.label).put(row.crc32c).put(row.size);
        entry.put_text(file_name).put(std::uint64_t{row.boxes.size()});
        for (const Box& box : row.boxes) {
            entry.put(with_zero_padding(box));
        }
        journal_->append(entry);
    }
    return is_repeated;
}

void DatasetWriter::count(char kind, const std::string& reason, std::uint64_t count) {
    if (count == 0) {
        return;
    }
    DropCounts& counts = kind == entry_dropped_image ? dropped_images_
                         : kind == entry_dropped_box ? dropped_boxes_
                                                     : notes_;
    counts[reason] += count;
    if (journal_) {
        journal_->append(JournalEntry().put(kind).put_text(reason).put(count));
    }
}

void DatasetWriter::drop_image(const std::string& reason, std::uint64_t count) {
    this->count(entry_dropped_image, reason, count);
}

void DatasetWriter::drop_box(const std::string& reason, std::uint64_t count) {
    this->count(entry_dropped_box, reason, count);
}

void DatasetWriter::note(const std::string& reason, std::uint64_t count) {
    this->count(entry_note, reason, count);
}

void DatasetWriter::finished_parts(std::uint64_t parts) {
    if (journal_) {
        journal_->append(JournalEntry().put(entry_mark).put(parts));
    }
}

std::uint64_t DatasetWriter::resume(std::uint64_t fingerprint) {
    const fs::path file = directory_ / journal_file;
    std::vector<JournalEntry> entries = ImportJournal::read(file);
    const auto begins_with = [](const JournalEntry& entry, char kind) {
        return !entry.bytes().empty() && entry.bytes()[0] == static_cast<std::uint8_t>(kind);
    };
    // What follows the last mark belongs to a part that wasn't finished.
    while (entries.size() > 1 && !begins_with(entries.back(), entry_mark)) {
        entries.pop_back();
    }
    if (entries.empty()) {
        journal_.emplace(file, entries);
        journal_->append(JournalEntry().put(entry_work).put(fingerprint));
        return 0;
    }
    const std::vector<JournalEntry> kept = entries;
    if (entries[0].take<char>() != entry_work || entries[0].take<std::uint64_t>() != fingerprint) {
        throw base::Error(base::str(directory_.string(),
                                    " holds a half-done import of another source, or with other "
                                    "options, or the source has changed since: remove that "
                                    "folder to start again, or repeat the command that began it"));
    }
    std::uint64_t parts = 0;
    for (JournalEntry& entry : std::span(entries).subspan(1)) {
        switch (const char kind = entry.take<char>()) {
            case entry_sample: {
                Row row{};
                row.image_id = entry.take<std::int64_t>();
                row.width = entry.take<std::uint32_t>();
                row.height = entry.take<std::uint32_t>();
                row.original_width = entry.take<std::uint32_t>();
                row.original_height = entry.take<std::uint32_t>();
                row.label = entry.take<std::int32_t>();
                row.crc32c = entry.take<std::uint32_t>();
                row.size = entry.take<std::uint64_t>();
                const std::string name = entry.take_text();
                std::vector<Box> boxes;
                for (auto left = entry.take<std::uint64_t>(); left > 0; --left) {
                    boxes.push_back(entry.take<Box>());
                }
                row.boxes = boxes;
                row.name = name;
                append_row(row);
                break;
            }
            case entry_mark:
                parts = entry.take<std::uint64_t>();
                break;
            default: {
                const std::string reason = entry.take_text();
                count(kind, reason, entry.take<std::uint64_t>());
            }
        }
    }
    take_up_spool();
    journal_.emplace(file, kept);
    return parts;
}

/// The pool of the shard in the making, as the journal says it is.
void DatasetWriter::take_up_spool() {
    if (shard_crc32c_.empty()) {
        return;  // nothing of it was finished: it is begun anew
    }
    if (!fs::exists(spool_path()) && fs::exists(shard_path())) {
        return;  // killed between a finished shard and the first sample of the next
    }
    const auto refuse = [&](const std::string& what) {
        throw base::Error(base::str(spool_path().string(), ": ", what, ", so the half-done import can't go on: remove ",
                                    directory_.string(), " to start again"));
    };
    if (!fs::exists(spool_path())) {
        refuse("is missing");
    }
    if (fs::file_size(spool_path()) < shard_offsets_.back()) {
        refuse("is shorter than the journal says");
    }
    fs::resize_file(spool_path(), shard_offsets_.back());
    {
        const base::MappedFile pool(spool_path());
        for (std::size_t i = 0; i < shard_crc32c_.size(); ++i) {
            const auto bytes = pool.bytes().subspan(shard_offsets_[i], shard_offsets_[i + 1] - shard_offsets_[i]);
            if (base::crc32c(bytes) != shard_crc32c_[i]) {
                refuse("doesn't hold what the journal says");
            }
        }
    }
    fs::remove(shard_path());
    spool_.reset(std::fopen(spool_path().c_str(), "ab"));
    if (!spool_) {
        fail_writing(spool_path(), errno);
    }
}

void DatasetWriter::finish_shard() {
    if (spool_) {
        if (std::FILE* spool = spool_.release(); std::fclose(spool) != 0) {
            fail_writing(spool_path(), errno);
        }
        fs::path unfinished = shard_path();
        unfinished += ".unfinished";
        fs::remove(unfinished);
        {
            const base::MappedFile pool(spool_path());
            Hdf5File file = Hdf5File::create(unfinished);
            write_kind(file);
            file.write<std::uint8_t>(format::shard_table::pool, pool.bytes());
            write_table(file, format::shard_table::offsets, shard_offsets_);
            write_table(file, format::shard_table::crc32c, shard_crc32c_);
            file.close();
        }
        fs::rename(unfinished, shard_path());
        fs::remove(spool_path());
    } else if (!fs::exists(shard_path())) {  // where an earlier process finished it, it is there
        throw base::Error(base::str(shard_path().string(), " is missing, so the half-done import can't go on: remove ",
                                    directory_.string(), " to start again"));
    }
    shard_offsets_.assign(1, 0);
    shard_crc32c_.clear();
    shard_begin_.push_back(size());
}

void DatasetWriter::finish() {
    if (size() == 0) {
        std::vector<std::string> reasons;
        for (const auto& [reason, count] : dropped_images_) {
            reasons.push_back(base::str(count, " x ", reason));
        }
        throw base::Error(base::str("no image is left to store: ",
                                    reasons.empty() ? "the source has none" : "dropped " + base::join(reasons, ", ")));
    }
    finish_shard();

    fs::remove(directory_ / format::index_file);  // of a process that was killed over it
    Hdf5File index = Hdf5File::create(directory_ / format::index_file);
    write_kind(index);
    index.write_attribute(format::attribute::task, format::task_name(description_.task));
    index.write_attribute(format::attribute::encoding, format::encoding_name(description_.encoding));
    index.write_attribute(format::attribute::source, description_.source);
    index.write_attribute(format::attribute::content_hash,
                          content_hash_.value(description_.task, description_.encoding, description_.classes));
    index.write_strings(format::table::classes, description_.classes);
    if (!description_.class_ids.empty()) {
        write_table(index, format::table::class_ids, description_.class_ids);
    }
    write_table(index, format::table::shard_begin, shard_begin_);
    write_table(index, format::table::image_id, image_ids_);
    write_table(index, format::table::width, widths_);
    write_table(index, format::table::height, heights_);
    if (description_.task == Task::classification) {
        write_table(index, format::table::label, labels_);
    } else {
        write_table(index, format::table::box_offsets, box_offsets_);
        index.write_records(format::table::boxes, format::box_type().get(), boxes_.data(), boxes_.size());
    }
    write_table(index, format::table::name_offsets, name_offsets_);
    write_table(index, format::table::names, names_);
    write_drop_counts(index, format::table::dropped_images, dropped_images_);
    write_drop_counts(index, format::table::dropped_boxes, dropped_boxes_);
    write_drop_counts(index, format::table::notes, notes_);
    if (has_resized_) {
        write_table(index, format::table::original_width, original_widths_);
        write_table(index, format::table::original_height, original_heights_);
    }
    index.close();
    write_checksums(directory_, shard_begin_.size() - 1);
}

void write_dataset(const fs::path& directory, const DatasetDescription& description,
                   const std::function<void(DatasetWriter&)>& fill) {
    if (directory.has_parent_path()) {
        fs::create_directories(directory.parent_path());
    }
    base::write_directory_whole(directory, [&](const fs::path& aside) {
        DatasetWriter writer(aside, description);
        fill(writer);
        writer.finish();
    });
}

void write_dataset_resumably(const fs::path& directory, const DatasetDescription& description,
                             const std::function<void(DatasetWriter&)>& fill) {
    const fs::path target = directory.has_filename() ? directory : directory.parent_path();
    if (fs::exists(fs::symlink_status(target))) {
        throw base::Error(base::str(target.string(), " exists already: remove it or choose another name"));
    }
    fs::path aside = target;
    aside += ".importing";
    fs::create_directories(aside);
    const DirectoryLock lock(aside / lock_file);
    // Another process may have published it between the two looks.
    if (fs::exists(fs::symlink_status(target))) {
        std::error_code ignored;
        fs::remove(aside / lock_file, ignored);
        fs::remove(aside, ignored);
        throw base::Error(base::str(target.string(), " exists already: remove it or choose another name"));
    }
    bool is_resumable = false;  // what a killed process left is not lost to an error of this one
    try {
        DatasetWriter writer(aside, description);
        is_resumable = fs::exists(aside / journal_file);
        fill(writer);
        writer.finish();
        remove_all_but_the_data(aside, writer.shard_count());
        base::publish_directory(aside, target);
        fs::remove(target / lock_file);
    } catch (...) {
        if (!is_resumable) {
            std::error_code ignored;
            fs::remove_all(aside, ignored);
        }
        throw;
    }
}

}  // namespace lockstep::sharding
