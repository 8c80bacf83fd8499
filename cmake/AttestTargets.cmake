# attest_layer(NAME [LINK targets...] [PRIVATE_LINK targets...]): library attest_NAME from src/NAME/**/*.cc.
# attest_tests(NAME [LINK targets...]): one GoogleTest binary attest_NAME_tests from tests/NAME/**/*_test.cc.

set(ATTEST_WARNINGS -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 raises both falsely: on moved std::optional members, and on "literal" + std::string chains (GCC bug 105329).
  list(APPEND ATTEST_WARNINGS -Wno-maybe-uninitialized -Wno-restrict)
else()
  list(APPEND ATTEST_WARNINGS -Wno-deprecated-declarations)  # std::stable_sort of libstdc++ 12 under clang 19
endif()

# Files written for one instruction set end in _<isa>.cc and get its flags; everything else is baseline x86-64 or
# Armv8-A. Files of the other processor family are left out.
# Such files keep their code in unnamed namespaces: an inline function that also exists in a baseline object could
# otherwise be linked from here and run where the instructions are missing.
set(ATTEST_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(ATTEST_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512cd -mfma -mf16c -mbmi2)
set(ATTEST_ISA_FLAGS_avx512vnni ${ATTEST_ISA_FLAGS_avx512} -mavx512vnni)
set(ATTEST_ISA_FLAGS_avx512bf16 ${ATTEST_ISA_FLAGS_avx512vnni} -mavx512bf16)
set(ATTEST_ISA_FLAGS_amx ${ATTEST_ISA_FLAGS_avx512bf16} -mavx512vbmi -mamx-tile -mamx-bf16 -mamx-int8)
set(ATTEST_ISA_FLAGS_neon "")
set(ATTEST_ISA_FLAGS_neonbf16 -march=armv8.2-a+bf16)
set(ATTEST_ISA_FLAGS_neondot -march=armv8.2-a+dotprod)
set(ATTEST_ISA_FLAGS_neoni8mm -march=armv8.2-a+dotprod+i8mm)
set(ATTEST_X86_ISAS avx2 avx512 avx512vnni avx512bf16 amx)
set(ATTEST_ARM_ISAS neon neonbf16 neondot neoni8mm)
set(ATTEST_ISAS "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(ATTEST_ISAS ${ATTEST_X86_ISAS})
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(ATTEST_ISAS ${ATTEST_ARM_ISAS})
endif()
set(ATTEST_FOREIGN_ISAS ${ATTEST_X86_ISAS} ${ATTEST_ARM_ISAS})
list(REMOVE_ITEM ATTEST_FOREIGN_ISAS ${ATTEST_ISAS})
list(JOIN ATTEST_FOREIGN_ISAS "|" ATTEST_FOREIGN_ISAS)

# attest_compile_options(TARGET [OPTIMIZATION]): OPTIMIZATION is that of release builds, -O3 unless given.
function(attest_compile_options target)
  target_compile_options(${target} PRIVATE ${ATTEST_WARNINGS})
  if(CMAKE_BUILD_TYPE STREQUAL "Release" OR CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    list(APPEND ARGN -O3)
    list(GET ARGN 0 optimization)
    target_compile_options(${target} PRIVATE ${optimization})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # a tenth of the time would go into collecting the compiler's garbage
      target_compile_options(${target} PRIVATE "SHELL:--param ggc-min-heapsize=1000000")
    endif()
  endif()
  if(ATTEST_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${ATTEST_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${ATTEST_SANITIZE})
  endif()
  if(ATTEST_COVERAGE)
    target_compile_options(${target} PRIVATE --coverage)
    target_link_options(${target} PRIVATE --coverage)
  endif()
endfunction()

function(attest_isa_flags)
  foreach(source ${ARGN})
    foreach(isa ${ATTEST_ISAS})
      if(source MATCHES "_${isa}\\.cc$")
        set(flags ${ATTEST_ISA_FLAGS_${isa}})
        if(ATTEST_SANITIZE MATCHES "undefined")
          list(APPEND flags -fno-sanitize=undefined)  # minutes per file on fully unrolled code; addresses stay checked
        endif()
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${flags}")
      endif()
    endforeach()
  endforeach()
endfunction()

# attest_unite(TARGET SOURCE...): up to eight files of one folder are compiled as one unit (with ATTEST_UNITE, as release
# builds have it), so that their headers are parsed once; without, the build takes twice as long. Files with the same
# expensive header come together. So the unnamed namespaces of one folder must not define a name twice. Builds of a file
# at a time show that every file includes what it uses.
function(attest_unite target)
  if(NOT ATTEST_UNITE)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  target_compile_options(${target} PRIVATE -Wno-shadow)  # of what another file of the unit defines
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # raised where that is in no header
  endif()
  set(light "")
  foreach(source ${ARGN})
    file(STRINGS ${source} heavy REGEX "^#include .*(json|http_connection|boost/|CLI/)" LIMIT_COUNT 1)
    if(heavy MATCHES "http_connection|boost/")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP boost)
    elseif(heavy MATCHES "json")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP json)
    elseif(NOT heavy)
      list(APPEND light ${source})
    endif()
  endforeach()
  list(LENGTH light files)
  math(EXPR units "(${files} + 7) / 8")
  set(number 0)
  foreach(source ${light})
    math(EXPR unit "${number} * ${units} / ${files}")
    math(EXPR number "${number} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${unit})
  endforeach()
endfunction()

set(ATTEST_ATTENTION_LAYERS base device tensor io kernels attention)  # what is installed
set(ATTEST_COLD_LAYERS conform cli)  # where no time is spent but the compiler's: the kernels they call are elsewhere
set(ATTEST_ATTENTION_ONLY_LAYERS ${ATTEST_ATTENTION_LAYERS} conform)

function(attest_layer name)
  cmake_parse_arguments(ARG "" "" "LINK;PRIVATE_LINK" ${ARGN})
  if(ATTEST_ATTENTION_ONLY AND NOT name IN_LIST ATTEST_ATTENTION_ONLY_LAYERS)
    return()
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(${ATTEST_FOREIGN_ISAS})\\.cc$")
  if(sources)
    add_library(attest_${name} STATIC ${sources})
    attest_isa_flags(${sources})
    if(name IN_LIST ATTEST_COLD_LAYERS)
      attest_compile_options(attest_${name} -O1)
    else()
      attest_compile_options(attest_${name})
    endif()
    # Not the attention library: programs replace single files of it, and link no more of it than they need.
    if(name STREQUAL "io" OR NOT name IN_LIST ATTEST_ATTENTION_LAYERS)
      attest_unite(attest_${name} ${sources})
    endif()
    target_include_directories(attest_${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src>
                                                     $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/attest>)
    target_link_libraries(attest_${name} PUBLIC ${ARG_LINK} Threads::Threads PRIVATE ${ARG_PRIVATE_LINK})
  else()
    add_library(attest_${name} INTERFACE)
    target_link_libraries(attest_${name} INTERFACE ${ARG_LINK})
  endif()
endfunction()

function(attest_tests name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${name}/*_test.cc)
  if(NOT sources OR (ATTEST_ATTENTION_ONLY AND NOT name IN_LIST ATTEST_ATTENTION_ONLY_LAYERS))
    return()
  endif()
  add_executable(attest_${name}_tests ${sources})
  attest_compile_options(attest_${name}_tests -O1)  # what is tested is in the libraries; halves their build
  attest_unite(attest_${name}_tests ${sources})
  target_include_directories(attest_${name}_tests PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(attest_${name}_tests PRIVATE ATTEST_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                                          ATTEST_BUILD_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(attest_${name}_tests PRIVATE ${ARG_LINK} GTest::gmock GTest::gtest_main)
  include(GoogleTest)
  gtest_discover_tests(attest_${name}_tests TEST_PREFIX ${name}. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT 600)
endfunction()
