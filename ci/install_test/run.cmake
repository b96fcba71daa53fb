# Installs BUILD to a fresh prefix in WORK, then configures, builds and runs the consumer against
# it:
# cmake -DBUILD=... -DWORK=... -DCOMPILER=... [-DOPTIONS=...] -P run.cmake
file(REMOVE_RECURSE ${WORK})
set(prefix ${WORK}/prefix)
set(steps
  "${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix}"
  "${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK}/build -G Ninja \
-DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${prefix} -DTPSYNC_CONSUMER_OPTIONS=${OPTIONS}"
  "${CMAKE_COMMAND} --build ${WORK}/build"
  "${WORK}/build/consumer")
foreach(step IN LISTS steps)
  separate_arguments(command UNIX_COMMAND "${step}")
  execute_process(COMMAND ${command} RESULT_VARIABLE status OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(NOTICE "${output}")
    message(FATAL_ERROR "failed (${status}): ${step}")
  endif()
endforeach()
message(STATUS "${output}")
file(GLOB_RECURSE foreign RELATIVE ${prefix}/include
  ${prefix}/include/*_test* ${prefix}/include/sim/*)
if(foreign)
  message(FATAL_ERROR "headers that are not the library's were installed: ${foreign}")
endif()
