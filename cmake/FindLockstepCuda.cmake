# The CUDA runtime and NCCL inside the wheels of .venv, as the imported targets lockstep::cuda_runtime and lockstep::nccl. The
# wheels have no unversioned libNAME.so, which CMake's own modules look for. A CUDA toolkit on the machine is not looked at.

file(GLOB _nvidia ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia)

function(_lockstep_cuda_target NAME HEADERS LIBRARY)
  set(DIRECTORY ${_nvidia}/${ARGV3})
  foreach(FILE ${HEADERS})
    if(NOT EXISTS "${DIRECTORY}/include/${FILE}")
      message(FATAL_ERROR "LOCKSTEP_CUDA is on and ${FILE} is not in .venv. ./run build --cuda installs it.")
    endif()
  endforeach()
  if(NOT EXISTS "${DIRECTORY}/lib/${LIBRARY}")
    message(FATAL_ERROR "LOCKSTEP_CUDA is on and ${LIBRARY} is not in .venv. ./run build --cuda installs it.")
  endif()
  add_library(lockstep::${NAME} SHARED IMPORTED GLOBAL)
  set_target_properties(lockstep::${NAME} PROPERTIES
    IMPORTED_LOCATION ${DIRECTORY}/lib/${LIBRARY} IMPORTED_SONAME ${LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${DIRECTORY}/include)
endfunction()

_lockstep_cuda_target(cuda_runtime "cuda_runtime_api.h;crt/host_defines.h" libcudart.so.13 cu13)
_lockstep_cuda_target(nccl nccl.h libnccl.so.2 nccl)
target_link_libraries(lockstep::nccl INTERFACE lockstep::cuda_runtime)
set(LockstepCuda_FOUND TRUE)
