#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::base {

/// CRC-32C (Castagnoli, reflected 0x82F63B78); the SSE4.2 instruction where the CPU has it. `seed` continues an earlier
/// result.
std::uint32_t crc32c(std::span<const std::uint8_t> bytes, std::uint32_t seed = 0);

namespace detail {
/// The same without special instructions (slicing by eight), for CPUs that lack them.
std::uint32_t crc32c_portable(std::span<const std::uint8_t> bytes, std::uint32_t seed = 0);
}  // namespace detail

/// A 64-bit hash that is stable over machines and versions (FNV-1a over bytes, then mixed). Not cryptographic.
class Hash64 {
  public:
    Hash64& add(std::span<const std::uint8_t> bytes);
    Hash64& add(std::string_view text);  ///< adds the length too, so that ("ab","c") differs from ("a","bc")
    Hash64& add(std::uint64_t value);
    std::uint64_t value() const;
    std::string hex() const;  ///< 16 lower-case digits

  private:
    std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

/// The finaliser of splitmix64: a bijection that spreads every input bit over the word.
std::uint64_t mix64(std::uint64_t value);

}  // namespace lockstep::base
