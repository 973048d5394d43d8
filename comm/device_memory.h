#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>

namespace lockstep::comm {

/// The memory of a device, as far as communicators touch it themselves: they copy, and the host never reads or writes
/// it. By one thread at a time.
class DeviceMemory {
  public:
    virtual ~DeviceMemory() = default;

    /// Zeroed memory of the device. It may outlive this object.
    virtual std::shared_ptr<std::byte> allocate(std::size_t bytes) = 0;

    /// Page-locks host memory, so that the device copies it by itself, until the result goes.
    virtual std::shared_ptr<void> pin(std::span<std::byte> host_memory) = 0;

    /// From and to memory of the host or of the device, behind everything that the caller has queued on the device;
    /// returns when it is copied. Throws base::Error when it failed or is not done by the deadline.
    virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes,
                      std::chrono::steady_clock::time_point deadline) = 0;
};

}  // namespace lockstep::comm
