# The one place for what Lockstep is built from. Debian 12 and Ubuntu 24.04 carry all of these packages under these names; the
# distribution fixes their versions. Wheels are installed without their dependencies, so the lists are complete.
# shellcheck shell=bash disable=SC2034

packages=(
    # tools
    g++ cmake ninja-build ccache pkg-config clang-format-14 clang-tidy-16 python3-venv ca-certificates unzip patchelf binutils
    # memory of the program's heap
    libgoogle-perftools-dev
    # launch, and between nodes
    libopenmpi-dev openmpi-bin
    # data
    libhdf5-dev libopencv-dev libjpeg-dev zlib1g-dev libpugixml-dev libsimdjson-dev libyaml-cpp-dev libhiredis-dev
    # figures for Prometheus
    prometheus-cpp-dev
    # configuration, command line, text
    libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libspdlog-dev libfmt-dev
    # tests
    libgtest-dev libbenchmark-dev dataset-fashion-mnist iproute2 redis-tools
)

# To fuzz (tests/sharding/fuzz/fuzz.sh); nothing else needs them.
# shellcheck disable=SC2034
fuzz_packages=(clang-16 libclang-rt-16-dev)

pip_version=26.3

# LibTorch, and the two CUDA libraries that libtorch_cpu.so asks the loader for even where there is no GPU.
torch_wheels=(torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)

# --cuda and test: the headers that the runtime's include, and NCCL, for liblockstep_cuda.so.
cuda_wheels=(nvidia-cuda-crt==13.0.88 nvidia-nccl-cu13==2.28.9)

# What the tests compare with.
test_wheels=(numpy==2.4.6 h5py==3.16.0 pillow==13.0.0 pycocotools==2.0.11 faster-coco-eval==1.8.0
             tensorboard==2.21.0 protobuf==7.36.2 absl-py==2.5.1)

# Aerial photos with 951 hand-drawn boxes (MIT); a data set here, not a program.
trees_wheel=deepforest==2.1.0
trees_sha256=8c2798d8e9be7f0004b194fe207b76c1d9fff6e711b3db67b9508dcd5d00ae54
