#pragma once

#include <memory>
#include <string_view>

namespace lockstep::base {

/// Lines to stderr, each with time, level and, under a launcher, rank and host; results never go here (they go to
/// stdout). Thread-safe.
void log_info(std::string_view message);
void log_warning(std::string_view message);
void log_error(std::string_view message);

/// Progress for a person: on a terminal one line that is rewritten, elsewhere plain lines at most every ten seconds.
class Progress {
  public:
    /// `total` of zero means unknown; `begin` items were done by an earlier process and don't count for the rate.
    /// Prints nothing until the first update.
    Progress(std::string_view what, std::string_view unit, unsigned long long total, unsigned long long begin = 0);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    /// Items done so far, `begin` among them (not an increment); thread-safe. `detail` is appended to the line.
    void update(unsigned long long done, std::string_view detail = {});
    /// Prints the final line with rate and duration.
    void finish();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace lockstep::base
