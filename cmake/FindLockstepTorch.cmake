# LibTorch, as the imported target lockstep::torch.
#
# It comes from the wheel in .venv that ./run installs, or from LOCKSTEP_TORCH_DIR, a directory with include/ and lib/. The
# targets link libtorch_cpu and libc10 only: what needs CUDA is a plugin.
#
# OpenCV brings a reference BLAS whose sgemm_ would replace LibTorch's own if it came first in the loader's order. So the
# libraries stand in front of the objects on every link line, however far down LibTorch is among a program's dependencies.

if(TARGET lockstep::torch)
  return()
endif()

set(LOCKSTEP_TORCH_DIR "" CACHE PATH "A LibTorch of your own: a directory with include/ and lib/")
if(LOCKSTEP_TORCH_DIR)
  set(_torch ${LOCKSTEP_TORCH_DIR})
  set(_remedy "LOCKSTEP_TORCH_DIR=${LOCKSTEP_TORCH_DIR} should be a directory with include/ and lib/")
else()
  file(GLOB _torch ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  set(_remedy "./run build installs it; or give -DLOCKSTEP_TORCH_DIR=DIR, a directory with include/ and lib/")
endif()
foreach(_file lib/libtorch_cpu.so lib/libc10.so include/ATen/core/Tensor.h include/torch/headeronly/version.h)
  if(NOT EXISTS "${_torch}/${_file}")
    message(FATAL_ERROR "LibTorch not found: there is no ${_file}. ${_remedy}.")
  endif()
endforeach()

file(STRINGS ${_torch}/include/torch/headeronly/version.h _parts REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9]+([0-9]+)" "\\1." _version "${_parts}")
string(REGEX REPLACE "\\.$" "" LockstepTorch_VERSION "${_version}")
if(LOCKSTEP_TORCH_DIR)
  message(WARNING "LibTorch ${LockstepTorch_VERSION} from ${LOCKSTEP_TORCH_DIR}: Lockstep is tested only with the wheel that "
                  "versions.sh names")
endif()

# A library built with the old layout of std::string links with ours only by accident.
file(STRINGS ${_torch}/lib/libc10.so _abi REGEX "_ZN3c105ErrorC[12]ENS_14SourceLocationENSt7__cxx11")
if(NOT _abi)
  message(FATAL_ERROR "The LibTorch in ${_torch} has another C++ ABI: it was built with _GLIBCXX_USE_CXX11_ABI=0, and Lockstep "
                      "needs 1. Take the wheel that ./run build installs, or a LibTorch whose name says cxx11-abi.")
endif()

add_library(lockstep::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(lockstep::torch INTERFACE ${_torch}/include ${_torch}/include/torch/csrc/api/include)
target_compile_definitions(lockstep::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
target_link_options(lockstep::torch INTERFACE
  "LINKER:--push-state,--no-as-needed,${_torch}/lib/libtorch_cpu.so,${_torch}/lib/libc10.so,--pop-state")
target_link_libraries(lockstep::torch INTERFACE ${_torch}/lib/libtorch_cpu.so ${_torch}/lib/libc10.so)  # for the rpath

# In the cache, since folders beside this one read them too.
set(LockstepTorch_ROOT_DIR ${_torch} CACHE INTERNAL "")
set(LockstepTorch_VERSION ${LockstepTorch_VERSION} CACHE INTERNAL "")
set(LockstepTorch_FOUND TRUE CACHE INTERNAL "")
