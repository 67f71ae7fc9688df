// SPDX-License-Identifier: Apache-2.0
#include "transport/heap_transport.hpp"
#include "transport/self/self.hpp"
#include "transport/shm/shm.hpp"
#ifdef SHOAL_WITH_CUDA
#include "transport/cuda_p2p/cuda_p2p.hpp"
#include "transport/staged/staged.hpp"
#endif

namespace shoal::transport {
#ifdef SHOAL_WITH_CUDA
namespace {

std::unique_ptr<HeapTransport> make_staged_on_cuda_p2p(const Context& context) {
  return make_staged(context, make_cuda_p2p_for_another_thread(context));
}

}  // namespace
#endif

std::span<const Factory> factories() {
  static constexpr Factory list[] = {make_self, make_shm};
  return list;
}

std::span<const HeapFactory> heap_factories() {
#ifdef SHOAL_WITH_CUDA
  static constexpr HeapFactory list[] = {make_cuda_p2p, make_staged_on_cuda_p2p};
  return list;
#else
  return {};
#endif
}

std::size_t heap_staging([[maybe_unused]] Pe n_pes, [[maybe_unused]] const Settings& settings) {
#ifdef SHOAL_WITH_CUDA
  return staged_bytes(n_pes, settings);
#else
  return 0;
#endif
}

}  // namespace shoal::transport
