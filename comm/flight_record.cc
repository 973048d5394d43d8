#include "comm/flight_record.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/resources.h"

namespace lockstep::comm {

namespace {

constexpr std::string_view waits = "waits";
constexpr std::string_view done = "done ";
constexpr std::size_t number_digits = 20;

}  // namespace

FlightRecord::FlightRecord(const std::filesystem::path& file) {
    constexpr std::size_t bytes = lines * width;
    const auto fail = [&](std::string_view what) {
        throw base::Error(base::str(file.string(), ": the flight record can't be ", what, ": ", std::strerror(errno)));
    };
    const int descriptor = open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor < 0) {
        fail("made");
    }
    // Blocks now, so that a full disk is this message and not a signal in the middle of a step.
    const int code = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
    void* const address =
        code == 0 ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) : MAP_FAILED;
    const int problem = code == 0 ? errno : code;
    close(descriptor);
    if (address == MAP_FAILED) {
        errno = problem;
        fail(code == 0 ? "mapped" : "given room on disk");
    }
    mapping_ = {static_cast<char*>(address), [](char* mapped) { munmap(mapped, bytes); }};
    for (std::uint64_t number = 0; number < lines; ++number) {
        std::fill_n(line(number), width - 1, ' ');
        line(number)[width - 1] = '\n';
    }
}

std::uint64_t FlightRecord::begin(std::string_view operation) {
    const std::uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
    std::array<char, width> text{};
    const int length =
        std::snprintf(text.data(), text.size(), "%0*llu %.*s %s %.*s", static_cast<int>(number_digits),
                      static_cast<unsigned long long>(number), static_cast<int>(waits.size()), waits.data(),
                      base::utc_timestamp(6).c_str(), static_cast<int>(operation.size()), operation.data());
    const std::size_t written = std::min(static_cast<std::size_t>(std::max(length, 0)), width - 1);
    std::fill(text.begin() + static_cast<std::ptrdiff_t>(written), text.end(), ' ');
    std::copy_n(text.begin(), width - 1, line(number));
    return number;
}

void FlightRecord::end(std::uint64_t number) {
    std::array<char, number_digits + 2> digits{};
    std::snprintf(digits.data(), digits.size(), "%0*llu ", static_cast<int>(number_digits),
                  static_cast<unsigned long long>(number));
    if (std::equal(digits.begin(), digits.end() - 1, line(number))) {
        std::copy(done.begin(), done.end(), line(number) + number_digits + 1);
    }
}

}  // namespace lockstep::comm
