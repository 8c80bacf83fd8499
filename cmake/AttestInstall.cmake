# cmake --install: the program, and the attention library (layers base to attention) for find_package(attest).
include(CMakePackageConfigHelpers)
if(TARGET attest)
  install(TARGETS attest RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
foreach(layer ${ATTEST_ATTENTION_LAYERS})
  get_target_property(kind attest_${layer} TYPE)
  set_target_properties(attest_${layer} PROPERTIES EXPORT_NAME ${layer})
  install(TARGETS attest_${layer} EXPORT attestTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/src/${layer}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/attest/${layer}
          FILES_MATCHING PATTERN "*.h")
endforeach()
# The interface of kernels that `attest conform --library` puts on trial.
install(FILES ${CMAKE_SOURCE_DIR}/include/attest/conform_kernel.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/attest)
install(EXPORT attestTargets NAMESPACE attest:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/attest)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/attestConfig.cmake.in ${CMAKE_BINARY_DIR}/attestConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/attest)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/attestConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/attestConfig.cmake ${CMAKE_BINARY_DIR}/attestConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/attest)
