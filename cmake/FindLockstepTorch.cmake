# Finds LibTorch inside the PyPI wheel of ./run's virtual environment (or LOCKSTEP_TORCH_DIR, a directory with include/ and
# lib/) and offers it as lockstep::torch. The CPU program links libtorch_cpu and libc10 only.

set(LOCKSTEP_TORCH_DIR "" CACHE PATH "A LibTorch of your own: a directory with include/ and lib/")
if(LOCKSTEP_TORCH_DIR)
  message(WARNING "LibTorch from ${LOCKSTEP_TORCH_DIR}: Lockstep is tested with the pinned wheel only")
  set(_torch ${LOCKSTEP_TORCH_DIR})
else()
  file(GLOB _torch ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
endif()
if(NOT _torch OR NOT EXISTS ${_torch}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch not found. ./run build installs it; or give -DLOCKSTEP_TORCH_DIR=DIR (with include/ and lib/)")
endif()

add_library(lockstep_torch INTERFACE)
add_library(lockstep::torch ALIAS lockstep_torch)
target_include_directories(lockstep_torch SYSTEM INTERFACE ${_torch}/include ${_torch}/include/torch/csrc/api/include)
target_compile_definitions(lockstep_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
target_link_libraries(lockstep_torch INTERFACE ${_torch}/lib/libtorch_cpu.so ${_torch}/lib/libc10.so)
target_link_options(lockstep_torch INTERFACE -Wl,--no-as-needed)
