# Compiler flags, ccache, sanitizers, and the optional parts: AUTO takes what the machine has, ON
# insists on it (AUTO and OFF are equal until a part exists).
if(TPSYNC_CCACHE)
  find_program(TPSYNC_CCACHE_PROGRAM ccache)
  if(TPSYNC_CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${TPSYNC_CCACHE_PROGRAM})
    set(CMAKE_C_COMPILER_LAUNCHER ${TPSYNC_CCACHE_PROGRAM})
  endif()
endif()

# Parts that this version has code for. A part that is asked for and isn't there must not be
# silently left out.
set(TPSYNC_AVAILABLE_PARTS GLOO NCCL)
foreach(part CUDA NCCL GLOO TORCH)
  set(TPSYNC_${part} AUTO CACHE STRING "AUTO, ON or OFF")
  set_property(CACHE TPSYNC_${part} PROPERTY STRINGS AUTO ON OFF)
  if(NOT TPSYNC_${part} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TPSYNC_${part} is '${TPSYNC_${part}}': set it to AUTO, ON or OFF")
  endif()
  if(TPSYNC_${part} STREQUAL "ON" AND NOT part IN_LIST TPSYNC_AVAILABLE_PARTS)
    message(FATAL_ERROR "TPSYNC_${part} is ON, and tpsync ${PROJECT_VERSION} has no ${part} part: "
      "set it to AUTO or OFF")
  endif()
endforeach()

# A program that also uses LibTorch names tpsync's libraries, and with them Gloo, before torch:
# libtorch_cpu.so exports symbols of another Gloo, and whichever is linked first serves both.
set(TPSYNC_HAVE_GLOO OFF)
if(NOT TPSYNC_GLOO STREQUAL "OFF")
  find_package(Gloo CONFIG QUIET)
  if(Gloo_FOUND)
    set(TPSYNC_HAVE_GLOO ON)
  elseif(TPSYNC_GLOO STREQUAL "ON")
    message(FATAL_ERROR "TPSYNC_GLOO is ON, and Gloo is not installed: install libgloo-dev "
      "(ci/setup does), or set it to AUTO or OFF")
  endif()
endif()

# NCCL needs the CUDA runtime beside it, and no compiler of CUDA's.
set(TPSYNC_HAVE_NCCL OFF)
if(NOT TPSYNC_NCCL STREQUAL "OFF")
  find_package(CUDAToolkit QUIET)
  find_path(TPSYNC_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(TPSYNC_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(CUDAToolkit_FOUND AND TPSYNC_NCCL_INCLUDE_DIR AND TPSYNC_NCCL_LIBRARY)
    set(TPSYNC_HAVE_NCCL ON)
  elseif(TPSYNC_NCCL STREQUAL "ON")
    message(FATAL_ERROR "TPSYNC_NCCL is ON, and nccl.h, libnccl or the CUDA runtime is missing: "
      "install them, name the first two by TPSYNC_NCCL_INCLUDE_DIR and TPSYNC_NCCL_LIBRARY, or "
      "set it to AUTO or OFF")
  endif()
endif()

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # Reports every optimized `"text" + std::string` (GCC bug 105651, fixed in 13).
  add_compile_options(-Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_UNITY_BUILD)
  # Takes every source of a unit for a header, where an unnamed namespace would be a mistake.
  add_compile_options(-Wno-subobject-linkage)
endif()
if(TPSYNC_WERROR)
  add_compile_options(-Werror)
endif()
# Assertions are the library's own and stay on. Contracted floating point would differ between
# compilers.
add_compile_options(-ffp-contract=off)
# Nobody replaces a function of the library at run time, so those of one source may be inlined into
# one another although the code is position-independent.
add_compile_options(-fno-semantic-interposition)

if(TPSYNC_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all
    -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=address,undefined)
elseif(TPSYNC_SANITIZE STREQUAL "thread")
  # The flag itself is set per target (TpsyncTargets): the simulator must be compiled without it.
  add_compile_options(-fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=thread)
elseif(NOT TPSYNC_SANITIZE STREQUAL "")
  message(FATAL_ERROR "TPSYNC_SANITIZE is '${TPSYNC_SANITIZE}': set it to address, thread, or "
    "leave it empty")
endif()
