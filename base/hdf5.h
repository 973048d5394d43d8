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

/// A file with plain, fixed-size, contiguous data sets and scalar attributes: all that Lockstep writes.
/// Errors are base::Error with path, object name and libhdf5's own reason (its stderr stack printing is switched off).
class Hdf5File {
  public:
    static Hdf5File open_read_only(const std::filesystem::path& path);  ///< no file locking (shared and read-only mounts)
    static Hdf5File create(const std::filesystem::path& path);          ///< refuses an existing file
    const std::filesystem::path& path() const { return path_; }

    /// Flushes and closes; an error (disk full) is thrown here, where a destructor could only swallow it.
    void close();

    bool has(const std::string& name) const;
    std::vector<std::uint64_t> shape(const std::string& name) const;

    /// Contiguous, early-allocated, unfilled, file-space aligned at 4096 bytes, so that extent() is valid at once.
    template <typename T>
    void write(const std::string& name, std::span<const T> values, std::vector<std::uint64_t> shape);
    template <typename T>
    void write(const std::string& name, std::span<const T> values) {
        write(name, values, {values.size()});
    }
    /// Reads all; refuses another class of type, another rank than expected or (where given) another element count.
    template <typename T>
    std::vector<T> read(const std::string& name, std::optional<std::uint64_t> expected_count = std::nullopt) const;
    /// Elements [begin, begin + count) of a one-dimensional data set.
    template <typename T>
    std::vector<T> read_range(const std::string& name, std::uint64_t begin, std::uint64_t count) const;

    /// Creates a contiguous one-dimensional data set to be filled in pieces by write_range.
    template <typename T>
    void create_dataset(const std::string& name, std::uint64_t count);
    template <typename T>
    void write_range(const std::string& name, std::uint64_t begin, std::span<const T> values);

    void write_strings(const std::string& name, std::span<const std::string> values);  ///< fixed-length, null-padded UTF-8
    std::vector<std::string> read_strings(const std::string& name) const;

    void write_attribute(const std::string& name, const std::string& value);  ///< on the root group
    void write_attribute(const std::string& name, std::uint64_t value);
    std::string read_string_attribute(const std::string& name) const;
    std::uint64_t read_u64_attribute(const std::string& name) const;

    /// Throws where the layout is not contiguous or reaches beyond the end of the file.
    Hdf5Extent extent(const std::string& name) const;

  private:
    Hdf5File(Hdf5Handle file, std::filesystem::path path) : file_(std::move(file)), path_(std::move(path)) {}
    Hdf5Handle file_;
    std::filesystem::path path_;
};

}  // namespace lockstep::base
