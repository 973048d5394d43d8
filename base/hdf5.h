#pragma once

#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace lockstep::base {

/// The one lock around libhdf5, which is not thread-safe as Debian builds it. Every method below takes it itself;
/// code that calls H5* directly holds it. Recursive, so that a sequence can be made atomic.
std::recursive_mutex& hdf5_mutex();

/// Owns one identifier and closes it with the right call.
class Hdf5Handle {
  public:
    using Close = herr_t (*)(hid_t);
    Hdf5Handle() = default;
    Hdf5Handle(hid_t id, Close close) : id_(id), close_(close) {}
    ~Hdf5Handle();
    Hdf5Handle(Hdf5Handle&& other) noexcept;
    Hdf5Handle& operator=(Hdf5Handle&& other) noexcept;
    Hdf5Handle(const Hdf5Handle&) = delete;
    Hdf5Handle& operator=(const Hdf5Handle&) = delete;
    hid_t get() const { return id_; }
    /// Closes now and says whether that worked; the destructor has nothing left to do.
    bool close();

  private:
    hid_t id_ = H5I_INVALID_HID;
    Close close_ = nullptr;
};

/// Maps a C++ type to its native HDF5 type (which HDF5 converts to what the file holds).
template <typename T>
hid_t hdf5_native_type();

/// Where a contiguous data set lies in its file, for mapping.
struct Hdf5Extent {
    std::uint64_t file_offset;
    std::uint64_t bytes;
};

/// A one-dimensional data set of bytes that is kept open to be read in pieces. Outlives its Hdf5File. Methods may be
/// called from any thread; they take hdf5_mutex().
class Hdf5Bytes {
  public:
    std::uint64_t size() const { return size_; }
    /// Fills `into` with the bytes from `begin` on, which lie inside the data set. Throws base::Error with path, name
    /// and libhdf5's reason.
    void read(std::uint64_t begin, std::span<std::uint8_t> into) const;

  private:
    friend class Hdf5File;
    Hdf5Bytes(Hdf5Handle dataset, std::uint64_t size, std::string where)
        : dataset_(std::move(dataset)), size_(size), where_(std::move(where)) {}

    Hdf5Handle dataset_;
    std::uint64_t size_;
    std::string where_;
};

/// A file with plain, fixed-size, contiguous data sets and scalar attributes on its root: all that Lockstep writes.
/// Names may have groups ("a/b"), which are created as needed. T is one of (u)int8_t to (u)int64_t, float and double.
///
/// Files are untrusted. Before anything is allocated, a data set that is read must be contiguous, stored in this very
/// file (no external file or link), wholly inside it, and of a type whose every value fits T (same class and sign, not
/// wider).
///
/// Errors are base::Error with path, object name and libhdf5's own reason (its stderr stack printing is switched off).
/// Methods may be called from any thread; they take hdf5_mutex().
class Hdf5File {
  public:
    static Hdf5File open_read_only(
        const std::filesystem::path& path);                     ///< no file locking (shared and read-only mounts)
    static Hdf5File create(const std::filesystem::path& path);  ///< refuses an existing file
    const std::filesystem::path& path() const { return path_; }

    /// Flushes and closes; an error (disk full) is thrown here, where a destructor could only swallow it: a
    /// file that was created is complete only after close(). Nothing may be called afterwards.
    void close();

    bool has(const std::string& name) const;
    std::vector<std::uint64_t> shape(const std::string& name) const;

    /// Contiguous, early-allocated, unfilled; aligned at 4096 bytes in the file where it is as large as that. extent()
    /// is valid at once.
    template <typename T>
    void write(const std::string& name, std::span<const T> values, const std::vector<std::uint64_t>& shape);
    template <typename T>
    void write(const std::string& name, std::span<const T> values) {
        write(name, values, {values.size()});
    }
    /// Reads all, in row-major order; refuses another element count where one is given.
    template <typename T>
    std::vector<T> read(const std::string& name, std::optional<std::uint64_t> expected_count = std::nullopt) const;
    /// Elements [begin, begin + count) of a one-dimensional data set; refuses what lies beyond its end.
    template <typename T>
    std::vector<T> read_range(const std::string& name, std::uint64_t begin, std::uint64_t count) const;

    /// Creates a contiguous one-dimensional data set to be filled in pieces by write_range.
    template <typename T>
    void create_dataset(const std::string& name, std::uint64_t count);
    template <typename T>
    void write_range(const std::string& name, std::uint64_t begin, std::span<const T> values);

    /// Fixed-length, null-padded UTF-8; refuses a text with a null character.
    void write_strings(const std::string& name, std::span<const std::string> values);
    std::vector<std::string> read_strings(const std::string& name) const;

    void write_attribute(const std::string& name, const std::string& value);
    void write_attribute(const std::string& name, std::uint64_t value);
    std::string read_string_attribute(const std::string& name) const;
    std::uint64_t read_u64_attribute(const std::string& name) const;

    /// Whether the data set can be mapped at all; extent() says where.
    bool is_contiguous(const std::string& name) const;
    /// Unlike every other method it takes chunked and compressed data sets too (chunks of 64 MiB at most).
    Hdf5Bytes open_bytes(const std::string& name) const;

    /// Where the data set lies. Throws where the layout is not contiguous or reaches beyond the end of the file.
    Hdf5Extent extent(const std::string& name) const;

    /// A one-dimensional table of `count` records that lie in memory as `type` (an HDF5 type without pointers) says.
    void write_records(const std::string& name, hid_t type, const void* records, std::uint64_t count);
    /// Where a one-dimensional table lies, for mapping: refused unless what is stored is `type` byte for byte.
    Hdf5Extent records_extent(const std::string& name, hid_t type) const;

  private:
    struct Opened;  // a data set with its type and shape
    struct OpenedAttribute {
        Hdf5Handle handle;
        Hdf5Handle type;
    };

    Hdf5File(Hdf5Handle file, std::filesystem::path path, std::optional<std::uint64_t> size)
        : file_(std::move(file)), path_(std::move(path)), size_(size) {}

    [[noreturn]] void fail(std::string_view action, const std::string& name, std::string_view reason) const;
    hid_t checked(hid_t result, std::string_view action, const std::string& name) const;
    hid_t file() const;
    std::uint64_t file_bytes() const;
    Opened open_dataset(const std::string& name) const;
    void create_groups_above(const std::string& name);
    Hdf5Handle create_contiguous(const std::string& name, hid_t type, const std::vector<std::uint64_t>& shape);
    void write_attribute(const std::string& name, hid_t type, const void* value);
    OpenedAttribute open_attribute(const std::string& name) const;
    template <typename T>
    Opened open_for_reading(const std::string& name) const;
    Hdf5Extent extent_of(const Opened& opened) const;

    Hdf5Handle file_;
    std::filesystem::path path_;
    std::optional<std::uint64_t> size_;  // of a file opened for reading; one that is being written grows
};

}  // namespace lockstep::base
