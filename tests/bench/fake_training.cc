// fake_training train RECIPE [--set key=value]... --out DIR: leaves a run's directory as `lockstep train` does, without
// training. What a step "takes" is written, not waited for. Its environment tells it to misbehave:
//   FAKE_MILLISECONDS=N        waits so long before it ends
//   FAKE_FAILS_WITH=precision=bf16   fails where this setting is given
//   FAKE_LEAVES_CHILD=FILE     leaves a child in a session of its own, and its id in FILE
//   FAKE_IGNORES_TERM=1        and goes on
//   FAKE_SAYS=TEXT             prints it
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const auto environment = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : ""); };
    std::filesystem::path out;
    std::vector<std::string> settings;
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
        if (words[i] == "--out") {
            out = words[i + 1];
        } else if (words[i] == "--set") {
            settings.push_back(words[i + 1]);
        }
    }
    const auto has = [&](const std::string& setting) { return std::ranges::find(settings, setting) != settings.end(); };
    if (out.empty() || words[0] != "train") {
        return 2;
    }
    if (!environment("FAKE_IGNORES_TERM").empty()) {
        std::signal(SIGTERM, SIG_IGN);
    }
    if (const std::string file = environment("FAKE_LEAVES_CHILD"); !file.empty()) {
        if (fork() == 0) {
            setsid();
            if (fork() == 0) {
                std::ofstream(file) << getpid() << std::endl;
                std::this_thread::sleep_for(std::chrono::minutes(5));
            }
            _exit(0);
        }
        while (std::filesystem::exists(file) == false || std::filesystem::file_size(file) == 0) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }
    const std::string failing = environment("FAKE_FAILS_WITH");
    if (!failing.empty() && has(failing)) {
        std::cerr << "a line before\n[error] planted failure\n";
        return 1;
    }
    std::filesystem::create_directories(out / "checkpoints");
    std::ofstream(out / "weights.safetensors") << "tensors";
    const double factor = (has("precision=\"bf16\"") ? 0.6 : 1) * (has("accumulate=2") ? 1.25 : 1);
    // Launches differ a little, by a hash of where they write.
    const double noise = 1 + 0.01 * (static_cast<double>(std::hash<std::string>{}(out.string()) % 1000) / 1000 - 0.5);
    std::ofstream metrics(out / "metrics.jsonl");
    for (int step = 1; step <= 20; ++step) {
        const double seconds = 0.8 * factor * noise * (step < 3 ? 3 : 1) * (1 + 0.001 * (step * 7 % 5));
        metrics << "{\"kind\": \"step\", \"epoch\": 1, \"step\": " << step << ", \"loss\": " << 10.0 / step
                << ", \"images\": 8, \"step_seconds\": " << seconds << ", \"data_wait_seconds\": " << 0.1 * seconds
                << ", \"exposed_communication_seconds\": 0}" << std::endl;
    }
    metrics << "{\"kind\": \"epoch\", \"epoch\": 1, \"step\": 20, \"evaluation_seconds\": 2.5}" << std::endl;
    if (const std::string wait = environment("FAKE_MILLISECONDS"); !wait.empty()) {
        for (int waited = 0; waited < std::stoi(wait); waited += 5) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }
    std::cerr << "[warning] a planted warning\n";
    if (const std::string text = environment("FAKE_SAYS"); !text.empty()) {
        std::cerr << text << '\n';
    }
    std::ofstream(out / "summary.json") << "{\"model\": \"yolov10n\", \"metrics\": {\"AP50\": 0.5, \"APl\": -1}}";
    return 0;
}
