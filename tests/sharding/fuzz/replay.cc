// Runs a fuzz target over a folder of inputs, where it isn't linked with a fuzzer: the corpus as a plain test.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "base/file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
    int inputs = 0;
    for (int i = 1; i < argc; ++i) {
        for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
            const std::vector<std::uint8_t> bytes = lockstep::base::read_bytes(entry.path());
            std::printf("%s\n", entry.path().filename().c_str());
            std::fflush(stdout);  // the last line names the input that ends the program
            LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
            ++inputs;
        }
    }
    std::printf("%d inputs\n", inputs);
    return inputs > 0 ? 0 : 1;
}
