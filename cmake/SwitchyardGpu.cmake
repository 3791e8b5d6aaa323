# CUDA and NCCL parts: built where the toolkit is, off with a message where it is not. They are a
# shared object of their own that the trainer loads when a device is there, so that one trainer
# serves hosts with and without a GPU.
set(SWITCHYARD_HAVE_CUDA OFF)
if(SWITCHYARD_TORCH AND SWITCHYARD_GPU)
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    find_path(SWITCHYARD_NCCL_INCLUDE nccl.h
      HINTS ${CUDAToolkit_INCLUDE_DIRS} "${SWITCHYARD_TORCH_ROOT}/nvidia/nccl/include")
    find_library(SWITCHYARD_NCCL_LIBRARY NAMES nccl libnccl.so.2
      HINTS ${CUDAToolkit_LIBRARY_DIR} "${SWITCHYARD_TORCH_ROOT}/nvidia/nccl/lib")
    if(SWITCHYARD_NCCL_INCLUDE AND SWITCHYARD_NCCL_LIBRARY)
      set(SWITCHYARD_HAVE_CUDA ON)
      message(STATUS "GPU parts: on (CUDA ${CUDAToolkit_VERSION}, NCCL at ${SWITCHYARD_NCCL_LIBRARY})")
    else()
      message(STATUS "GPU parts: off, the CUDA toolkit ${CUDAToolkit_VERSION} is here but NCCL is not (deploy/setup.sh --gpu brings it)")
    endif()
  else()
    message(STATUS "GPU parts: off, no CUDA toolkit found")
  endif()
else()
  message(STATUS "GPU parts: off by option")
endif()
