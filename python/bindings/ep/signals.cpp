// SPDX-License-Identifier: Apache-2.0
// ep/signals.cpp: the wait of deep_ep's low_latency_combine for a GEMM on another stream.
#include "../check.hpp"
#include "../docs.hpp"
#include "group.hpp"

#ifdef SHOAL_WITH_CUDA
#include "ep/cuda/low_latency/send/wait_signals.hpp"
#endif

namespace shoal::python {
namespace {

#ifdef SHOAL_WITH_CUDA

void wait_signals(std::uintptr_t signals, std::uintptr_t counts, std::int32_t experts,
                  std::int32_t blocks, std::int32_t block_rows, std::int32_t value, double timeout,
                  std::uintptr_t stream) {
  const cudaError_t status =
      ep::cuda::launch_wait_signals({reinterpret_cast<const std::int32_t*>(signals),
                                     reinterpret_cast<const std::int32_t*>(counts), experts, blocks,
                                     block_rows, value, static_cast<std::uint64_t>(timeout * 1e9)},
                                    reinterpret_cast<cudaStream_t>(stream));
  require(status == cudaSuccess, Code::system, "wait_signals: {}", cudaGetErrorString(status));
}

#else

void wait_signals(std::uintptr_t, std::uintptr_t, std::int32_t, std::int32_t, std::int32_t,
                  std::int32_t, double, std::uintptr_t) {
  fail(Code::unsupported, "wait_signals: this build has no CUDA");
}

#endif

}  // namespace

void bind_signals(nb::module_& module) {
  module.def("wait_signals", &wait_signals, nb::arg("signals"), nb::arg("counts"),
             nb::arg("experts"), nb::arg("blocks"), nb::arg("block_rows"), nb::arg("value"),
             nb::arg("timeout"), nb::arg("stream"),
             "Holds a stream until int32 [experts, blocks] at the address `signals` have reached "
             "`value`; for deep_ep. counts: address of int32 [experts], the rows of each expert, "
             "of which only blocks with rows count; 0: all count. timeout: seconds."_doc);
}

}  // namespace shoal::python
