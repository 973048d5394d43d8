// The headers of the CUDA runtime and of NCCL are those that versions.sh names, and a program that uses them links.
// Nothing here needs a GPU or a driver.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

TEST(CudaWheels, RuntimeIsThirteen) {
    int version = 0;
    ASSERT_EQ(cudaRuntimeGetVersion(&version), cudaSuccess);
    EXPECT_EQ(version, CUDART_VERSION);
    EXPECT_EQ(version / 1000, 13);
}

TEST(CudaWheels, NcclIsTheOneThatItsHeaderDescribes) {
    int version = 0;
    ASSERT_EQ(ncclGetVersion(&version), ncclSuccess);
    EXPECT_EQ(version, NCCL_VERSION_CODE);
}
