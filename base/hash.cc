#include "base/hash.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace lockstep::base {
namespace {

static_assert(std::endian::native == std::endian::little, "CRC words and HDF5 columns are read in memory order");

using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

/// tables[k][b] is the remainder of byte b followed by k zero bytes.
constexpr CrcTables make_crc_tables() {
    CrcTables tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t remainder = byte;
        for (int bit = 0; bit < 8; ++bit) {
            remainder = (remainder >> 1) ^ ((remainder & 1) ? 0x82F63B78u : 0u);
        }
        tables[0][byte] = remainder;
    }
    for (std::size_t zeros = 1; zeros < 8; ++zeros) {
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const std::uint32_t previous = tables[zeros - 1][byte];
            tables[zeros][byte] = (previous >> 8) ^ tables[0][previous & 0xff];
        }
    }
    return tables;
}

constexpr CrcTables crc_tables = make_crc_tables();

std::uint64_t load_u64(const std::uint8_t* bytes) {
    std::uint64_t word;
    std::memcpy(&word, bytes, sizeof(word));
    return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(std::span<const std::uint8_t> bytes, std::uint32_t seed) {
    std::uint64_t crc = static_cast<std::uint32_t>(~seed);
    std::size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
        crc = _mm_crc32_u64(crc, load_u64(bytes.data() + i));
    }
    auto crc32 = static_cast<std::uint32_t>(crc);
    for (; i < bytes.size(); ++i) {
        crc32 = _mm_crc32_u8(crc32, bytes[i]);
    }
    return ~crc32;
}
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::uint8_t> bytes, std::uint32_t seed) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) {
        return crc32c_sse42(bytes, seed);
    }
#endif
    return detail::crc32c_portable(bytes, seed);
}

std::uint32_t detail::crc32c_portable(std::span<const std::uint8_t> bytes, std::uint32_t seed) {
    std::uint32_t crc = ~seed;
    std::size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
        const std::uint64_t word = load_u64(bytes.data() + i) ^ crc;
        crc = 0;
        for (std::size_t byte = 0; byte < 8; ++byte) {
            crc ^= crc_tables[7 - byte][(word >> (8 * byte)) & 0xff];
        }
    }
    for (; i < bytes.size(); ++i) {
        crc = (crc >> 8) ^ crc_tables[0][(crc ^ bytes[i]) & 0xff];
    }
    return ~crc;
}

Hash64& Hash64::add(std::span<const std::uint8_t> bytes) {
    constexpr std::uint64_t fnv_prime = 0x100000001b3ULL;
    for (const std::uint8_t byte : bytes) {
        state_ = (state_ ^ byte) * fnv_prime;
    }
    return *this;
}

Hash64& Hash64::add(std::string_view text) {
    add(static_cast<std::uint64_t>(text.size()));
    return add(std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
}

Hash64& Hash64::add(std::uint64_t value) {
    std::array<std::uint8_t, 8> bytes;
    std::memcpy(bytes.data(), &value, sizeof(value));
    return add(std::span<const std::uint8_t>(bytes));
}

std::uint64_t Hash64::value() const {
    return mix64(state_);
}

std::string Hash64::hex() const {
    std::string digits(16, '0');
    std::uint64_t rest = value();
    for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit, rest >>= 4) {
        *digit = "0123456789abcdef"[rest & 0xf];
    }
    return digits;
}

std::uint64_t mix64(std::uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
}

}  // namespace lockstep::base
