# Runs each of TESTS (separated by ':') in BINARY and fails unless every one of them goes red: by an assertion of its
# own, or because Attend found an owned row that was not written.
string(REPLACE ":" ";" tests "${TESTS}")
foreach(test ${tests})
  execute_process(COMMAND ${BINARY} --gtest_filter=${test} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE code)
  string(FIND "${output}" "[  FAILED  ] ${test}" failed)
  string(FIND "${output}" "did not write sequence" unwritten)
  if(code EQUAL 0 OR (failed EQUAL -1 AND unwritten EQUAL -1))
    message(FATAL_ERROR "the mutant survives ${test} (exit ${code}):\n${output}")
  endif()
  message(STATUS "red as it must be: ${test}")
endforeach()
