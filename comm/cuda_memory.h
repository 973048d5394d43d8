#pragma once

#include <cstdint>
#include <memory>

#include "comm/device_memory.h"

namespace lockstep::comm {

/// Of a CUDA device, on a stream of its own that waits for the caller's (null: the device's default stream).
std::shared_ptr<DeviceMemory> make_cuda_memory(std::int32_t device, void* callers_stream = nullptr);

}  // namespace lockstep::comm
