#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace lockstep::test {

/// An empty folder for one test, removed at its end.
class Scratch : public ::testing::Test {
  protected:
    Scratch() {
        const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
        folder_ = std::filesystem::temp_directory_path() / ("lockstep-" + std::string(info->test_suite_name()) + "-" +
                                                            info->name() + "-" + std::to_string(getpid()));
        std::filesystem::remove_all(folder_);
        std::filesystem::create_directories(folder_);
    }
    ~Scratch() override { std::filesystem::remove_all(folder_); }

    std::filesystem::path path(std::string_view name) const { return folder_ / name; }

    std::filesystem::path write(std::string_view name, std::string_view text) const {
        std::filesystem::create_directories(path(name).parent_path());
        std::ofstream(path(name), std::ios::binary) << text;
        return path(name);
    }
    std::filesystem::path write(std::string_view name, std::span<const std::uint8_t> bytes) const {
        return write(name, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    }

    /// Names of what lies in the folder, to show that nothing was left half-written.
    std::size_t entries() const {
        const std::filesystem::directory_iterator all(folder_);
        return static_cast<std::size_t>(std::distance(begin(all), end(all)));
    }

  private:
    std::filesystem::path folder_;
};

/// Bytes of the files in `folder` that are mapped into this process and in its memory now.
inline std::uint64_t mapped_bytes_in_memory(const std::filesystem::path& folder) {
    std::ifstream maps("/proc/self/smaps");
    std::uint64_t kib = 0;
    bool is_ours = false;
    for (std::string line; std::getline(maps, line);) {
        if (line.find('-') < line.find(' ') && line.find(':') > line.find(' ')) {  // a mapping's first line
            is_ours = line.find(folder.string()) != std::string::npos;
        } else if (is_ours && line.starts_with("Rss:")) {
            kib += std::stoull(line.substr(4));
        }
    }
    return kib * 1024;
}

/// The message of the base::Error that `action` throws; fails the test and is empty where it throws none.
inline std::string error_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const base::Error& error) {
        return error.what();
    }
    ADD_FAILURE() << "no base::Error was thrown";
    return {};
}

inline ::testing::AssertionResult contains(const std::string& text, std::string_view part) {
    if (text.find(part) != std::string::npos) {
        return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << "no '" << part << "' in: " << text;
}

}  // namespace lockstep::test
