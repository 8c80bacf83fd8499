# Installs the build into a scratch folder, builds the examples against what was installed, with CMake and with
# pkg-config, and runs them. Nothing of the source tree but the examples is visible to them.
set(prefix ${BUILD_DIR}/install_test)
file(REMOVE_RECURSE ${prefix})
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN} failed (${status}):\n${output}")
  endif()
  message("${output}")
endfunction()
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix}/usr)
run(${prefix}/usr/bin/attest --version)

# Headers that compile alone, as the strictest user compiles them.
file(WRITE ${prefix}/c.c "#include <attest/attention_c.h>\nint main(void) { return (int)attest_attention_abi_version() - 1; }\n")
file(WRITE ${prefix}/cpp.cc "#include <attest/attention.h>\nint main() { return attest::attention::Plan::Create({}, {}).ok() ? 1 : 0; }\n")

run(${CMAKE_COMMAND} -S ${EXAMPLES_DIR} -B ${prefix}/build -G ${GENERATOR} -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_PREFIX_PATH=${prefix}/usr)
run(${CMAKE_COMMAND} --build ${prefix}/build)
foreach(example decode shared_prefix)
  run(${prefix}/build/${example})
endforeach()
if(EXISTS ${prefix}/build/shared_prefix_static)
  run(${prefix}/build/shared_prefix_static)
endif()

find_program(PKG_CONFIG pkg-config REQUIRED)
file(GLOB pkgconfig ${prefix}/usr/lib*/pkgconfig ${prefix}/usr/lib*/*/pkgconfig)
set(ENV{PKG_CONFIG_PATH} ${pkgconfig})
execute_process(COMMAND ${PKG_CONFIG} --cflags --libs attest-attention OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${PKG_CONFIG} --variable=libdir attest-attention OUTPUT_VARIABLE libdir OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND ${flags})
run(${CC} -std=c11 -Wall -Wextra -Werror -pedantic ${EXAMPLES_DIR}/c/decode.c -o ${prefix}/decode ${flags} -Wl,-rpath,${libdir})
run(${prefix}/decode)
run(${CC} -std=c11 -Wall -Wextra -Werror -pedantic ${prefix}/c.c -o ${prefix}/c ${flags} -Wl,-rpath,${libdir})
run(${prefix}/c)
run(${CXX} -std=c++20 -Wall -Wextra -Wshadow -Werror -pedantic ${prefix}/cpp.cc -o ${prefix}/cpp ${flags} -Wl,-rpath,${libdir})
run(${prefix}/cpp)

# The shared library exports the C interface and nothing else.
execute_process(COMMAND nm -D --defined-only ${libdir}/libattest_attention.so OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" symbols "${symbols}")
foreach(symbol ${symbols})
  if(NOT symbol MATCHES " (T attest_[a-z_]+@@ATTEST_1|A ATTEST_1)$")
    message(FATAL_ERROR "libattest_attention.so exports '${symbol}'")
  endif()
endforeach()
