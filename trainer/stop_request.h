#pragma once

#include <memory>

namespace lockstep::trainer {

/// While it lives, SIGTERM and SIGUSR1 no longer end the process but are remembered: the training loop finishes its
/// step, agrees with the other ranks, saves and exits 75. One at a time; the earlier handlers come back with its end.
class StopRequest {
  public:
    StopRequest();
    ~StopRequest();
    StopRequest(const StopRequest&) = delete;
    StopRequest& operator=(const StopRequest&) = delete;

    /// The signal that arrived, or 0.
    int signal() const;

  private:
    struct Handlers;
    std::unique_ptr<Handlers> earlier_;
};

}  // namespace lockstep::trainer
