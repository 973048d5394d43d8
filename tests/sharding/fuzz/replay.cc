// replay MUTATIONS FOLDER: runs a fuzz target over a corpus and over fixed mutations of it, where it isn't linked with
// a fuzzer. The target runs in a child process, so that whatever ends or stops it, the input is named and kept.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/random.h"
#include "base/text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;
using lockstep::base::Random;
using Bytes = std::vector<std::uint8_t>;

struct Input {
    std::string name;
    Bytes bytes;
};

std::vector<Input> read_corpus(const fs::path& folder) {
    std::vector<Input> corpus;
    for (const auto& entry : fs::directory_iterator(folder)) {
        corpus.push_back({entry.path().filename().string(), lockstep::base::read_bytes(entry.path())});
    }
    std::ranges::sort(corpus, {}, &Input::name);
    return corpus;
}

/// A byte is set, some are taken out, repeated or turned round, or a piece of another input is put in.
void mutate(Bytes& bytes, const std::vector<Input>& corpus, Random& random) {
    const auto place = [&](std::size_t size) { return static_cast<std::ptrdiff_t>(random.below(size + 1)); };
    const auto piece = [&](const Bytes& of) {
        const auto first = place(of.size()), second = place(of.size());
        constexpr std::ptrdiff_t longest = 64;
        const auto begin = std::min(first, second);
        return std::pair{begin, std::min(std::max(first, second), begin + longest)};
    };
    constexpr std::uint8_t telling[] = {0, 1, ' ', '"', '-', '0', '9', '<', '[', '{', 0x7F, 0x80, 0xFF};
    switch (random.below(6)) {
        case 0:
        case 1:
            if (!bytes.empty()) {
                bytes[random.below(bytes.size())] = random.coin(0.5) ? telling[random.below(std::size(telling))]
                                                                     : static_cast<std::uint8_t>(random.below(256));
            }
            break;
        case 2: {
            const auto [begin, end] = piece(bytes);
            bytes.erase(bytes.begin() + begin, bytes.begin() + end);
            break;
        }
        case 3: {
            const auto [begin, end] = piece(bytes);
            const Bytes again(bytes.begin() + begin, bytes.begin() + end);
            bytes.insert(bytes.begin() + place(bytes.size()), again.begin(), again.end());
            break;
        }
        case 4: {
            const auto [begin, end] = piece(bytes);
            std::reverse(bytes.begin() + begin, bytes.begin() + end);
            break;
        }
        default: {
            const Bytes& other = corpus[random.below(corpus.size())].bytes;
            const auto [begin, end] = piece(other);
            bytes.insert(bytes.begin() + place(bytes.size()), other.begin() + begin, other.begin() + end);
        }
    }
}

/// Input `number`: first the corpus as it is, then mutations of its inputs in turn.
Input input_of(const std::vector<Input>& corpus, std::uint64_t number) {
    Input input = corpus[number % corpus.size()];
    if (number >= corpus.size()) {
        Random random(1, lockstep::base::RandomPurpose::test, 0, number);
        for (std::uint64_t i = 1 + random.below(4); i > 0; --i) {
            mutate(input.bytes, corpus, random);
        }
        input.name += lockstep::base::str(", mutation ", number);
    }
    return input;
}

[[noreturn]] void run_child(const std::vector<Input>& corpus, std::uint64_t inputs, volatile std::uint64_t& current) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // never outlives a test that was ended
    try {
        for (std::uint64_t number = 0; number < inputs; ++number) {
            constexpr unsigned seconds_until_it_hangs = 60;
            alarm(seconds_until_it_hangs);
            current = number;
            const Bytes bytes = input_of(corpus, number).bytes;
            LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "exception: %s\n", error.what());
        std::_Exit(1);
    }
    alarm(0);
    std::exit(0);  // with what the sanitizers and the target do at the end of a process
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: %s MUTATIONS FOLDER\n", argv[0]);
        return 2;
    }
    const std::vector<Input> corpus = read_corpus(argv[2]);
    if (corpus.empty()) {
        std::fprintf(stderr, "%s: no input\n", argv[2]);
        return 1;
    }
    const std::uint64_t inputs = corpus.size() + std::stoull(argv[1]);
    void* const shared =
        mmap(nullptr, sizeof(std::uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        std::perror("mmap");
        return 1;
    }
    auto& current = *static_cast<volatile std::uint64_t*>(shared);
    const pid_t child = fork();
    if (child < 0) {
        std::perror("fork");
        return 1;
    }
    if (child == 0) {
        run_child(corpus, inputs, current);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        std::printf("%zu inputs of the corpus, %llu in all\n", corpus.size(), static_cast<unsigned long long>(inputs));
        return 0;
    }
    const Input input = input_of(corpus, current);
    const std::string kept = lockstep::base::str(fs::path(argv[0]).filename().string(), "-failed-input");
    std::ofstream(kept, std::ios::binary)
        .write(reinterpret_cast<const char*>(input.bytes.data()), static_cast<std::streamsize>(input.bytes.size()));
    std::printf("%s: ended with %s %d; the input lies in %s\n", input.name.c_str(),
                WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
                fs::absolute(kept).c_str());
    return 1;
}
