// SPDX-License-Identifier: Apache-2.0
// ep.hpp: expert parallelism of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "arrays.hpp"
#include "shoal/ep/group.hpp"

namespace shoal::python {

/// A group, with what keeps the heap mapped under its results. Returning a group's memory is
/// collective, and garbage collectors do not work in step: a group that goes without close() is
/// kept until its world closes.
class Group {
 public:
  Group(const Team& team, const ep::GroupOptions& options);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void close();
  /// For what points into the group's memory.
  const std::shared_ptr<ep::Group>& owner() const { return owned_; }

  /// A result of a call on `stream` (cudaStream_t; nullptr: the group's own).
  nb::object output(Tensor tensor, void* stream) const;

 private:
  std::shared_ptr<ep::Group> owned_;
  bool closed_ = false;

 public:
  ep::Group& group = *owned_;
  const std::shared_ptr<void> keeper;
  const bool on_gpu;
};

/// Lets go of the groups that were kept for worlds that are closed by now.
void release_kept_groups();

/// stream=, after=, done=, sms= of a call. Streams and events are numbers, or objects of torch's.
/// Throws Error{invalid_argument} for an event that CUDA has not made yet.
ep::Launch launch_from(const nb::kwargs& options);

/// Where the call names no stream: the one that `main`, its first argument, is ready on, so that a
/// call is ordered behind what made its arguments. Nothing where that is not known (then it is the
/// group's own) or on the host.
void follow(ep::Launch& launch, const Group& group, const Input& main);

/// "none" and so on. Throws Error{invalid_argument} with the names that exist.
ep::Quantize quantize_from(const std::string& name);

void bind_group(nb::module_& module);
void bind_normal(nb::module_& module, nb::class_<Group>& group);
void bind_low_latency(nb::module_& module, nb::class_<Group>& group);
void bind_hooked(nb::module_& module);

}  // namespace shoal::python
