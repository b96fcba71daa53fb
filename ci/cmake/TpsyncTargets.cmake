# How a folder becomes a target. Sources, tests and direct dependencies are listed in the folder; a
# source in the folder that no list names is a configure error.

# In the build tree, core/ is seen as include/tpsync/, as after an installation.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include)
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/core ${PROJECT_BINARY_DIR}/include/tpsync SYMBOLIC)

function(_tpsync_check_listed)
  file(GLOB present RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS
       ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  foreach(source IN LISTS present)
    if(NOT source IN_LIST ARGN)
      message(FATAL_ERROR "${CMAKE_CURRENT_SOURCE_DIR}/${source} belongs to no target: "
        "list it in the folder's CMakeLists.txt")
    endif()
  endforeach()
endfunction()

# tpsync_folder(NAME <name> [SOURCES ...] [TESTS ...] [OTHERS ...] [DEPENDS ...]
#               [PRIVATE_DEPENDS ...] [TEST_DEPENDS ...] [TEST_LOCK <name>] [CORE])
# makes the library tpsync_<name> and, from TESTS, the program tpsync_<name>_test, of whose cases
# one at a time runs among tests with the same TEST_LOCK. OTHERS are sources of further targets.
function(tpsync_folder)
  cmake_parse_arguments(F "CORE" "NAME;TEST_LOCK"
    "SOURCES;TESTS;OTHERS;DEPENDS;PRIVATE_DEPENDS;TEST_DEPENDS" ${ARGN})
  _tpsync_check_listed(${F_SOURCES} ${F_TESTS} ${F_OTHERS})
  set(target tpsync_${F_NAME})
  if(F_SOURCES)
    add_library(${target} STATIC ${F_SOURCES})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(tpsync::${F_NAME} ALIAS ${target})
  target_compile_features(${target} ${scope} cxx_std_20)
  if(F_CORE)
    target_include_directories(${target} ${scope}
      $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${F_NAME})
    install(TARGETS ${target} EXPORT tpsync ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.h)
    list(FILTER headers EXCLUDE REGEX "_test[^/]*$")
    install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tpsync/${F_NAME})
  else()
    target_include_directories(${target} ${scope}
      ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include)
  endif()
  target_link_libraries(${target} ${scope} ${F_DEPENDS})
  if(F_PRIVATE_DEPENDS)
    target_link_libraries(${target} PRIVATE ${F_PRIVATE_DEPENDS})
  endif()
  if(TPSYNC_SANITIZE STREQUAL "thread" AND F_SOURCES AND NOT F_NAME STREQUAL "sim")
    target_compile_options(${target} PRIVATE -fsanitize=thread)
  endif()
  if(TPSYNC_TESTS AND F_TESTS)
    tpsync_test(${target}_test SOURCES ${F_TESTS} DEPENDS ${target} ${F_TEST_DEPENDS}
      LOCK ${F_TEST_LOCK})
    if(TPSYNC_SANITIZE STREQUAL "thread" AND F_CORE)
      # Tests of core share memory between real threads, by means that the sanitizer must see.
      target_compile_options(${target}_test PRIVATE -fsanitize=thread)
    endif()
  endif()
endfunction()

# Sets `variable` to how long a test may take that takes at most `seconds` without a sanitizer.
function(tpsync_timeout variable seconds)
  if(TPSYNC_SANITIZE)
    math(EXPR seconds "${seconds} * 10")
  endif()
  set(${variable} ${seconds} PARENT_SCOPE)
endfunction()

# A GoogleTest program; every case becomes one ctest test, with the label LABEL.
function(tpsync_test target)
  cmake_parse_arguments(T "" "LOCK;LABEL" "SOURCES;DEPENDS" ${ARGN})
  set(lock "")
  if(T_LOCK)
    set(lock RESOURCE_LOCK ${T_LOCK})
  endif()
  if(T_LABEL)
    list(APPEND lock LABELS ${T_LABEL})
  endif()
  find_package(GTest REQUIRED)
  add_executable(${target} ${T_SOURCES})
  target_include_directories(${target} PRIVATE
    ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include)
  # Test code is compiled once and run briefly: optimizing it costs more than it saves.
  target_compile_options(${target} PRIVATE -O1)
  target_compile_definitions(${target} PRIVATE TPSYNC_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE ${T_DEPENDS} GTest::gtest GTest::gmock GTest::gtest_main)
  set_target_properties(${target} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin/tests
    UNITY_BUILD OFF)  # test files have helpers of the same names
  include(GoogleTest)
  tpsync_timeout(timeout 120)
  # Parameters have names; as values they would be addresses, and differ from build to build.
  gtest_discover_tests(${target} NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${timeout} ${lock})
endfunction()

# RapidCheck has no CMake package in Debian.
function(tpsync_find_rapidcheck)
  if(TARGET tpsync_rapidcheck)
    return()
  endif()
  find_path(RAPIDCHECK_INCLUDE_DIR rapidcheck.h REQUIRED)
  find_library(RAPIDCHECK_LIBRARY rapidcheck REQUIRED)
  add_library(tpsync_rapidcheck INTERFACE IMPORTED GLOBAL)
  target_include_directories(tpsync_rapidcheck SYSTEM INTERFACE ${RAPIDCHECK_INCLUDE_DIR})
  target_link_libraries(tpsync_rapidcheck INTERFACE ${RAPIDCHECK_LIBRARY})
endfunction()
