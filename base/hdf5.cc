#include "base/hdf5.h"

#include <algorithm>
#include <system_error>
#include <type_traits>
#include <utility>

#include "base/text.h"

namespace lockstep::base {
namespace {

constexpr hsize_t page_bytes = 4096;

/// Holds the lock, and keeps libhdf5 from printing its error stack meanwhile.
class LibraryGuard {
  public:
    LibraryGuard() : lock_(hdf5_mutex()) {
        // Files are closed by their owners, and libhdf5's own clean-up at exit crashes over one that could not be.
        [[maybe_unused]] static const herr_t no_clean_up = H5dont_atexit();
        H5Eget_auto2(H5E_DEFAULT, &print_, &print_data_);
        H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    }
    ~LibraryGuard() { H5Eset_auto2(H5E_DEFAULT, print_, print_data_); }
    LibraryGuard(const LibraryGuard&) = delete;
    LibraryGuard& operator=(const LibraryGuard&) = delete;

  private:
    std::lock_guard<std::recursive_mutex> lock_;
    H5E_auto2_t print_ = nullptr;
    void* print_data_ = nullptr;
};

/// The innermost entry of libhdf5's error stack; of a system error only the system's words.
std::string reason_from_stack() {
    std::string reason;
    const auto take_first = [](unsigned, const H5E_error2_t* entry, void* result) -> herr_t {
        if (entry->desc) {
            *static_cast<std::string*>(result) = entry->desc;
        }
        return 1;  // stops the walk
    };
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &reason);
    constexpr std::string_view marker = "error message = '";
    if (const std::size_t begin = reason.find(marker); begin != std::string::npos) {
        const std::string_view words = std::string_view(reason).substr(begin + marker.size());
        return std::string(words.substr(0, words.find('\'')));
    }
    return reason.empty() ? "libhdf5 gives no reason" : reason;
}

/// For calls that fail only by our own mistake or without memory.
hid_t must(hid_t result) {
    LOCKSTEP_CHECK(result >= 0, "libhdf5: ", reason_from_stack());
    return result;
}

Hdf5Handle property_list(hid_t kind) {
    return {must(H5Pcreate(kind)), H5Pclose};
}

#if (H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 12, 0)) || H5_VERSION_GE(1, 12, 1)
void set_file_locking(const Hdf5Handle& access, bool locking) {
    must(H5Pset_file_locking(access.get(), locking, /*ignore_when_disabled=*/true));
}
#else
void set_file_locking(const Hdf5Handle&, bool) {}
#endif

Hdf5Handle dataset_access() {
    Hdf5Handle list = property_list(H5P_DATASET_ACCESS);
    // A link into another file would take the reader outside the file that it checks.
    const H5L_elink_traverse_t refuse = [](const char*, const char*, const char*, const char*, unsigned*, hid_t,
                                           void*) -> herr_t { return -1; };
    must(H5Pset_elink_cb(list.get(), refuse, nullptr));
    return list;
}

Hdf5Handle space_of(const std::vector<std::uint64_t>& shape) {
    const std::vector<hsize_t> dims(shape.begin(), shape.end());
    return {must(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr)), H5Sclose};
}

Hdf5Handle fixed_string(std::size_t length) {
    Hdf5Handle type(must(H5Tcopy(H5T_C_S1)), H5Tclose);
    must(H5Tset_size(type.get(), std::max<std::size_t>(length, 1)));  // zero is no HDF5 type
    must(H5Tset_strpad(type.get(), H5T_STR_NULLPAD));
    must(H5Tset_cset(type.get(), H5T_CSET_UTF8));
    return type;
}

std::string without_padding(std::string_view padded) {
    return std::string(padded.substr(0, padded.find('\0')));
}

/// "8-byte unsigned integer"
std::string type_text(hid_t type) {
    const auto bytes = [&] { return str(H5Tget_size(type), "-byte "); };
    switch (H5Tget_class(type)) {
        case H5T_INTEGER:
            return str(bytes(), H5Tget_sign(type) == H5T_SGN_NONE ? "unsigned" : "signed", " integer");
        case H5T_FLOAT:
            return str(bytes(), "floating-point number");
        case H5T_STRING:
            return H5Tis_variable_str(type) > 0 ? "variable-length string" : "fixed-length string";
        default:
            return "compound or other type";
    }
}

template <typename T>
bool fits(hid_t stored) {
    if (H5Tget_size(stored) > sizeof(T)) {
        return false;
    }
    if constexpr (std::is_floating_point_v<T>) {
        return H5Tget_class(stored) == H5T_FLOAT;
    } else {
        return H5Tget_class(stored) == H5T_INTEGER &&
               H5Tget_sign(stored) == (std::is_signed_v<T> ? H5T_SGN_2 : H5T_SGN_NONE);
    }
}

bool fits_fixed_string(hid_t stored) {
    return H5Tget_class(stored) == H5T_STRING && H5Tis_variable_str(stored) == 0;
}

}  // namespace

std::recursive_mutex& hdf5_mutex() {
    static std::recursive_mutex mutex;
    return mutex;
}

// ---- handle ----

Hdf5Handle::~Hdf5Handle() {
    close();
}

Hdf5Handle::Hdf5Handle(Hdf5Handle&& other) noexcept
    : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}

Hdf5Handle& Hdf5Handle::operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
}

bool Hdf5Handle::close() {
    if (id_ < 0) {
        return true;
    }
    const LibraryGuard library;
    return close_(std::exchange(id_, H5I_INVALID_HID)) >= 0;
}

// ---- file ----

struct Hdf5File::Opened {
    std::string name;
    Hdf5Handle dataset;
    Hdf5Handle type;
    std::vector<std::uint64_t> shape;
    std::uint64_t count;
};

void Hdf5File::fail(std::string_view action, const std::string& name, std::string_view reason) const {
    throw Error(
        str(path_.string(), ": can't ", action, name.empty() ? "" : " '", name, name.empty() ? "" : "'", ": ", reason));
}

hid_t Hdf5File::checked(hid_t result, std::string_view action, const std::string& name) const {
    if (result < 0) {
        fail(action, name, reason_from_stack());
    }
    return result;
}

hid_t Hdf5File::file() const {
    LOCKSTEP_CHECK(file_.get() >= 0, path_.string(), " is used after close()");
    return file_.get();
}

std::uint64_t Hdf5File::file_bytes() const {
    if (size_) {
        return *size_;
    }
    hsize_t size = 0;
    checked(H5Fget_filesize(file(), &size), "tell the size of the file", "");
    return size;
}

Hdf5File Hdf5File::open_read_only(const std::filesystem::path& path) {
    const LibraryGuard library;
    const Hdf5Handle access = property_list(H5P_FILE_ACCESS);
    set_file_locking(access, false);
    Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
    if (file.get() < 0) {
        throw Error(str(path.string(), ": can't open as an HDF5 file: ", reason_from_stack()));
    }
    std::error_code error;
    const std::uint64_t size = std::filesystem::file_size(path, error);
    if (error) {
        throw Error(str(path.string(), ": can't tell its size: ", error.message()));
    }
    return {std::move(file), path, size};
}

Hdf5File Hdf5File::create(const std::filesystem::path& path) {
    const LibraryGuard library;
    const Hdf5Handle access = property_list(H5P_FILE_ACCESS);
    set_file_locking(access, true);
    must(H5Pset_alignment(access.get(), page_bytes, page_bytes));
    // The format of 1.8, which every reader knows, is the first with checksums over all metadata: libhdf5 then refuses
    // a damaged header, where it may crash on one of the older format.
    must(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18));
    // Otherwise small writes reach the disk, and fail, only while a data set is being closed.
    must(H5Pset_sieve_buf_size(access.get(), 0));
    const Hdf5Handle creation = property_list(H5P_FILE_CREATE);
    must(H5Pset_obj_track_times(creation.get(), false));
    Hdf5Handle file(H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation.get(), access.get()), H5Fclose);
    if (file.get() < 0) {
        throw Error(str(path.string(), ": can't create: ", reason_from_stack()));
    }
    return {std::move(file), path, std::nullopt};
}

void Hdf5File::close() {
    const LibraryGuard library;
    checked(H5Fflush(file(), H5F_SCOPE_GLOBAL), "write the file", "");
    checked(file_.close() ? 0 : -1, "close the file", "");
}

bool Hdf5File::has(const std::string& name) const {
    const LibraryGuard library;
    // H5Lexists takes a missing group on the way for an error.
    const Hdf5Handle access = dataset_access();
    for (std::size_t end = name.find('/', 1); end != std::string::npos; end = name.find('/', end + 1)) {
        if (H5Lexists(file(), name.substr(0, end).c_str(), access.get()) <= 0) {
            return false;
        }
    }
    return H5Lexists(file(), name.c_str(), access.get()) > 0;
}

Hdf5File::Opened Hdf5File::open_dataset(const std::string& name) const {
    if (!has(name)) {
        fail("open data set", name, "there is none of this name");
    }
    Opened opened{.name = name, .dataset = {}, .type = {}, .shape = {}, .count = 1};
    const auto valid = [&](hid_t id) { return checked(id, "open data set", name); };
    opened.dataset = {valid(H5Dopen2(file(), name.c_str(), dataset_access().get())), H5Dclose};
    opened.type = {valid(H5Dget_type(opened.dataset.get())), H5Tclose};
    const Hdf5Handle space(valid(H5Dget_space(opened.dataset.get())), H5Sclose);
    if (H5Sget_simple_extent_type(space.get()) == H5S_NULL) {
        fail("open data set", name, "it has no elements and no shape");
    }
    std::vector<hsize_t> dims(static_cast<std::size_t>(valid(H5Sget_simple_extent_ndims(space.get()))));
    valid(H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr));
    opened.shape.assign(dims.begin(), dims.end());
    for (const std::uint64_t dim : opened.shape) {
        if (__builtin_mul_overflow(opened.count, dim, &opened.count)) {
            fail("open data set", name, "its shape is impossible; the file is damaged");
        }
    }
    return opened;
}

Hdf5Extent Hdf5File::extent_of(const Opened& opened) const {
    const auto refuse = [&](std::string_view reason) { fail("read data set", opened.name, reason); };
    const Hdf5Handle creation(checked(H5Dget_create_plist(opened.dataset.get()), "read data set", opened.name),
                              H5Pclose);
    if (H5Pget_layout(creation.get()) != H5D_CONTIGUOUS) {
        refuse("it is chunked, compact or virtual, and only contiguous data sets can be read");
    }
    if (H5Pget_external_count(creation.get()) != 0) {
        refuse("its content is stored in another file");
    }
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(opened.count, H5Tget_size(opened.type.get()), &bytes)) {
        refuse("its size is impossible; the file is damaged");
    }
    if (bytes == 0) {
        return {0, 0};
    }
    const haddr_t offset = H5Dget_offset(opened.dataset.get());
    if (offset == HADDR_UNDEF) {
        refuse("it was declared but never written");
    }
    const std::uint64_t file_size = file_bytes();
    if (offset > file_size || bytes > file_size - offset || H5Dget_storage_size(opened.dataset.get()) != bytes) {
        refuse(str("it claims ", bytes, " bytes at offset ", offset, " of a file of ", file_size,
                   " bytes; the file is damaged or was cut short"));
    }
    return {offset, bytes};
}

std::vector<std::uint64_t> Hdf5File::shape(const std::string& name) const {
    const LibraryGuard library;
    return open_dataset(name).shape;
}

Hdf5Extent Hdf5File::extent(const std::string& name) const {
    const LibraryGuard library;
    return extent_of(open_dataset(name));
}

Hdf5Extent Hdf5File::records_extent(const std::string& name, hid_t type) const {
    const LibraryGuard library;
    const Opened opened = open_dataset(name);
    if (opened.shape.size() != 1) {
        fail("read data set", name, str("it has ", opened.shape.size(), " dimensions, expected one"));
    }
    if (H5Tequal(opened.type.get(), type) <= 0) {
        fail("read data set", name,
             str("it holds ", type_text(opened.type.get()), " values, expected ", type_text(type)));
    }
    return extent_of(opened);
}

/// "a" and "a/b" for a data set a/b/c. libhdf5 could make them itself, but would write the time into them.
void Hdf5File::create_groups_above(const std::string& name) {
    const Hdf5Handle creation = property_list(H5P_GROUP_CREATE);
    must(H5Pset_obj_track_times(creation.get(), false));
    for (std::size_t slash = name.find('/', 1); slash != std::string::npos; slash = name.find('/', slash + 1)) {
        const std::string group = name.substr(0, slash);
        if (must(H5Lexists(file(), group.c_str(), H5P_DEFAULT)) == 0) {
            const Hdf5Handle made(checked(H5Gcreate2(file(), group.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                                          "create group", group),
                                  H5Gclose);
        }
    }
}

Hdf5Handle Hdf5File::create_contiguous(const std::string& name, hid_t type, const std::vector<std::uint64_t>& shape) {
    create_groups_above(name);
    const Hdf5Handle creation = property_list(H5P_DATASET_CREATE);
    must(H5Pset_layout(creation.get(), H5D_CONTIGUOUS));
    must(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY));
    must(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER));
    must(H5Pset_obj_track_times(creation.get(), false));  // the same content, the same file
    return {
        checked(H5Dcreate2(file(), name.c_str(), type, space_of(shape).get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                "create data set", name),
        H5Dclose};
}

template <typename T>
Hdf5File::Opened Hdf5File::open_for_reading(const std::string& name) const {
    Opened opened = open_dataset(name);
    if (!fits<T>(opened.type.get())) {
        fail("read data set", name,
             str("it holds ", type_text(opened.type.get()), " values, expected ", type_text(hdf5_native_type<T>()),
                 " values"));
    }
    extent_of(opened);
    return opened;
}

template <typename T>
void Hdf5File::write(const std::string& name, std::span<const T> values, const std::vector<std::uint64_t>& shape) {
    const LibraryGuard library;
    std::uint64_t count = 1;
    for (const std::uint64_t dim : shape) {
        LOCKSTEP_CHECK(!__builtin_mul_overflow(count, dim, &count), "shape of '", name, "'");
    }
    LOCKSTEP_CHECK_EQ(count, values.size(), "for data set '", name, "'");
    const Hdf5Handle dataset = create_contiguous(name, hdf5_native_type<T>(), shape);
    if (!values.empty()) {
        checked(H5Dwrite(dataset.get(), hdf5_native_type<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
                "write data set", name);
    }
}

void Hdf5File::write_records(const std::string& name, hid_t type, const void* records, std::uint64_t count) {
    const LibraryGuard library;
    const Hdf5Handle dataset = create_contiguous(name, type, {count});
    if (count > 0) {
        checked(H5Dwrite(dataset.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, records), "write data set", name);
    }
}

template <typename T>
std::vector<T> Hdf5File::read(const std::string& name, std::optional<std::uint64_t> expected_count) const {
    const LibraryGuard library;
    const Opened opened = open_for_reading<T>(name);
    if (expected_count && *expected_count != opened.count) {
        fail("read data set", name, str("it has ", opened.count, " elements, expected ", *expected_count));
    }
    std::vector<T> values(opened.count);
    if (!values.empty()) {
        checked(H5Dread(opened.dataset.get(), hdf5_native_type<T>(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
                "read data set", name);
    }
    return values;
}

namespace {

struct Selection {
    Hdf5Handle memory;
    Hdf5Handle file;
};

Selection select(std::uint64_t total, std::uint64_t begin, std::uint64_t count) {
    Selection selection{space_of({count}), space_of({total})};
    const hsize_t start = begin;
    const hsize_t length = count;
    must(H5Sselect_hyperslab(selection.file.get(), H5S_SELECT_SET, &start, nullptr, &length, nullptr));
    return selection;
}

}  // namespace

template <typename T>
std::vector<T> Hdf5File::read_range(const std::string& name, std::uint64_t begin, std::uint64_t count) const {
    const LibraryGuard library;
    const Opened opened = open_for_reading<T>(name);
    if (opened.shape.size() != 1) {
        fail("read data set", name, str("it has ", opened.shape.size(), " dimensions, expected one"));
    }
    if (begin > opened.count || count > opened.count - begin) {
        fail("read data set", name,
             str("elements ", begin, " to ", begin, " + ", count, " are wanted and it has ", opened.count));
    }
    std::vector<T> values(count);
    if (count > 0) {
        const Selection selection = select(opened.count, begin, count);
        checked(H5Dread(opened.dataset.get(), hdf5_native_type<T>(), selection.memory.get(), selection.file.get(),
                        H5P_DEFAULT, values.data()),
                "read data set", name);
    }
    return values;
}

bool Hdf5File::is_contiguous(const std::string& name) const {
    const LibraryGuard library;
    const Opened opened = open_dataset(name);
    const Hdf5Handle creation(checked(H5Dget_create_plist(opened.dataset.get()), "open data set", name), H5Pclose);
    return H5Pget_layout(creation.get()) == H5D_CONTIGUOUS;
}

Hdf5Bytes Hdf5File::open_bytes(const std::string& name) const {
    constexpr hsize_t most_chunk_bytes = hsize_t{64} << 20;
    const LibraryGuard library;
    Opened opened = open_dataset(name);
    const auto refuse = [&](std::string_view reason) { fail("open data set", name, reason); };
    if (opened.shape.size() != 1 || H5Tequal(opened.type.get(), H5T_NATIVE_UINT8) <= 0) {
        refuse(str("it holds ", type_text(opened.type.get()), " values in ", opened.shape.size(),
                   " dimensions, expected bytes in one"));
    }
    const Hdf5Handle creation(checked(H5Dget_create_plist(opened.dataset.get()), "open data set", name), H5Pclose);
    if (H5Pget_layout(creation.get()) == H5D_CHUNKED) {
        hsize_t chunk = 0;
        checked(H5Pget_chunk(creation.get(), 1, &chunk), "open data set", name);
        if (chunk > most_chunk_bytes) {
            refuse(str("its chunks have ", chunk, " bytes, more than the limit of ", most_chunk_bytes));
        }
    } else {
        extent_of(opened);
    }
    return {std::move(opened.dataset), opened.count, str(path_.string(), ": data set '", name, "'")};
}

void Hdf5Bytes::read(std::uint64_t begin, std::span<std::uint8_t> into) const {
    LOCKSTEP_CHECK(begin <= size_ && into.size() <= size_ - begin, where_, " has ", size_, " bytes, not ", begin, " + ",
                   into.size());
    if (into.empty()) {
        return;
    }
    const LibraryGuard library;
    const Selection selection = select(size_, begin, into.size());
    if (H5Dread(dataset_.get(), H5T_NATIVE_UINT8, selection.memory.get(), selection.file.get(), H5P_DEFAULT,
                into.data()) < 0) {
        throw Error(str(where_, ": reading bytes ", begin, " to ", begin + into.size(), ": ", reason_from_stack()));
    }
}

template <typename T>
void Hdf5File::create_dataset(const std::string& name, std::uint64_t count) {
    const LibraryGuard library;
    create_contiguous(name, hdf5_native_type<T>(), {count});
}

template <typename T>
void Hdf5File::write_range(const std::string& name, std::uint64_t begin, std::span<const T> values) {
    const LibraryGuard library;
    const Opened opened = open_dataset(name);
    LOCKSTEP_CHECK_EQ(opened.shape.size(), 1u, "dimensions of data set '", name, "'");
    LOCKSTEP_CHECK(H5Tequal(opened.type.get(), hdf5_native_type<T>()) > 0, "type of data set '", name, "'");
    LOCKSTEP_CHECK(begin <= opened.count && values.size() <= opened.count - begin, "data set '", name, "' has ",
                   opened.count, " elements, not ", begin, " + ", values.size());
    if (!values.empty()) {
        const Selection selection = select(opened.count, begin, values.size());
        checked(H5Dwrite(opened.dataset.get(), hdf5_native_type<T>(), selection.memory.get(), selection.file.get(),
                         H5P_DEFAULT, values.data()),
                "write data set", name);
    }
}

void Hdf5File::write_strings(const std::string& name, std::span<const std::string> values) {
    const LibraryGuard library;
    std::size_t length = 1;
    for (const std::string& value : values) {
        if (value.find('\0') != std::string::npos) {
            fail("write data set", name, "a text contains a null character");
        }
        length = std::max(length, value.size());
    }
    std::string padded;
    for (const std::string& value : values) {
        padded.append(value).append(length - value.size(), '\0');
    }
    const Hdf5Handle type = fixed_string(length);
    const Hdf5Handle dataset = create_contiguous(name, type.get(), {values.size()});
    if (!values.empty()) {
        checked(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, padded.data()), "write data set",
                name);
    }
}

std::vector<std::string> Hdf5File::read_strings(const std::string& name) const {
    const LibraryGuard library;
    const Opened opened = open_dataset(name);
    if (!fits_fixed_string(opened.type.get())) {
        fail("read data set", name,
             str("it holds ", type_text(opened.type.get()), " values, expected fixed-length strings"));
    }
    std::string padded(extent_of(opened).bytes, '\0');
    if (!padded.empty()) {
        checked(H5Dread(opened.dataset.get(), opened.type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, padded.data()),
                "read data set", name);
    }
    const std::size_t length = H5Tget_size(opened.type.get());
    std::vector<std::string> values;
    values.reserve(opened.count);
    for (std::size_t begin = 0; begin < padded.size(); begin += length) {
        values.push_back(without_padding(std::string_view(padded).substr(begin, length)));
    }
    return values;
}

void Hdf5File::write_attribute(const std::string& name, hid_t type, const void* value) {
    const Hdf5Handle attribute(
        checked(H5Acreate2(file(), name.c_str(), type, space_of({}).get(), H5P_DEFAULT, H5P_DEFAULT),
                "create attribute", name),
        H5Aclose);
    checked(H5Awrite(attribute.get(), type, value), "write attribute", name);
}

void Hdf5File::write_attribute(const std::string& name, const std::string& value) {
    const LibraryGuard library;
    if (value.find('\0') != std::string::npos) {
        fail("write attribute", name, "the text contains a null character");
    }
    write_attribute(name, fixed_string(value.size()).get(), value.c_str());
}

void Hdf5File::write_attribute(const std::string& name, std::uint64_t value) {
    const LibraryGuard library;
    write_attribute(name, H5T_NATIVE_UINT64, &value);
}

Hdf5File::OpenedAttribute Hdf5File::open_attribute(const std::string& name) const {
    if (H5Aexists(file(), name.c_str()) <= 0) {
        fail("read attribute", name, "there is none of this name");
    }
    const auto valid = [&](hid_t id) { return checked(id, "read attribute", name); };
    OpenedAttribute opened;
    opened.handle = {valid(H5Aopen(file(), name.c_str(), H5P_DEFAULT)), H5Aclose};
    opened.type = {valid(H5Aget_type(opened.handle.get())), H5Tclose};
    const Hdf5Handle space(valid(H5Aget_space(opened.handle.get())), H5Sclose);
    if (H5Sget_simple_extent_npoints(space.get()) != 1) {
        fail("read attribute", name, "it is not a single value");
    }
    return opened;
}

std::string Hdf5File::read_string_attribute(const std::string& name) const {
    const LibraryGuard library;
    const OpenedAttribute attribute = open_attribute(name);
    const hid_t type = attribute.type.get();
    if (!fits_fixed_string(type)) {
        fail("read attribute", name, str("it is a ", type_text(type), ", expected a fixed-length string"));
    }
    const std::size_t length = H5Tget_size(type);
    if (length > file_bytes()) {
        fail("read attribute", name, str("it claims ", length, " bytes; the file is damaged"));
    }
    std::string padded(length, '\0');
    checked(H5Aread(attribute.handle.get(), type, padded.data()), "read attribute", name);
    return without_padding(padded);
}

std::uint64_t Hdf5File::read_u64_attribute(const std::string& name) const {
    const LibraryGuard library;
    const OpenedAttribute attribute = open_attribute(name);
    if (!fits<std::uint64_t>(attribute.type.get())) {
        fail("read attribute", name,
             str("it is a ", type_text(attribute.type.get()), ", expected an unsigned integer"));
    }
    std::uint64_t value = 0;
    checked(H5Aread(attribute.handle.get(), H5T_NATIVE_UINT64, &value), "read attribute", name);
    return value;
}

// clang-format off
#define LOCKSTEP_HDF5_TYPE(T, native)                                                                                  \
    template <> hid_t hdf5_native_type<T>() { const LibraryGuard library; return native; }                                  \
    template void Hdf5File::write<T>(const std::string&, std::span<const T>, const std::vector<std::uint64_t>&);       \
    template std::vector<T> Hdf5File::read<T>(const std::string&, std::optional<std::uint64_t>) const;                 \
    template std::vector<T> Hdf5File::read_range<T>(const std::string&, std::uint64_t, std::uint64_t) const;           \
    template void Hdf5File::create_dataset<T>(const std::string&, std::uint64_t);                                      \
    template void Hdf5File::write_range<T>(const std::string&, std::uint64_t, std::span<const T>);
LOCKSTEP_HDF5_TYPE(std::int8_t, H5T_NATIVE_INT8)
LOCKSTEP_HDF5_TYPE(std::int16_t, H5T_NATIVE_INT16)
LOCKSTEP_HDF5_TYPE(std::int32_t, H5T_NATIVE_INT32)
LOCKSTEP_HDF5_TYPE(std::int64_t, H5T_NATIVE_INT64)
LOCKSTEP_HDF5_TYPE(std::uint8_t, H5T_NATIVE_UINT8)
LOCKSTEP_HDF5_TYPE(std::uint16_t, H5T_NATIVE_UINT16)
LOCKSTEP_HDF5_TYPE(std::uint32_t, H5T_NATIVE_UINT32)
LOCKSTEP_HDF5_TYPE(std::uint64_t, H5T_NATIVE_UINT64)
LOCKSTEP_HDF5_TYPE(float, H5T_NATIVE_FLOAT)
LOCKSTEP_HDF5_TYPE(double, H5T_NATIVE_DOUBLE)
#undef LOCKSTEP_HDF5_TYPE
// clang-format on

}  // namespace lockstep::base
