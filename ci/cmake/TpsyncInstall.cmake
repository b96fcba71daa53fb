# The package that find_package(tpsync) finds. The folders have installed their own libraries and
# headers; the harness is not installed.
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tpsync)
install(EXPORT tpsync NAMESPACE tpsync:: FILE tpsyncTargets.cmake DESTINATION ${package_folder})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tpsyncConfig.cmake.in
  ${PROJECT_BINARY_DIR}/tpsyncConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tpsyncConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tpsyncConfig.cmake
  ${PROJECT_BINARY_DIR}/tpsyncConfigVersion.cmake DESTINATION ${package_folder})
