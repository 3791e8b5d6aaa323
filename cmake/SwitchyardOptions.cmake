# Language level, warnings, compiler cache, linker, sanitizers.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

option(SWITCHYARD_TORCH "Build the trainer and what needs LibTorch" ON)
option(SWITCHYARD_GPU "Build CUDA and NCCL code where the toolkit is found" ON)
option(SWITCHYARD_FAILPOINTS "Let the environment end a process at a named place (fault tests)" ON)
set(SWITCHYARD_SANITIZE "" CACHE STRING "Sanitizers: empty, address, or thread")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# -g1: lines in stack traces without the weight of full debug information.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")

add_compile_options(-Wall -Wextra -Wno-missing-field-initializers)

find_program(SWITCHYARD_CCACHE ccache)
if(SWITCHYARD_CCACHE)
  # Paths relative to the source, so that every build folder and every clone shares the cache.
  set(_launcher "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1
      "${SWITCHYARD_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER ${_launcher})
  set(CMAKE_C_COMPILER_LAUNCHER ${_launcher})
endif()

# Not mold: its 1.10 lets the read-only-after-relocation part begin at an empty thread-local section
# in front of a page border, and one link in some hundred makes a program that does not start.
find_program(SWITCHYARD_LLD ld.lld)
if(SWITCHYARD_LLD)
  add_link_options(-fuse-ld=lld)
endif()

if(SWITCHYARD_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
elseif(SWITCHYARD_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT SWITCHYARD_SANITIZE STREQUAL "")
  message(FATAL_ERROR "SWITCHYARD_SANITIZE is '${SWITCHYARD_SANITIZE}'; known: address, thread, or empty")
endif()

# A torch file takes 0.3 to 1 GB to compile: no more than two at a time.
set_property(GLOBAL APPEND PROPERTY JOB_POOLS torch_pool=2)

# The commit that a binary was built from, shown by `version` and switchyard_build_info.
execute_process(
  COMMAND git -C "${CMAKE_SOURCE_DIR}" rev-parse --short=12 HEAD
  OUTPUT_VARIABLE SWITCHYARD_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT SWITCHYARD_COMMIT)
  set(SWITCHYARD_COMMIT "unknown")
endif()
