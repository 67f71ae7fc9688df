// SPDX-License-Identifier: Apache-2.0
// ep/group.hpp: the Python class Group, and the functions that bind its methods.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>

#include "../arrays/arrays.hpp"
#include "shoal/ep/group.hpp"

namespace shoal::python {

/// What an absent result is for Group::result, which then gives None.
inline const Tensor& or_undefined(const Tensor& tensor) {
  return tensor;
}
inline Tensor or_undefined(const std::optional<Tensor>& tensor) {
  return tensor.value_or(Tensor());
}

/// An ep::Group, and what keeps the heap mapped under its results.
///
/// Freeing a group's memory is collective, and the garbage collectors of PEs run at different
/// times. A Group that is collected without close() is therefore kept until its world closes.
class Group {
 public:
  /// Collective over `team`.
  Group(const Team& team, const ep::GroupOptions& options);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Collective. Throws as ep::Group::close.
  void close();
  bool is_closed() const { return closed_; }
  /// Owns the memory of the group, for tensors that point into it.
  const std::shared_ptr<ep::Group>& owner() const { return owned_; }

  /// A result for `library`. `stream` is the cudaStream_t of the call; nullptr: the group's own.
  Result result(const Library* library, Tensor tensor, Stream stream) const;

 private:
  std::shared_ptr<ep::Group> owned_;
  bool closed_ = false;

 public:
  ep::Group& group = *owned_;
  const std::shared_ptr<void> keeper;
  const bool on_gpu;
  nb::object torch_calls;  ///< the NormalCalls of shoal.torch; invalid before its first call
};

/// Releases the groups that were kept for worlds which are closed now.
void release_kept_groups();

void bind_group(nb::module_& module);
void bind_normal(nb::module_& module, nb::class_<Group>& group);
void bind_async(nb::module_& module, nb::class_<Group>& group);
void bind_low_latency(nb::module_& module, nb::class_<Group>& group);
void bind_low_latency_calls(nb::module_& module);
void bind_normal_calls(nb::module_& module);
void bind_legacy(nb::module_& module);
void bind_elastic(nb::module_& module);
void bind_hybrid(nb::module_& module);
void bind_torch_calls(nb::module_& module);
void bind_gate(nb::module_& module);
void bind_routing_maps(nb::module_& module);

}  // namespace shoal::python
