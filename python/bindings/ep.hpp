// ep.hpp: expert parallelism of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "arrays.hpp"
#include "shoal/ep/group.hpp"

namespace shoal::python {

/// A group, with what keeps the heap mapped under its results.
struct Group {
  ep::Group group;
  std::shared_ptr<void> keeper;

  /// A result of a call on `stream` (cudaStream_t; nullptr: the group's own).
  nb::object output(Tensor tensor, void* stream) const;
};

/// stream=, after=, done=, sms= of a call.
ep::Launch launch_from(const nb::kwargs& options);

void bind_group(nb::module_& module);
void bind_normal(nb::module_& module, nb::class_<Group>& group);
void bind_low_latency(nb::module_& module, nb::class_<Group>& group);

}  // namespace shoal::python
