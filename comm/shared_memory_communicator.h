#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "comm/patience.h"
#include "comm/segment_exchange.h"

namespace lockstep::comm {

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
