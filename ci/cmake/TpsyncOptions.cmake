# Compiler flags, ccache, sanitizers, and the optional parts: AUTO takes what the machine has, ON
# insists on it (AUTO and OFF are equal until a part exists).
if(TPSYNC_CCACHE)
  find_program(TPSYNC_CCACHE_PROGRAM ccache)
  if(TPSYNC_CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${TPSYNC_CCACHE_PROGRAM})
    set(CMAKE_C_COMPILER_LAUNCHER ${TPSYNC_CCACHE_PROGRAM})
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${TPSYNC_CCACHE_PROGRAM})
  endif()
endif()

# Parts that this version has code for. A part that is asked for and isn't there must not be
# silently left out.
set(TPSYNC_AVAILABLE_PARTS CUDA GLOO NCCL)
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

# The compiler and the toolkit of one version from 12.4 on. Programs need the driver's library only
# when they open a device.
set(TPSYNC_CUDA_ARCHITECTURES 90 CACHE STRING
  "Compute capabilities that kernels are compiled for, as CMAKE_CUDA_ARCHITECTURES takes them")
set(TPSYNC_HAVE_CUDA OFF)
if(NOT TPSYNC_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  find_package(CUDAToolkit 12.4 QUIET)
  if(CMAKE_CUDA_COMPILER AND CUDAToolkit_FOUND AND TARGET CUDA::cudart_static)
    set(CMAKE_CUDA_ARCHITECTURES ${TPSYNC_CUDA_ARCHITECTURES})
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(TPSYNC_HAVE_CUDA ON)
  elseif(TPSYNC_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TPSYNC_CUDA is ON, and nvcc (CMAKE_CUDA_COMPILER: "
      "'${CMAKE_CUDA_COMPILER}') or a toolkit from 12.4 on with the static runtime (CUDAToolkit: "
      "'${CUDAToolkit_VERSION}') is missing: install them, or set it to AUTO or OFF")
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

# Flags of the C and C++ compilers; nvcc has others.
function(tpsync_add_compile_options)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${ARGN}>")
endfunction()

tpsync_add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
  -Woverloaded-virtual -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # Reports every optimized `"text" + std::string` (GCC bug 105651, fixed in 13).
  tpsync_add_compile_options(-Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_UNITY_BUILD)
  # Takes every source of a unit for a header, where an unnamed namespace would be a mistake.
  tpsync_add_compile_options(-Wno-subobject-linkage)
endif()
if(TPSYNC_WERROR)
  tpsync_add_compile_options(-Werror)
endif()
# Assertions are the library's own and stay on. Contracted floating point would differ between
# compilers.
tpsync_add_compile_options(-ffp-contract=off)
# Nobody replaces a function of the library at run time, so those of one source may be inlined into
# one another although the code is position-independent.
tpsync_add_compile_options(-fno-semantic-interposition)

if(TPSYNC_SANITIZE STREQUAL "address")
  tpsync_add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all
    -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=address,undefined)
elseif(TPSYNC_SANITIZE STREQUAL "fuzzer")
  # As address, and every edge counted for libFuzzer, which comes with clang.
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "TPSYNC_SANITIZE is 'fuzzer', and libFuzzer comes with clang alone: set "
      "CMAKE_CXX_COMPILER to clang++")
  endif()
  tpsync_add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
    -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=address,undefined)
elseif(TPSYNC_SANITIZE STREQUAL "thread")
  # The flag itself is set per target (TpsyncTargets): the simulator must be compiled without it.
  tpsync_add_compile_options(-fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=thread)
elseif(NOT TPSYNC_SANITIZE STREQUAL "")
  message(FATAL_ERROR "TPSYNC_SANITIZE is '${TPSYNC_SANITIZE}': set it to address, thread, "
    "fuzzer, or leave it empty")
endif()
