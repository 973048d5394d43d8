#pragma once

#include <sched.h>

#include <chrono>
#include <thread>

#include "comm/patience.h"

namespace lockstep::comm {

/// Waiting that is quick when the answer is near and polite when it is not, also with more ranks than cores.
class Backoff {
  public:
    explicit Backoff(Patience patience = Patience::over_network()) : patience_(patience) {}

    void pause() {
        ++pauses_;
        if (pauses_ < patience_.spins) {
            return;
        }
        if (pauses_ < patience_.spins + patience_.yields) {
            sched_yield();
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    }

  private:
    Patience patience_;
    int pauses_ = 0;
};

}  // namespace lockstep::comm
