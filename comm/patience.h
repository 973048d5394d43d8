#pragma once

#include <cstdint>

namespace lockstep::comm {

/// How a waiting rank spends its time: first it spins, then it lets others run, then it sleeps. Spinning answers
/// soonest; where ranks (or their compute threads) are more than the cores, it takes the core from those it waits for.
struct Patience {
    std::int32_t spins = 2000;
    std::int32_t yields = 100;

    /// For answers that take a network's time.
    static Patience over_network() { return {.spins = 200, .yields = 1800}; }
    /// For more ranks than cores.
    static Patience for_crowded_cores() { return {.spins = 0, .yields = 1000}; }
    /// For a thread whose rank computes in another one meanwhile. One that yields to a thread that computes gets the
    /// core back when that one's turn is over, milliseconds later; one that sleeps gets it when it wakes.
    static Patience beside_compute() { return {.spins = 0, .yields = 10}; }
};

}  // namespace lockstep::comm
