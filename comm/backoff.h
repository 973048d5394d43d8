#pragma once

#include <sched.h>

#include <chrono>
#include <thread>

namespace lockstep::comm {

/// Waiting that is quick when the answer is near and polite when it is not, also with more ranks than cores.
class Backoff {
  public:
    void pause() {
        ++pauses_;
        if (pauses_ < spins) {
            return;
        }
        if (pauses_ < yields) {
            sched_yield();
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    }

  private:
    static constexpr int spins = 200;
    static constexpr int yields = 2000;
    int pauses_ = 0;
};

}  // namespace lockstep::comm
