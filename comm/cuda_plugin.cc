#include "comm/cuda_plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text.h"

namespace lockstep::comm {

std::vector<std::string> shared_devices(std::span<const DeviceIdentity> identities, const Topology& machines) {
    LOCKSTEP_CHECK_EQ(static_cast<std::int32_t>(identities.size()), machines.ranks());
    // The first rank of those with the same device. By place, as NCCL does it, and by UUID, since a machine may look
    // like several from inside containers.
    std::map<std::string, std::int32_t> first_at_place, first_with_uuid;
    std::map<std::int32_t, std::vector<std::string>> users;
    for (std::int32_t rank = 0; rank < machines.ranks(); ++rank) {
        const DeviceIdentity& identity = identities[static_cast<std::size_t>(rank)];
        const std::string place = base::str(machines.node_of(Rank{rank}), " ", identity.bus);
        const std::int32_t by_place = first_at_place.try_emplace(place, rank).first->second;
        const std::int32_t by_uuid = first_with_uuid.try_emplace(identity.uuid, rank).first->second;
        users[std::min(by_place, by_uuid)].push_back(std::to_string(rank));
    }
    std::vector<std::string> lines;
    for (const auto& [first, ranks] : users) {
        if (ranks.size() > 1) {
            lines.push_back(base::str("ranks ", base::join(ranks, ", "), " on ", machines.host_of(Rank{first}),
                                      " use device ", identities[static_cast<std::size_t>(first)].bus));
        }
    }
    return lines;
}

std::vector<std::string> nccl_settings() {
    std::vector<std::string> settings;
    for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
        if (std::string_view(*variable).starts_with("NCCL_")) {
            settings.emplace_back(*variable);
        }
    }
    std::ranges::sort(settings);
    return settings;
}

std::filesystem::path cuda_plugin_file() {
    constexpr std::string_view name = "liblockstep_cuda.so";
    const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    const std::filesystem::path installed = folder.parent_path() / "lib" / name;
    return std::filesystem::exists(folder / name) || !std::filesystem::exists(installed) ? folder / name : installed;
}

std::shared_ptr<const CudaPlugin> open_cuda_plugin(const std::filesystem::path& file) {
    if (!std::filesystem::exists(file)) {
        throw base::Error(base::str("there is no CUDA plugin ", file.string(), ": ./run build --cuda makes it"));
    }
    // Never closed: NCCL and the CUDA runtime have threads, and objects of the plugin may live until the end.
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
        throw base::Error(base::str("the CUDA plugin can't be opened: ", dlerror(),
                                    ". It needs the CUDA 13 runtime and NCCL, which ./run build --cuda installs"));
    }
    auto* const entry = reinterpret_cast<CudaPluginEntry*>(dlsym(library, "lockstep_cuda_plugin"));
    if (entry == nullptr) {
        throw base::Error(base::str(file.string(), " is no CUDA plugin of Lockstep's: ", dlerror()));
    }
    std::shared_ptr<const CudaPlugin> plugin;
    const std::string_view version = entry(LOCKSTEP_VERSION, plugin);
    if (plugin == nullptr) {
        throw base::Error(base::str(file.string(), " is of Lockstep ", version, ", and this program of ",
                                    LOCKSTEP_VERSION, ": build both again"));
    }
    return plugin;
}

}  // namespace lockstep::comm
