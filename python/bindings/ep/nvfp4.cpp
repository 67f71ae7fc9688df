// SPDX-License-Identifier: Apache-2.0
// ep/nvfp4.cpp: the quantization of deep_ep's low_latency_dispatch with use_nvfp4.
#include "../check.hpp"
#include "../docs.hpp"
#include "group.hpp"

#ifdef SHOAL_WITH_CUDA
#include "ep/cuda/low_latency/formats/quantize_nvfp4.hpp"
#endif

namespace shoal::python {
namespace {

#ifdef SHOAL_WITH_CUDA

void quantize_nvfp4(std::uintptr_t x, std::uintptr_t counts, std::uintptr_t global_scale,
                    std::uintptr_t values, std::uintptr_t scales, std::int32_t experts,
                    std::int32_t rows, std::int32_t hidden, std::uintptr_t stream) {
  const cudaError_t status = ep::cuda::launch_quantize_nvfp4(
      {reinterpret_cast<const std::byte*>(x), reinterpret_cast<const std::int32_t*>(counts),
       reinterpret_cast<const float*>(global_scale), reinterpret_cast<std::byte*>(values),
       reinterpret_cast<std::uint8_t*>(scales), experts, rows, hidden},
      reinterpret_cast<cudaStream_t>(stream));
  require(status == cudaSuccess, Code::system, "quantize_nvfp4: {}", cudaGetErrorString(status));
}

#else

void quantize_nvfp4(std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t, std::uintptr_t,
                    std::int32_t, std::int32_t, std::int32_t, std::uintptr_t) {
  fail(Code::unsupported, "quantize_nvfp4: this build has no CUDA");
}

#endif

}  // namespace

void bind_nvfp4(nb::module_& module) {
  module.def("quantize_nvfp4", &quantize_nvfp4, nb::arg("x"), nb::arg("counts"),
             nb::arg("global_scale"), nb::arg("values"), nb::arg("scales"), nb::arg("experts"),
             nb::arg("rows"), nb::arg("hidden"), nb::arg("stream"),
             "Quantizes received bfloat16 rows [experts, rows, hidden] on a GPU; for deep_ep. "
             "counts: int32 [experts], the rows of each expert; the others stay as they are. "
             "Arguments are addresses; global_scale of 0: none."_doc);
}

}  // namespace shoal::python
