// SPDX-License-Identifier: Apache-2.0
// place.hpp: where tensors and states of a group lie: their device, the backend that made a state,
// and the one checked downcast to its type.
#pragma once

#include <string>

#include "base/check.hpp"
#include "shoal/tensor.hpp"

namespace shoal::ep::detail {

enum class BackendKind {
  host,    ///< memory and tensors on the host
  staged,  ///< tensors in GPU memory, rows pass through the host backend
  cuda,    ///< memory and tensors on GPUs
};

constexpr const char* name_of(BackendKind kind) {
  switch (kind) {
    case BackendKind::host:
      return "host";
    case BackendKind::staged:
      return "staged";
    case BackendKind::cuda:
      return "CUDA";
  }
  return "unknown";
}

/// `state` as T, the type of backend T::kBackend. Base::backend names the backend that made the
/// state; the backend that defines T is the only one that writes T::kBackend there. Throws
/// Error{invalid_argument} when another backend made the state.
template <typename T, typename Base>
const T& of_backend(const Base& state, const char* call) {
  require(
      state.backend == T::kBackend, Code::invalid_argument,
      "SHOAL-N574: {}: the argument was made by a group of the {} backend; this group uses the {} "
      "backend",
      call, name_of(state.backend), name_of(T::kBackend));
  return static_cast<const T&>(state);
}
template <typename T, typename Base>
T& of_backend(Base& state, const char* call) {
  return const_cast<T&>(of_backend<T>(static_cast<const Base&>(state), call));
}

/// "on the host" or "on GPU 3".
inline std::string describe(const Device& device) {
  return device.kind == DeviceKind::host ? std::string("on the host")
                                         : fmt::format("on GPU {}", device.index);
}

/// Requires a tensor on the device of the group's memory. Throws Error{invalid_argument}.
inline void check_device(const Device& home, const char* call, const char* name,
                         const ConstTensorView& tensor) {
  require(
      tensor.device == home, Code::invalid_argument,
      "SHOAL-N601: {}: {} is {}; the memory of this group is {} (SHOAL_HEAP)", call, name,
      [&] { return describe(tensor.device); }, [&] { return describe(home); });
}

}  // namespace shoal::ep::detail
