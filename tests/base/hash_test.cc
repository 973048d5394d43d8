#include "base/hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace lockstep::base {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes bytes_of(std::string_view text) {
    return {text.begin(), text.end()};
}

Bytes some_bytes(std::size_t count) {
    Bytes bytes(count);
    std::uint32_t state = 1;
    for (std::uint8_t& byte : bytes) {
        state = state * 1664525 + 1013904223;
        byte = static_cast<std::uint8_t>(state >> 24);
    }
    return bytes;
}

/// The definition: a division of polynomials, bit by bit.
std::uint32_t crc32c_by_bits(std::span<const std::uint8_t> bytes) {
    std::uint32_t crc = 0xffffffff;
    for (const std::uint8_t byte : bytes) {
        crc ^= byte;
        for (int bit = 0; bit < 8; ++bit) {
            crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78 : crc >> 1;
        }
    }
    return ~crc;
}

TEST(Crc32c, GivesThePublishedValues) {
    Bytes rising(32);
    std::iota(rising.begin(), rising.end(), 0);
    const Bytes falling(rising.rbegin(), rising.rend());
    const std::vector<std::pair<Bytes, std::uint32_t>> published = {
        {bytes_of("123456789"), 0xE3069283},  // the check value of the catalogues
        {Bytes(32, 0x00), 0x8A9136AA},
        {Bytes(32, 0xff), 0x62A8AB43},  // RFC 3720, B.4
        {rising, 0x46DD794E},
        {falling, 0x113FDB5C},  // the same
        {{}, 0},
    };
    for (const auto& [bytes, expected] : published) {
        EXPECT_EQ(crc32c(bytes), expected) << bytes.size() << " bytes";
        EXPECT_EQ(detail::crc32c_portable(bytes), expected) << bytes.size() << " bytes";
    }
}

TEST(Crc32c, IsTheSameByInstructionByTableAndByBitsForEveryLengthAndAlignment) {
    const Bytes bytes = some_bytes(300);
    for (std::size_t begin = 0; begin < 9; ++begin) {
        for (std::size_t length = 0; begin + length <= bytes.size(); ++length) {
            const auto part = std::span(bytes).subspan(begin, length);
            ASSERT_EQ(crc32c(part), crc32c_by_bits(part)) << begin << " + " << length;
            ASSERT_EQ(detail::crc32c_portable(part), crc32c_by_bits(part)) << begin << " + " << length;
        }
    }
}

TEST(Crc32c, GoesOnFromASeed) {
    const Bytes bytes = some_bytes(100);
    const std::span<const std::uint8_t> all(bytes);
    for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
        ASSERT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(all)) << cut;
        ASSERT_EQ(detail::crc32c_portable(all.subspan(cut), detail::crc32c_portable(all.first(cut))), crc32c(all))
            << cut;
    }
}

TEST(Mix64, IsTheFinaliserOfSplitmix64) {
    // The first outputs of splitmix64 for the seeds 0 and 1234567; its state steps by the golden ratio.
    EXPECT_EQ(mix64(0x9e3779b97f4a7c15), 0xe220a8397b1dcdafU);
    EXPECT_EQ(mix64(1234567 + 0x9e3779b97f4a7c15), 6457827717110365317U);
    EXPECT_EQ(mix64(1234567 + 2 * 0x9e3779b97f4a7c15), 3203168211198807973U);
}

TEST(Hash64, IsFnv1aMixed) {
    // FNV-1a's published 64-bit values.
    EXPECT_EQ(Hash64().value(), mix64(0xcbf29ce484222325));
    EXPECT_EQ(Hash64().add(bytes_of("a")).value(), mix64(0xaf63dc4c8601ec8c));
    EXPECT_EQ(Hash64().add(bytes_of("foobar")).value(), mix64(0x85944171f73967e8));
}

TEST(Hash64, TakesBytesInPiecesAndTextsWithTheirLength) {
    EXPECT_EQ(Hash64().add(bytes_of("foo")).add(bytes_of("bar")).value(), Hash64().add(bytes_of("foobar")).value());
    EXPECT_NE(Hash64().add("ab").add("c").value(), Hash64().add("a").add("bc").value());
    EXPECT_EQ(Hash64().add("ab").value(), Hash64().add(std::uint64_t{2}).add(bytes_of("ab")).value());
}

TEST(Hash64, TakesNumbersAsLittleEndianBytes) {
    EXPECT_EQ(Hash64().add(std::uint64_t{0x0807060504030201}).value(),
              Hash64().add(Bytes{1, 2, 3, 4, 5, 6, 7, 8}).value());
}

TEST(Hash64, PrintsSixteenDigits) {
    const Hash64 hash = Hash64().add("a");
    EXPECT_EQ(hash.hex().size(), 16u);
    EXPECT_EQ(std::stoull(hash.hex(), nullptr, 16), hash.value()) << hash.hex();
}

}  // namespace
}  // namespace lockstep::base
