# cmake --install: the program, and the attention library with its two headers, for find_package(attest) and pkg-config.
include(CMakePackageConfigHelpers)
if(TARGET attest)
  install(TARGETS attest RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
# The interface of kernels that `attest conform --library` puts on trial.
install(FILES ${CMAKE_SOURCE_DIR}/include/attest/conform_kernel.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/attest)
if(NOT TARGET attest_attention_shared)
  return()
endif()

install(FILES ${CMAKE_SOURCE_DIR}/include/attest/attention.h ${CMAKE_SOURCE_DIR}/include/attest/attention_c.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/attest)
install(TARGETS attest_attention_shared attest_attention_static EXPORT attestTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT attestTargets NAMESPACE attest:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/attest)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/attestConfig.cmake.in ${CMAKE_BINARY_DIR}/attestConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/attest)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/attestConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/attestConfig.cmake ${CMAKE_BINARY_DIR}/attestConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/attest)
# The prefix is known when it is installed, not before (cmake --install --prefix).
install(CODE "set(CMAKE_INSTALL_FULL_LIBDIR \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}\")
set(CMAKE_INSTALL_FULL_INCLUDEDIR \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\")
set(PROJECT_VERSION ${PROJECT_VERSION})
configure_file(\"${CMAKE_SOURCE_DIR}/cmake/attest-attention.pc.in\" \"${CMAKE_BINARY_DIR}/attest-attention.pc\" @ONLY)
file(INSTALL \"${CMAKE_BINARY_DIR}/attest-attention.pc\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig\")")
