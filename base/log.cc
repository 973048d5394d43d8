#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <string>

#include "base/error.h"
#include "base/resources.h"
#include "base/text.h"

namespace lockstep::base {
namespace {

constexpr double plain_line_seconds = 10;
constexpr double terminal_line_seconds = 0.1;
constexpr std::string_view start_of_line = "\r\033[K";  // and clears what stands there: a progress line

bool stderr_is_terminal() {
    return isatty(STDERR_FILENO) == 1;
}

std::string pattern() {
    std::string origin;
    if (under_launcher()) {
        for (const char c : process_name()) {
            origin += c == '%' ? "%%" : std::string(1, c);
        }
        origin = "[" + origin + "] ";
    }
    return str(stderr_is_terminal() ? start_of_line : "", "%Y-%m-%d %H:%M:%S %^%l%$ ", origin, "%v");
}

spdlog::logger& logger() {
    static const std::shared_ptr<spdlog::logger> instance = [] {
        auto created =
            std::make_shared<spdlog::logger>("lockstep", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
        created->set_pattern(pattern());
        created->flush_on(spdlog::level::info);
        return created;
    }();
    return *instance;
}

}  // namespace

void log_info(std::string_view message) {
    logger().log(spdlog::level::info, message);
}
void log_warning(std::string_view message) {
    logger().log(spdlog::level::warn, message);
}
void log_error(std::string_view message) {
    logger().log(spdlog::level::err, message);
}

struct Progress::State {
    State(std::string_view what, std::string_view unit, unsigned long long total, unsigned long long begin)
        : what(what), unit(unit), total(total), begin(begin), done(begin) {}

    const std::string what;
    const std::string unit;
    const unsigned long long total;
    const unsigned long long begin;
    const bool terminal = stderr_is_terminal();
    const double started = monotonic_seconds();

    std::mutex mutex;
    unsigned long long done;
    double next_line = started + (terminal ? 0 : plain_line_seconds);
    bool line_open = false;  // a terminal line that has no end yet

    void show(const std::string& text) {
        if (terminal) {
            const std::string line = str(start_of_line, text);
            std::fwrite(line.data(), 1, line.size(), stderr);
            std::fflush(stderr);
            line_open = true;
        } else {
            log_info(text);
        }
    }

    void end_line() {
        if (line_open) {
            std::fputc('\n', stderr);
            line_open = false;
        }
    }
};

Progress::Progress(std::string_view what, std::string_view unit, unsigned long long total, unsigned long long begin)
    : state_(std::make_unique<State>(what, unit, total, begin)) {}

Progress::~Progress() {
    state_->end_line();
}

void Progress::update(unsigned long long done, std::string_view detail) {
    const std::lock_guard lock(state_->mutex);
    state_->done = done;
    const double now = monotonic_seconds();
    if (now < state_->next_line) {
        return;
    }
    state_->next_line = now + (state_->terminal ? terminal_line_seconds : plain_line_seconds);

    const double rate = static_cast<double>(done - state_->begin) / std::max(now - state_->started, 1e-9);
    std::string text = str(state_->what, ": ", done);
    if (state_->total > 0) {
        text += str(" of ", state_->total);
    }
    text += str(" ", state_->unit, ", ", fixed(rate, 1), "/s");
    if (state_->total >= done && done > state_->begin) {
        text += str(", ", human_duration(static_cast<double>(state_->total - done) / rate), " left");
    }
    if (!detail.empty()) {
        text += str(", ", detail);
    }
    state_->show(text);
}

void Progress::finish() {
    const std::lock_guard lock(state_->mutex);
    const double elapsed = monotonic_seconds() - state_->started;
    const unsigned long long done = state_->done - state_->begin;
    const double rate = static_cast<double>(done) / std::max(elapsed, 1e-9);
    state_->show(
        str(state_->what, ": ", done, " ", state_->unit, " in ", human_duration(elapsed), ", ", fixed(rate, 1), "/s"));
    state_->end_line();
}

}  // namespace lockstep::base
