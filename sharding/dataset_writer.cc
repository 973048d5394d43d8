#include "sharding/dataset_writer.h"

#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

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

}  // namespace

DatasetWriter::DatasetWriter(fs::path directory, const DatasetDescription& description)
    : directory_(std::move(directory)), description_(description) {
    LOCKSTEP_CHECK(!description_.classes.empty(), "a data set has classes");
}

DatasetWriter::~DatasetWriter() = default;

fs::path DatasetWriter::spool_path() const {
    return directory_ / "pool.partial";
}

void DatasetWriter::open_spool() {
    spool_.reset(std::fopen(spool_path().c_str(), "wb"));
    if (!spool_) {
        fail_writing(spool_path(), errno);
    }
}

void DatasetWriter::add(const Sample& sample, std::string_view file_name) {
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

    const std::uint64_t pool_bytes = shard_offsets_.back();
    if (pool_bytes > 0 && pool_bytes + sample.bytes.size() > description_.max_shard_bytes) {
        finish_shard();
    }
    if (!spool_) {
        open_spool();
    }
    if (std::fwrite(sample.bytes.data(), 1, sample.bytes.size(), spool_.get()) != sample.bytes.size()) {
        fail_writing(spool_path(), errno);
    }
    const std::uint32_t crc32c = base::crc32c(sample.bytes);
    shard_offsets_.push_back(shard_offsets_.back() + sample.bytes.size());
    shard_crc32c_.push_back(crc32c);
    content_hash_.add(sample, crc32c);

    image_ids_.push_back(sample.image_id);
    widths_.push_back(sample.width);
    heights_.push_back(sample.height);
    labels_.push_back(sample.label);
    for (const Box& box : sample.boxes) {
        boxes_.push_back(with_zero_padding(box));
    }
    box_offsets_.push_back(boxes_.size());
    names_.insert(names_.end(), file_name.begin(), file_name.end());
    name_offsets_.push_back(names_.size());
}

void DatasetWriter::drop_image(const std::string& reason, std::uint64_t count) {
    if (count > 0) {
        dropped_images_[reason] += count;
    }
}

void DatasetWriter::drop_box(const std::string& reason, std::uint64_t count) {
    if (count > 0) {
        dropped_boxes_[reason] += count;
    }
}

void DatasetWriter::finish_shard() {
    if (std::FILE* spool = spool_.release(); std::fclose(spool) != 0) {
        fail_writing(spool_path(), errno);
    }
    {
        const base::MappedFile pool(spool_path());
        Hdf5File shard = Hdf5File::create(directory_ / format::shard_file(shard_begin_.size() - 1));
        write_kind(shard);
        shard.write<std::uint8_t>(format::shard_table::pool, pool.bytes());
        write_table(shard, format::shard_table::offsets, shard_offsets_);
        write_table(shard, format::shard_table::crc32c, shard_crc32c_);
        shard.close();
    }
    fs::remove(spool_path());
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

    Hdf5File index = Hdf5File::create(directory_ / format::index_file);
    write_kind(index);
    index.write_attribute(format::attribute::task, format::task_name(description_.task));
    index.write_attribute(format::attribute::encoding, format::encoding_name(description_.encoding));
    index.write_attribute(format::attribute::source, description_.source);
    index.write_attribute(format::attribute::content_hash,
                          content_hash_.value(description_.task, description_.encoding, description_.classes));
    index.write_strings(format::table::classes, description_.classes);
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
    index.close();
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

}  // namespace lockstep::sharding
