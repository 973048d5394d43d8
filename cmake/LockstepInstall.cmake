# cmake --install: base and comm for another CMake project, which says find_package(lockstep) and links lockstep::comm; with a
# LibTorch of its own also lockstep::comm_torch, models and optimizers (docs/library.md).

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(_config ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)

set_target_properties(lockstep_hdf5 PROPERTIES EXPORT_NAME hdf5)
install(TARGETS lockstep_hdf5 lockstep_base lockstep_comm EXPORT lockstep)
install(EXPORT lockstep NAMESPACE lockstep:: FILE lockstepTargets.cmake DESTINATION ${_config})
if(LOCKSTEP_TORCH)
  install(TARGETS lockstep_recipe lockstep_comm_torch lockstep_models lockstep_optimizers EXPORT lockstep_torch)
  install(EXPORT lockstep_torch NAMESPACE lockstep:: FILE lockstepTorchTargets.cmake DESTINATION ${_config})
  install(FILES cmake/FindLockstepTorch.cmake DESTINATION ${_config})
endif()
install(DIRECTORY base comm DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep FILES_MATCHING PATTERN "*.h")
install(DIRECTORY trainer/models trainer/optimizers DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep/trainer FILES_MATCHING PATTERN "*.h")
install(FILES trainer/recipe.h trainer/schedule.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep/trainer)

configure_package_config_file(cmake/lockstepConfig.cmake.in ${CMAKE_BINARY_DIR}/lockstepConfig.cmake
                              INSTALL_DESTINATION ${_config})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/lockstepConfig.cmake ${CMAKE_BINARY_DIR}/lockstepConfigVersion.cmake DESTINATION ${_config})
