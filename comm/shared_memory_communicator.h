#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "comm/segment_exchange.h"

namespace lockstep::comm {

/// How a waiting rank spends its time: first it spins, then it lets others run, then it sleeps until it is woken.
/// Spinning answers soonest; where ranks (or their compute threads) are more than the cores, it takes the core from
/// those it waits for.
struct Patience {
    std::int32_t spins = 2000;
    std::int32_t yields = 100;

    /// For more ranks than cores.
    static Patience for_crowded_cores() { return {.spins = 0, .yields = 1000}; }
    /// For a thread whose rank computes in another one meanwhile.
    static Patience beside_compute() { return {.spins = 0, .yields = 10}; }
};

/// The ranks of one node over shared memory.
///
/// Reductions of more than some KiB in memory of allocate() (the same part of it on every rank) copy nothing in or out:
/// each rank reduces its slice straight from the others' buffers. Smaller ones, and other memory, are staged through
/// the segment, chunk by chunk. Memory of allocate() is given back when the communicator has gone, too. Every reduction
/// adds in rank order, rounds 16-bit types once, and is done element by element by one rank or by all in the same way,
/// so that results are bitwise the same everywhere.
///
/// Ranks may be processes or threads of one process, each with a communicator of its own. Besides its deadline, an
/// operation ends with base::Error as soon as a peer has given up (with that peer's words), calls something else, or
/// its process is gone.
///
/// `identity.members` are the ranks of the exchange, at most 1024. Collective.
std::unique_ptr<Communicator> make_shared_memory_communicator(CommunicatorIdentity identity,
                                                              std::unique_ptr<SegmentExchange> exchange,
                                                              Patience patience);

}  // namespace lockstep::comm
