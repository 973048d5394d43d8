#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

namespace lockstep::comm {

/// The last operations of one rank, as lines of text in a mapped file: the kernel keeps what was written, even when the
/// process is killed in the next moment, and no call is needed for it. A line is written before its operation waits and
/// marked when it is done. Lines have one width, begin with their number and are written over in turn, so that `sort`
/// puts them in order. Any thread may call.
class FlightRecord {
  public:
    static constexpr std::size_t lines = 256;
    static constexpr std::size_t width = 192;  ///< of a line, its end included

    /// Makes `file`, or empties it. Throws base::Error naming it.
    explicit FlightRecord(const std::filesystem::path& file);

    /// Writes a line, cut to its width, and returns its number, counted from 0.
    std::uint64_t begin(std::string_view operation);
    /// Where the line has been written over since, nothing is marked.
    void end(std::uint64_t number);

  private:
    char* line(std::uint64_t number) const { return mapping_.get() + (number % lines) * width; }

    std::shared_ptr<char> mapping_;
    std::atomic<std::uint64_t> next_{0};
};

}  // namespace lockstep::comm
