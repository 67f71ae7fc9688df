// SPDX-License-Identifier: Apache-2.0
// ep/tensors.hpp: tensors of one library on the device of one group, with little host time: views
// of arguments, and new tensors for results.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "../arrays/exchange.hpp"
#include "group.hpp"

namespace shoal::python {

/// Reads arguments that are contiguous tensors of the expected type, device, dtype and shape, and
/// reports nothing about others: the caller takes another path for them.
class PlainTensors {
 public:
  static constexpr std::int64_t kAny = -1;  ///< any extent

  /// device, tensor_type: of the arguments. Keeps the type alive.
  PlainTensors(Device device, nb::handle tensor_type);

  /// True if the library has what this class needs.
  bool usable() const noexcept { return usable_; }
  PyTypeObject* type() const noexcept { return reinterpret_cast<PyTypeObject*>(type_.ptr()); }

  /// True if the array is as expected; then sets `view`.
  bool take(TensorView& view, nb::handle array, DataType dtype,
            std::initializer_list<std::int64_t> shape) const;
  /// Two dimensions of any strides, of float32 or int32.
  bool take_scales(TensorView& view, nb::handle array, std::int64_t rows) const;
  /// The value of an int64 scalar on the host; nullopt for other arrays.
  std::optional<std::int64_t> host_scalar(nb::handle array) const;
  /// Selects the current stream of the library. False where it does not report one.
  bool follow(ep::Launch& launch) const;

 private:
  bool look(nb::dlpack::dltensor& found, nb::handle array) const;

  bool on_gpu_;
  nb::object type_;
  Exchange exchange_;
  nb::dlpack::device home_;
  bool usable_;
};

/// Allocates contiguous tensors by a function (shape, strides, dtype) of the library, such as
/// torch's _empty_strided_cuda. Keeps the arguments of recent calls, because building them takes as
/// long as the allocation.
class TensorMaker {
 public:
  explicit TensorMaker(nb::object function) : function_(std::move(function)) {}
  /// columns < 0: one dimension. dtype: the library's object.
  nb::object make(std::int64_t rows, std::int64_t columns, nb::handle dtype);

 private:
  struct Arguments {
    std::int64_t rows, columns;
    PyObject* dtype;
    nb::object tuple;
  };
  nb::object function_;
  std::vector<Arguments> recent_;
  std::size_t oldest_ = 0;
};

}  // namespace shoal::python
