// SPDX-License-Identifier: Apache-2.0
// arrays.hpp: arrays that cross between Python and Shoal by DLPack, without copies.
//
// In: any object that exports DLPack or a buffer becomes a TensorView for the length of a call.
// Out: a shoal.Array, which owns a Tensor and exports DLPack itself; the memory lives until the
// last importer lets go of it.
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

/// What every result is: a Tensor, and on GPUs the stream (cudaStream_t) that its values are ready
/// on.
inline constexpr std::uintptr_t kReady =
    UINTPTR_MAX;  ///< in place of a stream: there is nothing to wait for

struct Array {
  Tensor tensor;
  std::uintptr_t stream = 0;
};

/// An argument: the view, and what keeps its memory while it is used: the array itself, or what it
/// exported.
struct Input {
  TensorView view;
  nb::object array;
  nb::ndarray<nb::ro> exported;
  std::uintptr_t stream =
      kReady;  ///< on a GPU, where known: its values are ready for what is queued there from now on
};

/// "bfloat16" and so on. Throws Error{invalid_argument} with the names that exist.
DataType dtype_from(const std::string& name);

/// `array` as a view. `dtype`, where given, is what its elements mean: of the same size ("bfloat16"
/// for uint16 arrays). `what` names the argument in errors. Throws Error{invalid_argument}: no
/// array, more than four dimensions, an element type that Shoal does not know.
Input input(nb::handle array, const char* what, const std::optional<std::string>& dtype = {});
/// As input, of what the call writes to; an undefined view for None. Throws Error{invalid_argument}
/// for what is read-only.
Input writable_input(nb::handle array, const char* what);
/// As input; an undefined view for None.
Input optional_input(nb::handle array, const char* what);

/// Whether an array is contiguous, of this element type and this shape (-1: any extent); then
/// `view` is set. Its device is taken for one of Shoal's. For arrays whose faults are explained
/// elsewhere.
bool plain_view(TensorView& view, const nb::dlpack::dltensor& from, DataType dtype,
                std::initializer_list<std::int64_t> shape);

/// The arrays of one call, kept until it is done.
class Inputs {
 public:
  TensorView read(nb::handle array, const char* what) { return keep(optional_input(array, what)); }
  TensorView write(nb::handle array, const char* what) { return keep(writable_input(array, what)); }
  /// The one that was read or written last.
  const Input& last() const { return kept_.back(); }

 private:
  TensorView keep(Input input) { return kept_.emplace_back(std::move(input)).view; }
  std::vector<Input> kept_;
};

/// None for an undefined tensor.
nb::object output(Tensor tensor, std::uintptr_t stream = 0);

void bind_arrays(nb::module_& module);

}  // namespace shoal::python
