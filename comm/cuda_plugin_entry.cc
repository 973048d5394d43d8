#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <cstdio>

#include "base/text.h"
#include "comm/cuda_memory.h"
#include "comm/cuda_plugin.h"
#include "comm/cuda_stream.h"
#include "comm/nccl_communicator.h"

namespace lockstep::comm {

namespace {

class Plugin final : public CudaPlugin {
  public:
    std::int32_t devices() const override {
        int count = 0;
        check_cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
        return count;
    }

    DeviceIdentity identity_of(std::int32_t device) const override {
        cudaDeviceProp properties{};
        check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
        DeviceIdentity identity;
        for (const char byte : properties.uuid.bytes) {
            std::array<char, 3> digits{};
            std::snprintf(digits.data(), digits.size(), "%02x",
                          static_cast<unsigned>(static_cast<unsigned char>(byte)));
            identity.uuid += digits.data();
        }
        std::array<char, 32> bus{};
        check_cuda(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device), "cudaDeviceGetPCIBusId");
        identity.bus = bus.data();
        return identity;
    }

    std::string versions() const override {
        int nccl = 0;
        const bool has_version = ncclGetVersion(&nccl) == ncclSuccess;
        int runtime = 0;
        check_cuda(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
        return base::str(
            "NCCL ",
            has_version ? base::str(nccl / 10000, ".", nccl / 100 % 100, ".", nccl % 100) : "without a version",
            ", CUDA ", runtime / 1000, ".", runtime / 10 % 100);
    }

    std::shared_ptr<DeviceMemory> memory_of(std::int32_t device) const override { return make_cuda_memory(device); }

    std::unique_ptr<Communicator> make_nccl_communicator(CommunicatorIdentity identity,
                                                         std::unique_ptr<Communicator> meeting,
                                                         std::int32_t device) const override {
        return comm::make_nccl_communicator(std::move(identity), std::move(meeting), device);
    }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* lockstep_cuda_plugin(
    const char* version, std::shared_ptr<const CudaPlugin>& plugin) {
    if (std::string_view(version) == LOCKSTEP_VERSION) {
        plugin = std::make_shared<Plugin>();
    }
    return LOCKSTEP_VERSION;
}

}  // namespace lockstep::comm
