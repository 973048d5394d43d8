#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/device_memory.h"
#include "comm/topology.h"

namespace lockstep::comm {

/// What tells CUDA devices apart.
struct DeviceIdentity {
    std::string uuid;  ///< everywhere
    std::string bus;   ///< PCI domain, bus and device, on its machine: what NCCL goes by
};

/// One line for each device that several ranks use, such as "ranks 0, 1 on node3 use device 0000:17:00.0"; none where
/// each has its own. `identities` by rank.
std::vector<std::string> shared_devices(std::span<const DeviceIdentity> identities, const Topology& machines);

/// "NCCL_DEBUG=INFO": all such settings in the environment, sorted. Once NCCL has started, those of its configuration
/// files are among them.
std::vector<std::string> nccl_settings();

/// Everything of comm that needs CUDA or NCCL: liblockstep_cuda.so, which is opened where CUDA is asked for and nowhere
/// else. Devices are counted from 0.
class CudaPlugin {
  public:
    virtual ~CudaPlugin() = default;

    /// At least one. Throws base::Error where there is none, or its driver is too old.
    virtual std::int32_t devices() const = 0;
    virtual DeviceIdentity identity_of(std::int32_t device) const = 0;
    /// "NCCL 2.28.9, CUDA 13.0".
    virtual std::string versions() const = 0;
    virtual std::shared_ptr<DeviceMemory> memory_of(std::int32_t device) const = 0;
    /// See nccl_communicator.h. Collective.
    virtual std::unique_ptr<Communicator> make_nccl_communicator(CommunicatorIdentity identity,
                                                                 std::unique_ptr<Communicator> meeting,
                                                                 std::int32_t device) const = 0;
};

/// liblockstep_cuda.so beside this program, or in ../lib from there.
std::filesystem::path cuda_plugin_file();

/// Opens it and keeps it open until the process ends. Throws base::Error where it isn't there, can't be opened, or
/// comes from another build.
std::shared_ptr<const CudaPlugin> open_cuda_plugin(const std::filesystem::path& file);

/// The plugin's one entry point. Sets `plugin` where `version` is its own; returns its version.
extern "C" const char* lockstep_cuda_plugin(const char* version, std::shared_ptr<const CudaPlugin>& plugin);
using CudaPluginEntry = decltype(lockstep_cuda_plugin);

}  // namespace lockstep::comm
