#include "sharding/dataset.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/hdf5.h"
#include "base/text.h"
#include "sharding/dataset_format.h"
#include "sharding/image.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;
using base::Hdf5File;
using base::MappedFile;

/// A one-dimensional data set of a mapped file, read as it lies there.
template <typename T>
class Table {
  public:
    Table() = default;
    Table(const Hdf5File& file, const MappedFile& mapped, const std::string& name, hid_t type) {
        const base::Hdf5Extent extent = file.records_extent(name, type);
        const std::span<const std::uint8_t> whole = mapped.bytes();
        if (extent.file_offset > whole.size() || extent.bytes > whole.size() - extent.file_offset) {
            throw base::Error(base::str(file.path().string(), ": the file changed while it was opened"));
        }
        const std::uint8_t* begin = whole.data() + extent.file_offset;
        const std::size_t count = extent.bytes / sizeof(T);
        if (reinterpret_cast<std::uintptr_t>(begin) % alignof(T) == 0) {
            values_ = {reinterpret_cast<const T*>(begin), count};
        } else {  // small tables may lie anywhere in the file
            copy_.resize(count);
            std::memcpy(copy_.data(), begin, count * sizeof(T));
            values_ = copy_;
        }
    }
    Table(const Hdf5File& file, const MappedFile& mapped, const std::string& name)
        : Table(file, mapped, name, base::hdf5_native_type<T>()) {}
    Table(Table&&) noexcept = default;
    Table& operator=(Table&&) noexcept = default;

    const T& operator[](std::size_t i) const { return values_[i]; }
    std::size_t size() const { return values_.size(); }
    const T* begin() const { return values_.data(); }
    const T* end() const { return values_.data() + values_.size(); }
    std::span<const T> values() const { return values_; }
    std::span<const T> between(std::uint64_t begin, std::uint64_t end) const {
        return values_.subspan(begin, end - begin);
    }

  private:
    std::span<const T> values_;
    std::vector<T> copy_;
};

[[noreturn]] void fail(const fs::path& file, const char* table, const std::string& what) {
    throw base::Error(base::str(file.string(), ": table '", table, "': ", what,
                                "; the data set is damaged or was tampered with: import it again"));
}

[[noreturn]] void fail(const fs::path& file, const char* table, std::size_t record, const std::string& what) {
    fail(file, table, base::str("record ", record, " ", what));
}

void require_count(const fs::path& file, const char* table, std::uint64_t count, std::uint64_t expected) {
    if (count != expected) {
        fail(file, table, base::str("has ", count, " records, expected ", expected));
    }
}

/// What can be said of an offset table at once: it begins at 0 and ends with the pool. Each step is checked when it is
/// used.
void require_ends(const fs::path& file, const char* table, std::span<const std::uint64_t> offsets,
                  std::uint64_t pool_size) {
    if (offsets.front() != 0) {
        fail(file, table, 0, base::str("is ", offsets.front(), ", expected 0"));
    }
    if (offsets.back() != pool_size) {
        fail(file, table, offsets.size() - 1, base::str("is ", offsets.back(), ", but the pool has ", pool_size));
    }
}

/// The step from `record` to the next: at least `least`, and inside the pool.
void require_step(const fs::path& file, const char* table, std::span<const std::uint64_t> offsets, std::uint64_t record,
                  std::uint64_t pool_size, std::uint64_t least) {
    const std::uint64_t begin = offsets[record];
    const std::uint64_t end = offsets[record + 1];
    if (begin > end || end - begin < least || end > pool_size) [[unlikely]] {
        fail(file, table, record + 1, base::str("is ", end, ", after ", begin, " and in a pool of ", pool_size));
    }
}

void require_kind(const Hdf5File& file) {
    const auto refuse = [&](const std::string& what) {
        throw base::Error(base::str(file.path().string(), ": ", what));
    };
    std::string kind;
    try {
        kind = file.read_string_attribute(format::attribute::kind);
    } catch (const base::Error&) {
    }
    if (kind != format::kind) {
        refuse("not a file of a Lockstep data set ('lockstep import' makes one)");
    }
    if (const std::uint64_t version = file.read_u64_attribute(format::attribute::version); version != format::version) {
        refuse(base::str("format version ", version, ", and this program reads version ", format::version,
                         ": import the data again with this program"));
    }
}

/// The value whose name is stored under `attribute`.
template <typename Enum>
Enum read_choice(const Hdf5File& file, const char* attribute, std::initializer_list<Enum> choices,
                 std::string (*name_of)(Enum)) {
    const std::string name = file.read_string_attribute(attribute);
    for (const Enum choice : choices) {
        if (name == name_of(choice)) {
            return choice;
        }
    }
    throw base::Error(
        base::str(file.path().string(), ": attribute '", attribute, "' is '", name, "', which is unknown"));
}

DropCounts read_drop_counts(const Hdf5File& file, const std::string& group) {
    const std::vector<std::string> reasons = file.read_strings(group + "/reasons");
    const std::vector<std::uint64_t> counts = file.read<std::uint64_t>(group + "/counts", reasons.size());
    DropCounts drops;
    for (std::size_t i = 0; i < reasons.size(); ++i) {
        drops[reasons[i]] += counts[i];
    }
    return drops;
}

struct Shard {
    MappedFile mapped;
    std::size_t pool_file_offset;
    std::uint64_t pool_bytes;
    Table<std::uint8_t> pool;                ///< empty under ReadPath::hdf5
    std::optional<base::Hdf5Bytes> library;  ///< the pool under ReadPath::hdf5
    Table<std::uint64_t> offsets;
    Table<std::uint32_t> crc32c;
    fs::path path;

    static Shard open(const fs::path& path, std::uint64_t samples, ReadPath read_path) {
        const Hdf5File file = Hdf5File::open_read_only(path);
        require_kind(file);
        using namespace format::shard_table;
        Shard shard{.mapped = MappedFile(path),
                    .pool_file_offset = 0,
                    .pool_bytes = 0,
                    .pool = {},
                    .library = {},
                    .offsets = {},
                    .crc32c = {},
                    .path = path};
        std::uint64_t pool_bytes = 0;
        if (read_path == ReadPath::hdf5) {
            shard.library = file.open_bytes(format::shard_table::pool);
            pool_bytes = shard.library->size();
        } else {
            if (!file.is_contiguous(format::shard_table::pool)) {
                throw base::Error(base::str(
                    path.string(), ": table '", format::shard_table::pool,
                    "' is chunked or compressed and can't be mapped; read it with data.read = \"hdf5\", or rewrite the "
                    "shard with 'h5repack -l ",
                    format::shard_table::pool, ":CONTI -f ", format::shard_table::pool, ":NONE OLD NEW'"));
            }
            shard.pool = {file, shard.mapped, format::shard_table::pool};
            shard.pool_file_offset = static_cast<std::size_t>(shard.pool.begin() - shard.mapped.bytes().data());
            pool_bytes = shard.pool.size();
        }
        shard.offsets = {file, shard.mapped, format::shard_table::offsets};
        shard.crc32c = {file, shard.mapped, format::shard_table::crc32c};
        require_count(path, format::shard_table::offsets, shard.offsets.size(), samples + 1);
        require_count(path, format::shard_table::crc32c, shard.crc32c.size(), samples);
        require_ends(path, format::shard_table::offsets, shard.offsets.values(), pool_bytes);
        shard.pool_bytes = pool_bytes;
        return shard;
    }
};

}  // namespace

struct Dataset::State {
    fs::path directory;
    ReadPath read_path;
    Task task{};
    Encoding encoding{};
    std::vector<std::string> classes;
    std::string source;
    std::uint64_t content_hash = 0;
    std::uint64_t bytes_on_disk = 0;
    DropCounts dropped_images, dropped_boxes, notes;

    MappedFile mapped;
    Table<std::int64_t> image_id;
    Table<std::uint32_t> width, height;
    Table<std::int32_t> label;
    Table<std::uint64_t> box_offsets;
    Table<Box> boxes;
    Table<std::uint64_t> name_offsets;
    Table<std::uint8_t> names;
    std::vector<std::uint64_t> shard_begin;
    std::vector<Shard> shards;

    State(const fs::path& directory_path, ReadPath the_read_path);

    fs::path index_path() const { return directory / format::index_file; }
    std::uint64_t size() const { return image_id.size(); }

    void read_index(const Hdf5File& index);
    void open_shards();
    void check(std::uint64_t id) const;
    void check_name(std::uint64_t id) const;

    struct Place {
        const Shard& shard;
        std::uint64_t index;  // within the shard
        std::span<const std::uint8_t> bytes() const {
            return shard.library ? std::span<const std::uint8_t>{}
                                 : shard.pool.between(shard.offsets[index], shard.offsets[index + 1]);
        }
    };
    Place place(std::uint64_t id) const {
        LOCKSTEP_CHECK_LT(id, size());
        const auto after = std::upper_bound(shard_begin.begin(), shard_begin.end(), id);
        const auto shard = static_cast<std::size_t>(after - shard_begin.begin()) - 1;
        return {shards[shard], id - shard_begin[shard]};
    }
};

Dataset::State::State(const fs::path& directory_path, ReadPath the_read_path)
    : directory(directory_path), read_path(the_read_path), mapped([&] {
          if (!fs::exists(directory_path / format::index_file)) {
              throw base::Error(base::str(directory_path.string(), ": ",
                                          fs::exists(directory_path) ? "has no index.h5, so it is not a data set"
                                                                     : "there is no such directory",
                                          " ('lockstep import' makes a data set)"));
          }
          return MappedFile(directory_path / format::index_file);
      }()) {
    read_index(Hdf5File::open_read_only(index_path()));
    open_shards();
    bytes_on_disk = mapped.bytes().size();
    for (const Shard& shard : shards) {
        bytes_on_disk += shard.mapped.bytes().size();
    }
}

void Dataset::State::read_index(const Hdf5File& index) {
    require_kind(index);
    task = read_choice(index, format::attribute::task, {Task::detection, Task::classification}, format::task_name);
    encoding =
        read_choice(index, format::attribute::encoding, {Encoding::encoded, Encoding::raw}, format::encoding_name);
    source = index.read_string_attribute(format::attribute::source);
    content_hash = index.read_u64_attribute(format::attribute::content_hash);
    dropped_images = read_drop_counts(index, format::table::dropped_images);
    dropped_boxes = read_drop_counts(index, format::table::dropped_boxes);
    if (index.has(format::table::notes)) {
        notes = read_drop_counts(index, format::table::notes);
    }
    classes = index.read_strings(format::table::classes);
    if (classes.empty()) {
        fail(index_path(), format::table::classes, "has no class");
    }

    image_id = {index, mapped, format::table::image_id};
    if (size() == 0) {
        throw base::Error(
            base::str(index_path().string(), ": the data set is empty: import one with at least one image"));
    }
    width = {index, mapped, format::table::width};
    height = {index, mapped, format::table::height};
    require_count(index_path(), format::table::width, width.size(), size());
    require_count(index_path(), format::table::height, height.size(), size());
    if (task == Task::classification) {
        label = {index, mapped, format::table::label};
        require_count(index_path(), format::table::label, label.size(), size());
    } else {
        box_offsets = {index, mapped, format::table::box_offsets};
        boxes = {index, mapped, format::table::boxes, format::box_type().get()};
        require_count(index_path(), format::table::box_offsets, box_offsets.size(), size() + 1);
        require_ends(index_path(), format::table::box_offsets, box_offsets.values(), boxes.size());
    }
    name_offsets = {index, mapped, format::table::name_offsets};
    names = {index, mapped, format::table::names};
    require_count(index_path(), format::table::name_offsets, name_offsets.size(), size() + 1);
    require_ends(index_path(), format::table::name_offsets, name_offsets.values(), names.size());

    shard_begin = index.read<std::uint64_t>(format::table::shard_begin);
    if (shard_begin.empty()) {
        fail(index_path(), format::table::shard_begin, "is empty");
    }
    require_ends(index_path(), format::table::shard_begin, shard_begin, size());
    for (std::size_t shard = 0; shard + 1 < shard_begin.size(); ++shard) {
        require_step(index_path(), format::table::shard_begin, shard_begin, shard, size(), 1);
    }
}

/// Whatever is used of a sample. Done whenever it is used, since that is cheaper than to remember.
void Dataset::State::check(std::uint64_t id) const {
    const std::uint64_t pixels = std::uint64_t{width[id]} * height[id];
    if (pixels == 0 || pixels > max_image_pixels) [[unlikely]] {
        fail(index_path(), format::table::width, id,
             base::str("declares an image of ", width[id], " x ", height[id], " pixels"));
    }
    const auto class_count = static_cast<std::int32_t>(classes.size());
    if (task == Task::classification) {
        if (label[id] < 0 || label[id] >= class_count) [[unlikely]] {
            fail(index_path(), format::table::label, id, base::str("is class ", label[id], " of ", class_count));
        }
    } else {
        require_step(index_path(), format::table::box_offsets, box_offsets.values(), id, boxes.size(), 0);
        for (std::uint64_t b = box_offsets[id]; b < box_offsets[id + 1]; ++b) {
            const Box& box = boxes[b];
            if (!format::is_valid(box, width[id], height[id], class_count)) [[unlikely]] {
                fail(index_path(), format::table::boxes, b,
                     base::str("(sample ", id, ", ", width[id], " x ", height[id], " pixels) is the impossible box (",
                               box.x1, ", ", box.y1, ", ", box.x2, ", ", box.y2, ") of area ", box.area, ", class ",
                               box.class_index, " of ", class_count, ", flags ", unsigned{box.flags}));
            }
        }
    }
    const Place at = place(id);
    require_step(at.shard.path, format::shard_table::offsets, at.shard.offsets.values(), at.index, at.shard.pool_bytes,
                 1);
    const std::uint64_t bytes = at.shard.offsets[at.index + 1] - at.shard.offsets[at.index];
    if (encoding == Encoding::raw && bytes != pixels * 3) [[unlikely]] {
        fail(at.shard.path, format::shard_table::offsets, at.index,
             base::str("gives sample ", id, " ", bytes, " bytes, but ", width[id], " x ", height[id],
                       " raw pixels take ", pixels * 3));
    }
}

void Dataset::State::check_name(std::uint64_t id) const {
    require_step(index_path(), format::table::name_offsets, name_offsets.values(), id, names.size(), 0);
}

void Dataset::State::open_shards() {
    shards.reserve(shard_begin.size() - 1);
    for (std::size_t s = 0; s + 1 < shard_begin.size(); ++s) {
        const fs::path path = directory / format::shard_file(s);
        shards.emplace_back(Shard::open(path, shard_begin[s + 1] - shard_begin[s], read_path));
    }
}

Dataset Dataset::open(const fs::path& directory, ReadPath read_path) {
    return Dataset(std::make_unique<State>(directory, read_path));
}

Dataset::Dataset(std::unique_ptr<State> state) : state_(std::move(state)) {}
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset& Dataset::operator=(Dataset&&) noexcept = default;
Dataset::~Dataset() = default;

std::uint64_t Dataset::size() const {
    return state_->size();
}
Task Dataset::task() const {
    return state_->task;
}
Encoding Dataset::encoding() const {
    return state_->encoding;
}
const std::vector<std::string>& Dataset::classes() const {
    return state_->classes;
}
const fs::path& Dataset::directory() const {
    return state_->directory;
}
std::uint64_t Dataset::content_hash() const {
    return state_->content_hash;
}
std::uint64_t Dataset::box_count() const {
    return state_->boxes.size();
}
std::uint64_t Dataset::max_boxes_per_image() const {
    const State& s = *state_;
    std::uint64_t most = 0;
    for (std::uint64_t id = 0; id < s.size() && s.task == Task::detection; ++id) {
        require_step(s.index_path(), format::table::box_offsets, s.box_offsets.values(), id, s.boxes.size(), 0);
        most = std::max(most, s.box_offsets[id + 1] - s.box_offsets[id]);
    }
    return most;
}

void Dataset::check_tables() const {
    for (std::uint64_t id = 0; id < size(); ++id) {
        state_->check(id);
        state_->check_name(id);
    }
}
const DropCounts& Dataset::dropped_images() const {
    return state_->dropped_images;
}
const DropCounts& Dataset::dropped_boxes() const {
    return state_->dropped_boxes;
}
const DropCounts& Dataset::notes() const {
    return state_->notes;
}
const std::string& Dataset::source() const {
    return state_->source;
}
std::uint64_t Dataset::shard_count() const {
    return state_->shards.size();
}
std::uint64_t Dataset::bytes_on_disk() const {
    return state_->bytes_on_disk;
}

ReadPath Dataset::read_path() const {
    return state_->read_path;
}

Sample Dataset::sample(std::uint64_t id) const {
    const State& s = *state_;
    const State::Place place = s.place(id);
    s.check(id);
    const bool detection = s.task == Task::detection;
    return {.id = id,
            .image_id = s.image_id[id],
            .width = s.width[id],
            .height = s.height[id],
            .label = detection ? -1 : s.label[id],
            .bytes = place.bytes(),
            .boxes = detection ? s.boxes.between(s.box_offsets[id], s.box_offsets[id + 1]) : std::span<const Box>{}};
}

Sample Dataset::read(std::uint64_t id, std::vector<std::uint8_t>& room) const {
    Sample result = sample(id);
    const State::Place place = state_->place(id);
    if (place.shard.library) {
        const std::uint64_t begin = place.shard.offsets[place.index];
        room.resize(place.shard.offsets[place.index + 1] - begin);
        place.shard.library->read(begin, room);
        result.bytes = room;
    }
    return result;
}

ImageSize Dataset::size_of(std::uint64_t id) const {
    LOCKSTEP_CHECK_LT(id, size());
    return {state_->width[id], state_->height[id]};
}

std::string Dataset::file_name(std::uint64_t id) const {
    LOCKSTEP_CHECK_LT(id, size());
    state_->check_name(id);
    const auto name = state_->names.between(state_->name_offsets[id], state_->name_offsets[id + 1]);
    return {name.begin(), name.end()};
}

void Dataset::verify(std::uint64_t id) const {
    std::vector<std::uint8_t> room;
    verify(read(id, room));
}

void Dataset::verify(const Sample& sample) const {
    const std::uint64_t id = sample.id;
    const State::Place place = state_->place(id);
    const std::uint32_t stored = place.shard.crc32c[place.index];
    const std::uint32_t actual = base::crc32c(sample.bytes);
    if (actual != stored) {
        throw base::Error(base::str(place.shard.path.string(), ": sample ", id, " (", file_name(id), ", record ",
                                    place.index, " of the shard): checksum ", std::hex, actual, " instead of ", stored,
                                    "; the stored bytes are damaged: import the data again"));
    }
}

std::uint64_t Dataset::compute_content_hash() const {
    format::ContentHash hash;
    std::vector<std::uint8_t> room;
    for (std::uint64_t id = 0; id < size(); ++id) {
        const State::Place place = state_->place(id);
        hash.add(read(id, room), place.shard.crc32c[place.index]);
    }
    return hash.value(task(), encoding(), classes());
}

void Dataset::prefetch(std::uint64_t id) const {
    const State::Place place = state_->place(id);
    if (place.shard.library) {
        return;
    }
    const std::uint64_t begin = place.shard.offsets[place.index];
    const std::uint64_t end = place.shard.offsets[place.index + 1];
    if (begin <= end && end <= place.shard.pool_bytes) {  // who uses the sample reports it
        place.shard.mapped.will_need(place.shard.pool_file_offset + begin, end - begin);
    }
}

void Dataset::let_go() const {
    for (const Shard& shard : state_->shards) {
        shard.mapped.let_go();
    }
}

}  // namespace lockstep::sharding
