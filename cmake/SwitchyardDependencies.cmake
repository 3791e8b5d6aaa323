# What deploy/setup.sh installs. LibTorch comes in through targets of our own: the wheel's CMake
# package drags the CUDA tool chain into every configuration (docs/decisions.md).
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(ZLIB REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)

file(STRINGS "${CMAKE_SOURCE_DIR}/deploy/versions.env" _torch_line REGEX "^TORCH_VERSION=")
string(REGEX REPLACE "^TORCH_VERSION=" "" SWITCHYARD_TORCH_VERSION "${_torch_line}")
if(DEFINED ENV{SWITCHYARD_DEPS})
  set(_deps "$ENV{SWITCHYARD_DEPS}")
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(_deps "$ENV{XDG_CACHE_HOME}/switchyard/deps")
else()
  set(_deps "$ENV{HOME}/.cache/switchyard/deps")
endif()
set(SWITCHYARD_TORCH_ROOT "${_deps}/torch-${SWITCHYARD_TORCH_VERSION}" CACHE PATH
    "Folder with torch/ and nvidia/ as deploy/setup.sh lays them")

if(SWITCHYARD_TORCH)
  set(_torch "${SWITCHYARD_TORCH_ROOT}/torch")
  if(NOT EXISTS "${_torch}/lib/libtorch_cpu.so")
    message(FATAL_ERROR "no LibTorch in ${_torch}: run deploy/setup.sh, or configure with -DSWITCHYARD_TORCH=OFF")
  endif()
  add_library(switchyard_libtorch INTERFACE)
  add_library(switchyard::libtorch ALIAS switchyard_libtorch)
  # Behind the system's: the wheel carries old copies of protobuf's and other headers.
  target_compile_options(switchyard_libtorch INTERFACE
    "SHELL:-idirafter ${_torch}/include"
    "SHELL:-idirafter ${_torch}/include/torch/csrc/api/include")
  target_link_libraries(switchyard_libtorch INTERFACE
    "${_torch}/lib/libtorch_cpu.so" "${_torch}/lib/libc10.so" Threads::Threads)
  target_link_options(switchyard_libtorch INTERFACE
    -Wl,--allow-shlib-undefined "-Wl,-rpath,${_torch}/lib")
endif()
