#include "trainer/stop_request.h"

#include <array>
#include <csignal>

#include "base/error.h"

namespace lockstep::trainer {
namespace {

// A signal handler can reach nothing but what is static.
volatile std::sig_atomic_t arrived_signal = 0;

void remember(int signal) {
    arrived_signal = signal;
}

constexpr std::array stop_signals = {SIGTERM, SIGUSR1};

}  // namespace

struct StopRequest::Handlers {
    std::array<struct sigaction, stop_signals.size()> actions;
};

StopRequest::StopRequest() : earlier_(std::make_unique<Handlers>()) {
    arrived_signal = 0;
    struct sigaction action = {};
    action.sa_handler = remember;
    action.sa_flags = SA_RESTART;
    for (std::size_t i = 0; i < stop_signals.size(); ++i) {
        LOCKSTEP_CHECK_EQ(sigaction(stop_signals[i], &action, &earlier_->actions[i]), 0);
    }
}

StopRequest::~StopRequest() {
    for (std::size_t i = 0; i < stop_signals.size(); ++i) {
        sigaction(stop_signals[i], &earlier_->actions[i], nullptr);
    }
}

int StopRequest::signal() const {
    return arrived_signal;
}

}  // namespace lockstep::trainer
