# Dependencies of a cross build, without packages of the other architecture: fmt, spdlog, nlohmann-json and CLI11 as
# headers of this machine (they are the same for every processor), GoogleTest from the sources in Debian's package
# googletest.
#
# Only these folders of /usr/include are shown to the compiler: the whole of it would hide the headers of the other
# architecture.
set(ATTEST_HOST_HEADERS ${CMAKE_BINARY_DIR}/host_headers)
file(MAKE_DIRECTORY ${ATTEST_HOST_HEADERS})
function(attest_header_only target header)
  get_filename_component(folder ${header} DIRECTORY)
  find_path(ATTEST_${folder}_INCLUDE NAMES ${header} PATHS /usr/include NO_CMAKE_FIND_ROOT_PATH NO_DEFAULT_PATH REQUIRED)
  file(CREATE_LINK ${ATTEST_${folder}_INCLUDE}/${folder} ${ATTEST_HOST_HEADERS}/${folder} SYMBOLIC)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${ATTEST_HOST_HEADERS})
endfunction()
attest_header_only(fmt::fmt fmt/core.h)
attest_header_only(spdlog::spdlog spdlog/spdlog.h)
attest_header_only(nlohmann_json::nlohmann_json nlohmann/json.hpp)
attest_header_only(CLI11::CLI11 CLI/CLI.hpp)
set_property(TARGET fmt::fmt PROPERTY INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1)
set_property(TARGET spdlog::spdlog PROPERTY INTERFACE_COMPILE_DEFINITIONS SPDLOG_HEADER_ONLY SPDLOG_FMT_EXTERNAL)

if(ATTEST_BUILD_TESTS)
  set(INSTALL_GTEST OFF)
  add_subdirectory(/usr/src/googletest ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
endif()
