#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep::sharding {

/// Writes `checksums.txt` of the data set that lies in `directory`: a CRC-32C of every table of every file but the
/// pools (whose samples have their own), one of what lies between the tables, and one of these lines.
void write_checksums(const std::filesystem::path& directory, std::uint64_t shards);

/// Compares, without libhdf5, whose own structures may be what is damaged. False where there is no `checksums.txt`, as
/// in data sets of before it was written. Throws base::Error naming the file, the table and both checksums.
bool check_checksums(const std::filesystem::path& directory);

}  // namespace lockstep::sharding
