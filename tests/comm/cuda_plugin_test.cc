// The plugin's file, and what is pure around it. Nothing here needs a device or a driver.
#include "comm/cuda_plugin.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace lockstep::comm {
namespace {

std::string error_of_opening(const std::string& file) {
    try {
        open_cuda_plugin(file);
    } catch (const base::Error& error) {
        return error.what();
    }
    return "no error";
}

TEST(CudaPlugin, OpensWithoutADeviceAndSaysWhatItIs) {
    const auto plugin = open_cuda_plugin(PLUGIN);
    EXPECT_EQ(plugin->versions().rfind("NCCL 2.28.9, CUDA 13.0", 0), 0U) << plugin->versions();
    try {
        EXPECT_GT(plugin->devices(), 0);
    } catch (const base::Error& error) {
        const std::string text = error.what();
        EXPECT_EQ(text.rfind("cudaGetDeviceCount failed: cudaError", 0), 0U) << text;
        EXPECT_NE(text.find("driver 580 or newer"), std::string::npos) << text;
    }
}

TEST(CudaPlugin, IsNotAnyFile) {
    EXPECT_NE(error_of_opening("/nowhere/x.so").find("./run build --cuda makes it"), std::string::npos);
    EXPECT_NE(error_of_opening("/proc/self/status").find("can't be opened"), std::string::npos);
    const std::string other = error_of_opening("/lib/x86_64-linux-gnu/libm.so.6");
    EXPECT_NE(other.find("is no CUDA plugin of Lockstep's"), std::string::npos) << other;
}

TEST(CudaPlugin, OfAnotherVersionMakesNothing) {
    void* const library = dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    auto* const entry = reinterpret_cast<CudaPluginEntry*>(dlsym(library, "lockstep_cuda_plugin"));
    ASSERT_NE(entry, nullptr) << dlerror();
    std::shared_ptr<const CudaPlugin> plugin;
    const std::string version = entry("0.0.0-other", plugin);
    EXPECT_EQ(plugin, nullptr);
    entry(version.c_str(), plugin);
    EXPECT_NE(plugin, nullptr) << "of version " << version;
}

TEST(CudaPlugin, IsLookedForBesideTheProgram) {
    EXPECT_EQ(cuda_plugin_file(),
              std::filesystem::read_symlink("/proc/self/exe").parent_path() / "liblockstep_cuda.so");
}

TEST(SharedDevices, AreFoundByPlaceAndByUuid) {
    const Topology machines({0, 0, 0, 1, 1}, {"a", "a", "a", "b", "b"});
    const DeviceIdentity first{"u1", "0000:10:00.0"}, second{"u2", "0000:11:00.0"};
    const DeviceIdentity elsewhere{"u3", "0000:10:00.0"}, elsewhere2{"u4", "0000:11:00.0"};
    const auto lines_of = [&](const std::vector<DeviceIdentity>& identities) {
        return base::join(shared_devices(identities, machines), "; ");
    };
    const DeviceIdentity third{"u5", "0000:12:00.0"};
    EXPECT_EQ(lines_of({first, second, third, elsewhere, elsewhere2}), "") << "the same place on another machine";
    EXPECT_EQ(lines_of({first, second, first, elsewhere, elsewhere2}), "ranks 0, 2 on a use device 0000:10:00.0");
    // Parts of one device (MIG) have names of their own, and NCCL goes by the place.
    EXPECT_EQ(lines_of({first, {"u9", "0000:10:00.0"}, third, elsewhere, elsewhere}),
              "ranks 0, 1 on a use device 0000:10:00.0; ranks 3, 4 on b use device 0000:10:00.0");
    // A machine that looks like two, as from inside containers.
    EXPECT_EQ(lines_of({first, second, third, {"u1", "0000:10:00.0"}, elsewhere2}),
              "ranks 0, 3 on a use device 0000:10:00.0");
}

TEST(NcclSettings, AreThoseOfTheEnvironmentSorted) {
    setenv("NCCL_DEBUG", "INFO", 1);
    setenv("NCCL_ALGO", "Ring", 1);
    setenv("NOT_NCCL_X", "1", 1);
    EXPECT_EQ(nccl_settings(), (std::vector<std::string>{"NCCL_ALGO=Ring", "NCCL_DEBUG=INFO"}));
}

}  // namespace
}  // namespace lockstep::comm
