# SPDX-License-Identifier: Apache-2.0
# The GPU backend, which is optional. Building it needs a CUDA compiler but no GPU. Sets
# SHOAL_WITH_CUDA and defines the target shoal_cuda, which is empty in builds without CUDA.
#
# The CUDA runtime is linked statically and opens the driver library at run time, so programs also
# run on machines without a GPU. Test programs link the shared runtime instead, which keeps the
# folder of ./run bundle small. Kernels get their world as a parameter, so no relocatable device
# code is needed.
add_library(shoal_cuda INTERFACE)
set(SHOAL_WITH_CUDA OFF)
if(NOT SHOAL_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(SHOAL_WITH_CUDA ON)
  elseif(SHOAL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SHOAL_CUDA is ON, but no CUDA compiler was found; set CMAKE_CUDA_COMPILER, or SHOAL_CUDA=OFF")
  endif()
endif()

if(SHOAL_WITH_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${SHOAL_CUDA_ARCHITECTURES})
  endif()
  list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^([0-9]+[af]?)$" "\\1-real")
  # 80-on-90: code of compute_80, compiled for sm_90, so that the code for older GPUs runs on newer
  # ones without being compiled at its first use.
  set(SHOAL_CUDA_OLDER_CODE ${CMAKE_CUDA_ARCHITECTURES})
  list(FILTER SHOAL_CUDA_OLDER_CODE INCLUDE REGEX "-on-")
  if(SHOAL_CUDA_OLDER_CODE)
    list(FILTER CMAKE_CUDA_ARCHITECTURES EXCLUDE REGEX "-on-")
    list(TRANSFORM SHOAL_CUDA_OLDER_CODE REPLACE "^([0-9]+)-on-([0-9]+)$" "-gencode=arch=compute_\\1,code=sm_\\2")
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES OFF)
    endif()
    list(JOIN SHOAL_CUDA_OLDER_CODE " " SHOAL_CUDA_OLDER_CODE)
    string(APPEND CMAKE_CUDA_FLAGS " ${SHOAL_CUDA_OLDER_CODE}")
  endif()
  enable_language(CUDA)
  # CMake before 3.26 does not know nvcc's option for C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  target_compile_definitions(shoal_cuda INTERFACE SHOAL_WITH_CUDA=1)
  target_include_directories(shoal_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  if(TARGET CUDA::cudart)
    target_link_libraries(shoal_cuda INTERFACE $<IF:$<BOOL:$<TARGET_PROPERTY:SHOAL_IS_TEST>>,CUDA::cudart,CUDA::cudart_static>)
  else()
    target_link_libraries(shoal_cuda INTERFACE CUDA::cudart_static)
  endif()
  if(SHOAL_WERROR)
    set(werror_cuda -Werror=all-warnings)
  endif()
  # -fmad=false disables fused multiply-add, so that sums have the same bits as on the host
  # (ep/numeric/arithmetic.hpp).
  target_compile_options(shoal_cuda INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;${werror_cuda};-Xcompiler=-Wall,-Wextra,-Wno-unused-parameter;--expt-relaxed-constexpr>)
  # For programs of the bundle whose device code is large: a quarter of the bytes.
  if(CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA" AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    set(SHOAL_SMALL_DEVICE_CODE --compress-mode=size)
  endif()
endif()
message(STATUS "GPU backend: ${SHOAL_WITH_CUDA} ${CMAKE_CUDA_ARCHITECTURES} ${SHOAL_CUDA_OLDER_CODE}")
