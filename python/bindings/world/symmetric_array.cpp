// SPDX-License-Identifier: Apache-2.0
#include "symmetric_array.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "../arguments.hpp"
#include "../check.hpp"
#include "../docs.hpp"

namespace shoal::python {
namespace {

Tensor heap_tensor(void* memory, DataType dtype, const std::vector<std::int64_t>& shape,
                   Device device) {
  TensorView view;
  view.data = memory;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  view.device = device;
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.shape[i] = shape[i];
    view.strides[i] = stride;
    stride *= shape[i];
  }
  return Tensor(view, nullptr);
}

void release(SymmetricArray& array) {
  check_alive(array);
  nb::gil_scoped_release released;
  array.world.heap().free(array.local.data);
  array.world = World();
  array.freed = true;
}

/// This PE's copy as an Array.
nb::object array_of(nb::handle self) {
  const auto& array = nb::cast<const SymmetricArray&>(self);
  check_alive(array);
  return output(array.local, kReady);
}

RemoteArray on(const SymmetricArray& array, Pe pe) {
  check_alive(array);
  require(pe >= 0 && pe < array.world.n_pes(), Code::invalid_argument,
          "on: PE {}; the world has PEs 0 to {}", pe, array.world.n_pes() - 1);
  return {pe, array.offset, static_cast<std::size_t>(array.local.size()), array.local.dtype};
}

RemoteArray slice(const RemoteArray& array, const nb::slice& range) {
  const auto [start, stop, step, length] = range.compute(array.count);
  require(step == 1, Code::invalid_argument, "a RemoteArray is sliced with step 1, got {}", step);
  return {array.pe, array.offset + static_cast<std::size_t>(start) * size_of(array.dtype), length,
          array.dtype};
}

RemoteArray element(const RemoteArray& array, std::int64_t index) {
  const auto count = static_cast<std::int64_t>(array.count);
  if (index < 0) index += count;
  if (index < 0 || index >= count) throw nb::index_error("RemoteArray index out of range");
  return {array.pe, array.offset + static_cast<std::size_t>(index) * size_of(array.dtype), 1,
          array.dtype};
}

}  // namespace

SymmetricArray zeros(const World& world, nb::handle given, nb::handle dtype, nb::handle like) {
  const DataType type = dtype_from("zeros", dtype);
  const std::vector<std::int64_t> shape = shape_of("zeros", given);
  require(shape.size() <= TensorView::kMaxRank, Code::invalid_argument,
          "zeros: {} dimensions; allowed: up to {}", shape.size(), TensorView::kMaxRank);
  std::size_t count = 1;
  for (const std::int64_t extent : shape) {
    require(extent >= 0, Code::invalid_argument, "zeros: an extent of {}; allowed: 0 and more",
            extent);
    require(!__builtin_mul_overflow(count, static_cast<std::size_t>(extent), &count),
            Code::invalid_argument, "zeros: more elements than can be counted");
  }
  const Library* const library =
      like.is_none() ? library_of_dtype(dtype) : library_like("zeros", like);
  SymmetricArray array{world, {}, library};
  void* memory = nullptr;
  {
    nb::gil_scoped_release released;
    memory = world.heap().calloc(count, size_of(type));
  }
  array.local = heap_tensor(memory, type, shape, world.heap().device());
  array.local.owner = heap_keeper(world.team());
  array.offset = memory == nullptr ? 0 : world.heap().offset_of(memory);
  return array;
}

void check_alive(const SymmetricArray& array) {
  require(!array.freed, Code::closed, "the array is freed");
  (void)array.world.my_pe();
}

const SymmetricArray& symmetric_from(const char* call, const char* name, nb::handle value) {
  const SymmetricArray& array = object_from<SymmetricArray>(
      call, name, value, "a shoal.SymmetricArray, which World.zeros returns");
  check_alive(array);
  return array;
}

std::shared_ptr<void> heap_keeper(const Team& team) {
  return team.world().heap().memory_owner();
}

Tensor keep_heap(Tensor tensor, const std::shared_ptr<void>& keeper) {
  struct Held {  // destroyed in reverse order: the array before the heap
    std::shared_ptr<void> heap, array;
  };
  if (tensor.defined())
    tensor.owner = std::make_shared<Held>(Held{keeper, std::move(tensor.owner)});
  return tensor;
}

namespace {

void bind_remote_arrays(nb::module_& module) {
  nb::class_<RemoteArray> remote(
      module, "RemoteArray",
      "Elements of a SymmetricArray on one PE; a slice selects some of them."_doc);
  refuse_numpy(remote, "its elements by World.get");
  remote.def_ro("pe", &RemoteArray::pe, "World PE that owns the elements."_doc)
      .def("__bool__",
           [](const RemoteArray&) -> bool {
             throw nb::type_error(
                 "a RemoteArray has no truth value; fetch its elements by "
                 "World.get");
           })
      .def("__len__", [](const RemoteArray& self) { return self.count; })
      .def("__getitem__", &slice)
      .def("__getitem__", &element)
      .def("__repr__", [](const RemoteArray& self) {
        return fmt::format("shoal.RemoteArray({} elements of {} on PE {})", self.count,
                           name_of(self.dtype), self.pe);
      });
}

}  // namespace

void bind_symmetric_arrays(nb::module_& module) {
  nb::class_<SymmetricArray>(
      module, "SymmetricArray", nb::is_generic(),
      nb::sig("class SymmetricArray(typing.Generic[A_co])"),
      "An array at the same offset of every PE's heap; created by World.zeros. On the host, "
      "numpy.asarray(array) and array[...] access this PE's copy."_doc)
      .def_prop_ro(
          "local",
          [](const SymmetricArray& self) {
            check_alive(self);
            return make_array(self.library, self.local, kReady);
          },
          nb::sig("def local(self) -> A_co"),
          "This PE's copy, as an array of the library that zeros names."_doc)
      .def("on", &on, nb::arg("pe"),
           "The copy of world PE `pe`, for put, get, signal and atomic."_doc)
      .def("free", &release,
           "Frees the memory. Collective over the world, in the same order on all PEs. Without "
           "free() the memory is freed when the world closes; the garbage collector never frees "
           "it."_doc)
      .def_prop_ro(
          "shape", [](nb::handle self) { return array_of(self).attr("shape"); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "Elements along each dimension."_doc)
      .def_prop_ro(
          "dtype",
          [](const SymmetricArray& self) { return std::string(name_of(self.local.dtype)); },
          "Same as Array.dtype."_doc)
      .def_prop_ro(
          "nbytes", [](const SymmetricArray& self) { return self.local.bytes(); },
          "Bytes of all elements on one PE."_doc)
      .def("__len__", [](nb::handle self) { return nb::len(array_of(self)); })
      .def("__bool__",
           [](nb::handle self) { return truth_of(array_of(self), "shoal.SymmetricArray"); })
      .def(
          "__array__",
          [](nb::handle self, nb::handle dtype, nb::handle copy) {
            return as_numpy(numpy_values(array_of(self), "__array__"), dtype, copy);
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none(),
          nb::sig(
              "def __array__(self, dtype: shoal.typing.DType | None = None, copy: bool | None = "
              "None) -> numpy.ndarray"))
      .def(
          "__getitem__",
          [](nb::handle self, nb::handle key) {
            return nb::object(numpy_values(array_of(self), "__getitem__")[key]);
          },
          nb::arg("key"), nb::sig("def __getitem__(self, key: object, /) -> typing.Any"))
      .def(
          "__setitem__",
          [](nb::handle self, nb::handle key, nb::handle value) {
            numpy_values(array_of(self), "__setitem__")[key] = value;
          },
          nb::arg("key"), nb::arg("value"),
          nb::sig("def __setitem__(self, key: object, value: object, /) -> None"))
      .def("__repr__", [](const SymmetricArray& self) {
        if (!self.world.is_open())
          return fmt::format("shoal.SymmetricArray({}, freed)", self.local.describe());
        const Device device = self.local.device;
        return fmt::format(
            "shoal.SymmetricArray({} on each of {} PEs, {}, heap offset {})", self.local.describe(),
            self.world.n_pes(),
            device.kind == DeviceKind::cuda ? fmt::format("cuda:{}", device.index) : "cpu",
            self.offset);
      });
  bind_remote_arrays(module);
}

}  // namespace shoal::python
