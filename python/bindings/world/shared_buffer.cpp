// SPDX-License-Identifier: Apache-2.0
// world/shared_buffer.cpp: World.share_buffer, for GPU memory of any allocator.
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <utility>

#include "../check.hpp"
#include "../docs.hpp"
#include "world.hpp"

namespace shoal::python {
namespace {

/// A buffer of each PE, in memory of any allocator, while the PEs share it.
struct SharedArrays {
  World world;
  SharedBuffer buffer;
  nb::object mine;
};

std::unique_ptr<SharedArrays> share(const World& world, nb::handle array) {
  const Input given = optional_input(array, "share_buffer");
  require(!given.view.defined() || given.view.contiguous(), Code::invalid_argument,
          "share_buffer: a contiguous array, got {}", given.view.describe());
  auto shared = std::make_unique<SharedArrays>(SharedArrays{world, {}, nb::borrow(array)});
  nb::gil_scoped_release released;
  shared->buffer =
      world.heap().share_buffer(given.view.data, given.view.defined() ? given.view.bytes() : 0);
  return shared;
}

void unshare(SharedArrays& shared) {
  {
    nb::gil_scoped_release released;
    shared.world.heap().unshare_buffer(shared.buffer);
  }
  shared.mine = nb::none();
}

std::uintptr_t address(const SharedArrays& shared, Pe pe) {
  return reinterpret_cast<std::uintptr_t>(shared.buffer.on(pe));
}

}  // namespace

void bind_shared_buffers(nb::module_& module, nb::class_<World>& world) {
  nb::class_<SharedArrays>(module, "SharedBuffer",
                           "The buffers that PEs share by World.share_buffer, until unshare."_doc)
      .def(
          "bytes", [](const SharedArrays& self, Pe pe) { return self.buffer.bytes(pe); },
          nb::arg("pe"), "Size of the buffer that PE `pe` shares."_doc)
      .def("address", &address, nb::arg("pe"),
           "Address of the buffer of PE `pe` for this PE's GPU; 0: no buffer, or out of reach."_doc)
      .def("unshare", &unshare,
           "Ends the sharing. Collective over the world, in the same order on all PEs, before the "
           "memory is freed."_doc);
  world.def(
      "share_buffer", &share, nb::arg("array").none(), nb::rv_policy::take_ownership,
      nb::sig("def share_buffer(self, array: shoal.typing.SupportsDLPack | None) -> SharedBuffer"),
      "Lets the GPUs of all PEs access a contiguous CUDA array of this PE in place, whatever "
      "allocated it. combine then reads expert output in the array without a copy. Collective over "
      "the world; None: this PE shares nothing. Raises UnsupportedError, on all PEs, where the "
      "heap "
      "is on the host and for memory that cannot be shared."_doc);
}

}  // namespace shoal::python
