#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace lockstep::comm {

/// Memory that several processes of one machine map, without a name: a memfd. Nothing stays behind when the last
/// process ends, however it ends; jobs can't meet; the size of /dev/shm does not matter.
class SharedSegment {
  public:
    /// Enough for another process of this machine to find the segment while its maker holds it.
    struct Handle {
        std::int64_t process = 0;
        std::int32_t descriptor = -1;
        std::uint64_t inode = 0;  ///< so that a descriptor of something else is noticed
        std::uint64_t bytes = 0;
    };

    /// Zeroed, without pages yet (reserve). Throws base::Error where the system gives none.
    static SharedSegment create(std::size_t bytes);
    /// Maps the segment of another process, or of this one. Throws base::Error where that process has gone, belongs to
    /// another user or lives in another PID namespace.
    static SharedSegment open(const Handle& handle);

    Handle handle() const;
    std::span<std::byte> bytes() const { return {mapping_.get(), bytes_}; }
    /// Shares in the mapping, which stays until the last owner lets go.
    std::shared_ptr<std::byte> owner() const { return mapping_; }

    /// Takes pages for [begin, begin + bytes) now, near the cores of the caller, so that a lack of memory is an error
    /// here and not a signal later. Throws base::Error.
    void reserve(std::size_t begin, std::size_t bytes) const;

  private:
    SharedSegment(std::shared_ptr<const int> descriptor, std::size_t bytes);

    std::shared_ptr<const int> descriptor_;
    std::size_t bytes_;
    std::shared_ptr<std::byte> mapping_;
};

/// Throws base::Error when less is left on this machine: the kernel would rather kill a process than refuse.
void require_memory_for(std::size_t bytes);

}  // namespace lockstep::comm
