#pragma once

#include <cstddef>
#include <memory>

#include "comm/communicator.h"
#include "comm/device_memory.h"

namespace lockstep::comm {

/// Buffers in a device's memory over a communicator of the host's memory: copied piece by piece into page-locked memory
/// of `inner` (so that its ranks reduce there in place, where they share memory), reduced by it, and copied back.
/// Slower than NCCL, but right where NCCL refuses: ranks that share a device. Results are `inner`'s, bit for bit.
/// allocate() gives memory of the device. Not collective.
std::unique_ptr<Communicator> make_host_staged_communicator(std::unique_ptr<Communicator> inner,
                                                            std::shared_ptr<DeviceMemory> device,
                                                            std::size_t piece_bytes = std::size_t{16} << 20);

}  // namespace lockstep::comm
