#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::base {

/// Whole content. Throws Error that names the path and the system's reason.
std::string read_text(const std::filesystem::path& path);
std::vector<std::uint8_t> read_bytes(const std::filesystem::path& path);

/// Written aside in the same folder, synced, renamed, the folder synced: readers see the old content or the new, never
/// a part.
void write_whole(const std::filesystem::path& path, std::string_view content);

/// A directory in the making beside the place it is meant for (`path` + ".partial-PID"); nothing of it stays unless it
/// is published. Refuses when `path` exists.
class DirectoryAside {
  public:
    explicit DirectoryAside(const std::filesystem::path& path);
    ~DirectoryAside();
    DirectoryAside(const DirectoryAside&) = delete;
    DirectoryAside& operator=(const DirectoryAside&) = delete;

    const std::filesystem::path& path() const { return aside_; }
    /// Syncs every file in it and renames it to its place.
    void publish();

  private:
    std::filesystem::path target_, aside_;
    bool is_published_ = false;
};

/// Removes from `folder`, which nobody else writes into, what killed processes left of files and directories aside.
void remove_leftovers_aside(const std::filesystem::path& folder);

/// Builds a directory aside (`path` + ".partial-PID"), lets `fill` write into it, syncs every file in it and renames it
/// to `path`. On an exception nothing of it stays. Refuses when `path` exists.
void write_directory_whole(const std::filesystem::path& path,
                           const std::function<void(const std::filesystem::path&)>& fill);

/// Syncs every file in the directory `aside` and renames it to `path`, which lies in the same file system.
void publish_directory(const std::filesystem::path& aside, const std::filesystem::path& path);

/// Syncs a file's or a directory's content to the disk.
void sync_to_disk(const std::filesystem::path& path);

/// Throws Error when the file system that will hold `path` has less than `bytes` free; names both figures.
void require_free_space(const std::filesystem::path& path, std::uint64_t bytes, std::string_view what);

/// A file mapped read-only and shared, for the life of the object.
class MappedFile {
  public:
    explicit MappedFile(const std::filesystem::path& path);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    std::span<const std::uint8_t> bytes() const { return {data_, size_}; }
    /// Asks the kernel to read this range ahead (madvise WILLNEED); a hint, never an error.
    void will_need(std::size_t offset, std::size_t size) const;
    /// Takes the pages out of this process's memory (madvise DONTNEED). They stay mapped, and in the kernel's cache:
    /// the next access brings them back. Also while others read them.
    void let_go() const;

  private:
    const std::uint8_t* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace lockstep::base
