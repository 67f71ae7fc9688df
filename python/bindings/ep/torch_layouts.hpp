// SPDX-License-Identifier: Apache-2.0
// ep/torch_layouts.hpp: the layouts of dispatches of shoal.torch, by number. A graph of torch holds
// tensors only, so the memory of an int64 scalar, the number, owns the layout.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "group.hpp"
#include "tensors.hpp"

namespace shoal::python {

/// Data for the combine of a dispatch and for its gradients. Access needs the GIL.
struct TorchLayout {
  nb::object group;  ///< the Group
  ep::Handle handle;
  std::int64_t worst_case_rows = 0;
  bool copy_out = false;
  /// bool [rows, top_k]: top-k slots without a local expert; None: topk_idx has them.
  nb::object elsewhere = nb::none();
  /// The topk_idx that the dispatch returned, for gradients, and its version then; or None.
  nb::object topk_idx = nb::none();
  std::int64_t topk_idx_version = 0;
};

/// A handle: an int64 scalar on the host that owns the layout. None where tensors of this type
/// cannot own memory of others.
nb::object torch_handle(nb::handle tensor_type, TorchLayout layout);
/// The layout of a handle; nullptr for other arrays. Valid as long as the memory of the handle.
const TorchLayout* torch_layout(const PlainTensors& tensors, nb::handle handle);

void bind_torch_layouts(nb::module_& module);

}  // namespace shoal::python
