#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <utility>

namespace lockstep::trainer {

/// A named value of one step.
using Scalar = std::pair<std::string, double>;

/// Scalars as TensorBoard reads them: records (length, CRC-32C of it, content, CRC-32C of that) of protobuf messages.
/// Formats: tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto. One thread at a time.
class EventFile {
  public:
    /// Made anew in `directory`, which is created; TensorBoard takes all files of a directory for one run, so that
    /// earlier ones are removed. Throws base::Error that names the path.
    explicit EventFile(const std::filesystem::path& directory);

    /// `seconds`: since 1970. Values are kept as FP32. Handed to the system at once.
    void add(std::uint64_t step, double seconds, std::span<const Scalar> scalars);

  private:
    void write_record(const std::string& event);

    std::filesystem::path path_;
    std::ofstream file_;
};

}  // namespace lockstep::trainer
