# SPDX-License-Identifier: Apache-2.0
# nvshmem_gpu_linked: linked_ring.cu linked with the library of device functions, into an image that
# the program loads. Linking needs nvlink and libnvvm of the CUDA toolkit.
find_program(SHOAL_NVLINK nvlink HINTS ${CUDAToolkit_BIN_DIR})
find_file(SHOAL_LIBNVVM libnvvm.so PATHS ${CUDAToolkit_BIN_DIR}/../nvvm/lib64 ${CUDAToolkit_LIBRARY_DIR} NO_DEFAULT_PATH)
if(NOT SHOAL_NVLINK OR NOT SHOAL_LIBNVVM)
  return()
endif()
# nvlink searches for libnvvm here; toolkits from wheels have it elsewhere.
set(folder ${CMAKE_BINARY_DIR}/nvshmem_device)
file(MAKE_DIRECTORY ${folder}/nvvm/lib64)
file(CREATE_LINK ${SHOAL_LIBNVVM} ${folder}/nvvm/lib64/libnvvm.so SYMBOLIC)

set(architecture 90)
if(CMAKE_CUDA_ARCHITECTURES MATCHES "^([0-9]+[af]?)")
  set(architecture ${CMAKE_MATCH_1})
endif()
get_target_property(device_files shoal_nvshmem_device FILES)
list(FILTER device_files INCLUDE REGEX "ltoir$")
set(source ${CMAKE_CURRENT_LIST_DIR}/linked_ring.cu)
add_custom_command(OUTPUT ${folder}/linked_ring.cubin
  COMMAND ${CMAKE_CUDA_COMPILER} -arch=sm_${architecture} -dlto -ltoir ${source} -o ${folder}/linked_ring.ltoir
  COMMAND ${SHOAL_NVLINK} -arch=sm_${architecture} -dlto -nvvmpath=${folder}/nvvm ${folder}/linked_ring.ltoir ${device_files} -o ${folder}/linked_ring.cubin
  DEPENDS ${source} ${device_files} shoal_nvshmem_device VERBATIM COMMENT "Linking linked_ring.cubin")
add_custom_target(shoal_linked_ring DEPENDS ${folder}/linked_ring.cubin)

add_executable(nvshmem_gpu_linked nvshmem/gpu/linked.cpp)
add_dependencies(nvshmem_gpu_linked shoal_linked_ring)
set_source_files_properties(nvshmem/gpu/linked.cpp PROPERTIES OBJECT_DEPENDS ${folder}/linked_ring.cubin
  COMPILE_DEFINITIONS "SHOAL_LINKED_RING=\"${folder}/linked_ring.cubin\"")
target_include_directories(nvshmem_gpu_linked SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(nvshmem_gpu_linked PRIVATE shoal::nvshmem $<IF:$<TARGET_EXISTS:CUDA::cudart>,CUDA::cudart,CUDA::cudart_static>)
add_test(NAME nvshmem/gpu/linked COMMAND $<TARGET_FILE:shoal-run> -n 2 --timeout 100 $<TARGET_FILE:nvshmem_gpu_linked>)
set_tests_properties(nvshmem/gpu/linked PROPERTIES SKIP_RETURN_CODE 77 LABELS gpu TIMEOUT 120 RESOURCE_LOCK gpu)
