// SPDX-License-Identifier: Apache-2.0
// arrays/arrays.hpp: arrays that pass between Python and Shoal by DLPack, without copies.
//
// Arguments: any object that exports DLPack or a buffer becomes a TensorView for one call.
// Results: a shoal.Array owns a Tensor and exports DLPack. The memory lives as long as any importer
// of it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shoal/tensor.hpp"

namespace shoal::python {

namespace nb = nanobind;

/// In place of a stream: the values are ready.
inline constexpr std::uintptr_t kReady = UINTPTR_MAX;

/// A result: a Tensor, and on GPUs the stream (cudaStream_t) on which its values are ready.
struct Array {
  Tensor tensor;
  std::uintptr_t stream = 0;
};

/// An argument: the view, and what keeps its memory during the call: the array or its export.
struct Input {
  TensorView view;
  nb::object array;
  nb::ndarray<nb::ro> exported;
  /// On GPUs, the stream on which the values are ready; kReady where it is unknown.
  std::uintptr_t stream = kReady;
};

/// "bfloat16" and so on. Throws Error{invalid_argument} with the names that exist.
DataType dtype_from(const std::string& name);

/// `array` as a view. `dtype` overrides the element type with one of the same size ("bfloat16" for
/// uint16 arrays). `what` names the argument in errors. Throws Error{invalid_argument} for objects
/// that are no arrays, more than four dimensions, and element types that Shoal does not have.
Input input(nb::handle array, const char* what, const std::optional<std::string>& dtype = {});
/// input() for an array that the call writes; an undefined view for None. Throws
/// Error{invalid_argument} also for a read-only array.
Input writable_input(nb::handle array, const char* what);
/// input(); an undefined view for None.
Input optional_input(nb::handle array, const char* what);

/// The element type in DLPack.
nb::dlpack::dtype dlpack_type(DataType dtype);

/// Sets `view` and returns true where `from` is contiguous, of this element type and of this shape
/// (-1: any extent). Accepts any device. For callers that report errors by other means.
bool plain_view(TensorView& view, const nb::dlpack::dltensor& from, DataType dtype,
                std::initializer_list<std::int64_t> shape);

/// The arrays of one call, kept until it is done.
class Inputs {
 public:
  TensorView read(nb::handle array, const char* what) { return keep(optional_input(array, what)); }
  TensorView write(nb::handle array, const char* what) { return keep(writable_input(array, what)); }
  /// The array that was read or written last.
  const Input& last() const { return kept_.back(); }

 private:
  TensorView keep(Input input) { return kept_.emplace_back(std::move(input)).view; }
  std::vector<Input> kept_;
};

/// None for an undefined tensor.
nb::object output(Tensor tensor, std::uintptr_t stream = 0);

void bind_arrays(nb::module_& module);

}  // namespace shoal::python
