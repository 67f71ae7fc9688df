#include "transport/self/self.hpp"
#include "transport/shm/shm.hpp"
#include "transport/transport.hpp"
#ifdef SHOAL_WITH_CUDA
#include "transport/cuda_p2p/cuda_p2p.hpp"
#endif

namespace shoal::transport {

std::span<const Factory> factories() {
  static constexpr Factory list[] = {make_self, make_shm};
  return list;
}

std::span<const Factory> heap_factories() {
#ifdef SHOAL_WITH_CUDA
  static constexpr Factory list[] = {make_cuda_p2p};
  return list;
#else
  return {};
#endif
}

std::string describe(Capabilities capabilities) {
  static constexpr struct {
    Capabilities bit;
    std::string_view name;
  } names[] = {{capability::load_store, "load-store"},
               {capability::put, "put"},
               {capability::get, "get"},
               {capability::atomics, "atomics"},
               {capability::signals, "signals"}};
  std::string text;
  for (const auto& [bit, name] : names) {
    if ((capabilities & bit) == 0) continue;
    if (!text.empty()) text += ' ';
    text += name;
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace shoal::transport
