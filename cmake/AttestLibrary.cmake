# libattest_attention, shared and static: the attention library as other projects link it. It holds the layers base,
# device, tensor, kernels and attention, and the C interface (include/attest/attention_c.h), whose functions are the
# only symbols the shared library exports. The C++ interface (include/attest/attention.h) is header only over it.
set(ATTEST_ATTENTION_ABI_VERSION 1)  # as in attention_c.h; bindings.VersionsAgree compares them

add_library(attest_attention_shared SHARED $<TARGET_OBJECTS:attest_bindings>)
set(symbols ${CMAKE_CURRENT_LIST_DIR}/attest_attention.map)
set_target_properties(attest_attention_shared PROPERTIES
  OUTPUT_NAME attest_attention VERSION ${PROJECT_VERSION} SOVERSION ${ATTEST_ATTENTION_ABI_VERSION} EXPORT_NAME attention
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib LINK_DEPENDS ${symbols} LINKER_LANGUAGE CXX)
# From the layers' archives the linker takes only what attention reaches: no log, no file formats.
target_link_libraries(attest_attention_shared PRIVATE attest_attention)
target_link_options(attest_attention_shared PRIVATE -Wl,--version-script=${symbols} -Wl,--as-needed)
if(NOT ATTEST_SANITIZE)  # the sanitizers' own symbols come with the program
  target_link_options(attest_attention_shared PRIVATE -Wl,--no-undefined)
endif()
attest_compile_options(attest_attention_shared)

# One archive of the same code; what only the server needs is left out.
set(objects $<TARGET_OBJECTS:attest_bindings>)
foreach(layer base device tensor kernels attention)
  list(APPEND objects $<FILTER:$<TARGET_OBJECTS:attest_${layer}>,EXCLUDE,log\\.cc|case_file\\.cc>)
endforeach()
add_library(attest_attention_static STATIC ${objects})
set_target_properties(attest_attention_static PROPERTIES
  OUTPUT_NAME attest_attention EXPORT_NAME attention_static ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib
  LINKER_LANGUAGE CXX)
target_link_libraries(attest_attention_static INTERFACE fmt::fmt Threads::Threads)

foreach(library shared static)
  target_include_directories(attest_attention_${library} INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
                                                                   $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
