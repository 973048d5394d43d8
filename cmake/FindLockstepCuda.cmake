# The CUDA runtime and NCCL inside the wheels of .venv, as the imported targets lockstep::cuda_runtime and lockstep::nccl, and
# lockstep::cuda_headers, which links nothing. The wheels have no unversioned libNAME.so, which CMake's own modules look for. A
# CUDA toolkit on the machine is not looked at. Where wheels are missing, LockstepCuda_FOUND is false.

file(GLOB _nvidia ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia)
set(_missing)
foreach(_file cu13/include/cuda_runtime_api.h cu13/include/crt/host_defines.h cu13/lib/libcudart.so.13 nccl/include/nccl.h
        nccl/lib/libnccl.so.2)
  if(NOT EXISTS "${_nvidia}/${_file}")
    list(APPEND _missing ${_file})
  endif()
endforeach()
if(_missing)
  set(LockstepCuda_FOUND FALSE)
  if(LockstepCuda_FIND_REQUIRED)
    list(JOIN _missing ", " _missing)
    message(FATAL_ERROR "LOCKSTEP_CUDA is on and these are not in .venv: ${_missing}. ./run build --cuda installs them.")
  endif()
  return()
endif()

add_library(lockstep::cuda_headers INTERFACE IMPORTED GLOBAL)
target_include_directories(lockstep::cuda_headers INTERFACE ${_nvidia}/cu13/include ${_nvidia}/nccl/include)
foreach(_part "cuda_runtime;cu13/lib;libcudart.so.13" "nccl;nccl/lib;libnccl.so.2")
  list(POP_FRONT _part _name _folder _library)
  add_library(lockstep::${_name} SHARED IMPORTED GLOBAL)
  set_target_properties(lockstep::${_name} PROPERTIES
    IMPORTED_LOCATION ${_nvidia}/${_folder}/${_library} IMPORTED_SONAME ${_library})
  target_link_libraries(lockstep::${_name} INTERFACE lockstep::cuda_headers)
endforeach()
set(LockstepCuda_FOUND TRUE)
