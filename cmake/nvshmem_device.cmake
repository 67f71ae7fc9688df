# SPDX-License-Identifier: Apache-2.0
# The functions of nvshmem.h inside kernels as a library, for compilers that link intermediate code:
# libnvshmem_device.ltoir for nvJitLink and nvlink, libnvshmem_device.bc (LLVM bitcode) for Triton.
# Both are nvshmem.h itself, compiled without optimization: the program that links a few functions
# optimizes those. Code for SM80 links for every newer GPU.
#
# Defines the target shoal_nvshmem_device, whose property FILES names them. The build succeeds
# without bitcode where there is no clang that reads the headers of CUDA.
set(header ${PROJECT_SOURCE_DIR}/include/nvshmem.h)
set(library ${SHOAL_NVSHMEM_DROP_IN}/libnvshmem_device)
set(folder ${CMAKE_BINARY_DIR}/nvshmem_device)
set(common -std=c++17 -DSHOAL_NVSHMEM_DEVICE_LIBRARY -I${PROJECT_SOURCE_DIR}/include)
file(MAKE_DIRECTORY ${folder} ${SHOAL_NVSHMEM_DROP_IN})

add_custom_command(OUTPUT ${library}.ltoir
  COMMAND ${CMAKE_CUDA_COMPILER} ${common} -x cu -arch=sm_80 -dlto -ltoir -MD -MF ${folder}/ltoir.d ${header} -o ${library}.ltoir
  DEPENDS ${header} DEPFILE ${folder}/ltoir.d VERBATIM COMMENT "Compiling libnvshmem_device.ltoir")
set(files ${library}.ltoir)

# The oldest: newer releases of LLVM read its bitcode.
find_program(SHOAL_BITCODE_COMPILER NAMES clang++-19 clang++-20 clang++-21 clang++-22 clang++ DOC "clang that compiles the NVSHMEM device library to LLVM bitcode")
set(SHOAL_CUDA_TOOLKIT ${CUDAToolkit_BIN_DIR}/.. CACHE INTERNAL "The toolkit, for clang")
if(SHOAL_BITCODE_COMPILER)
  # Headers that clang includes before every CUDA source: not in every toolkit, and not used here.
  foreach(unused texture_fetch_functions.h curand_mtgp32_kernel.h)
    file(CONFIGURE OUTPUT ${folder}/unused/${unused} CONTENT "")
  endforeach()
  set(to_ir ${SHOAL_BITCODE_COMPILER} -x cuda --cuda-device-only --cuda-gpu-arch=sm_80 --cuda-path=${SHOAL_CUDA_TOOLKIT}
    -Wno-unknown-cuda-version -idirafter ${folder}/unused -O1 -Xclang -disable-llvm-passes -S -emit-llvm)
  file(WRITE ${folder}/empty.cu "")
  execute_process(COMMAND ${to_ir} ${folder}/empty.cu -o ${folder}/empty.ll RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
  if(status EQUAL 0)
    # Programs for other GPUs inline the functions only without the attributes of the GPU. A second
    # "override" of how denormal numbers are rounded, which no function asks for, is an error.
    # Functions that take objects by value ("byval") are always inlined: LLVM fails on those that
    # remain where pointers to local memory have 32 bits, as in Triton up to 3.8. The attributes
    # replace the function's own group, which may have "noinline".
    set(inlined "alwaysinline convergent mustprogress nounwind")
    add_custom_command(OUTPUT ${library}.bc
      COMMAND ${CMAKE_CUDA_COMPILER_LAUNCHER} ${to_ir} ${common} -MD -MF ${folder}/bc.d -MT ${library}.bc ${header} -o ${folder}/library.ll
      COMMAND sed -E -e "s/ \"target-(cpu|features)\"=\"[^\"]*\"//g" -e "s/!\\{i32 4, !\"nvvm-reflect-ftz\"/!{i32 2, !\"nvvm-reflect-ftz\"/"
        -e "/^define .*byval\\(/s/ #[0-9]+( [^{]*)\\{$/ ${inlined}\\1{/"
        ${folder}/library.ll > ${folder}/portable.ll
      COMMAND ${SHOAL_BITCODE_COMPILER} --target=nvptx64-nvidia-cuda -x ir -O1 -Xclang -disable-llvm-passes -c -emit-llvm ${folder}/portable.ll -o ${library}.bc
      DEPENDS ${header} DEPFILE ${folder}/bc.d VERBATIM COMMENT "Compiling libnvshmem_device.bc")
    list(APPEND files ${library}.bc)
  endif()
endif()
message(STATUS "NVSHMEM device library: ${files}")

add_custom_target(shoal_nvshmem_device ALL DEPENDS ${files})
add_dependencies(shoal_nvshmem_device shoal_nvshmem)
set_target_properties(shoal_nvshmem_device PROPERTIES FILES "${files}")
install(FILES ${files} DESTINATION ${CMAKE_INSTALL_LIBDIR}/shoal/nvshmem)
