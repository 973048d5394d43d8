#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep::bench {

/// What part of a file's pages the kernel holds in memory, 0 to 1 (mincore); 1 where it doesn't say.
double resident_fraction(const std::filesystem::path& file);

/// Writes every file of the directory to the disk and drops its pages from memory (posix_fadvise). Returns whether
/// mincore proves that they are gone: it can't be so on tmpfs, or while somebody maps them.
bool drop_from_page_cache(const std::filesystem::path& directory);

/// Reads what the kernel doesn't hold of the directory's files, unless they are larger than `most_bytes` together.
/// Returns whether mincore shows all of them in memory.
bool read_into_page_cache(const std::filesystem::path& directory, std::uint64_t most_bytes);

}  // namespace lockstep::bench
