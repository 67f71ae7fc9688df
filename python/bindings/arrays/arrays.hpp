// SPDX-License-Identifier: Apache-2.0
// arrays/arrays.hpp: arrays that pass between Python and Shoal by DLPack, without copies.
//
// Arguments: any object that exports DLPack or a buffer becomes a TensorView for one call.
// Results are arrays of the caller's library (libraries.hpp), or a shoal.Array, which owns a Tensor
// and exports DLPack. The memory lives as long as any importer of it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../check.hpp"
#include "libraries.hpp"
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
  /// Stream, on GPUs, on which the values are ready; kReady where it is unknown.
  std::uintptr_t stream = kReady;
};

/// The type that `given` names: "bfloat16" and so on, or a dtype of NumPy, torch, JAX or ml_dtypes.
/// Throws Error{invalid_argument} with the names that exist.
DataType dtype_from(std::string_view call, nb::handle given);
/// dtype_from; nullopt for None.
std::optional<DataType> optional_dtype(std::string_view call, nb::handle given);

/// Throws Error{invalid_argument} where torch would record the use of a tensor for a gradient,
/// which `call` would lose. `instead`: the call that has a gradient; nullptr: there is none. No
/// effect for other arrays and under torch.no_grad().
void refuse_gradient(std::string_view call, std::string_view name, nb::handle array,
                     const char* instead);

/// `array` as a view. `dtype` overrides the element type with one of the same size (bfloat16 for
/// uint16 arrays). `what` names the argument in errors. Throws Error{invalid_argument} for objects
/// that are no arrays, more than four dimensions, and element types that Shoal does not have.
Input input(nb::handle array, const char* what, std::optional<DataType> dtype = {});
/// input() for an array that the call writes; an undefined view for None. Throws
/// Error{invalid_argument} also for a read-only array.
Input writable_input(nb::handle array, const char* what, std::optional<DataType> dtype = {});
/// input(); an undefined view for None.
Input optional_input(nb::handle array, const char* what, std::optional<DataType> dtype = {});

/// The element type in DLPack.
nb::dlpack::dtype dlpack_type(DataType dtype);

/// Sets `view` and returns true where `from` is contiguous, of this element type and of this shape
/// (-1: any extent). Accepts any device. For callers that report errors by other means.
bool plain_view(TensorView& view, const nb::dlpack::dltensor& from, DataType dtype,
                std::initializer_list<std::int64_t> shape);

/// The arrays of one call, kept until it is done.
class Inputs {
 public:
  /// `dtype`: as for input().
  TensorView read(nb::handle array, const char* what, std::optional<DataType> dtype = {}) {
    return keep(optional_input(array, what, dtype));
  }
  TensorView write(nb::handle array, const char* what, std::optional<DataType> dtype = {}) {
    return keep(writable_input(array, what, dtype));
  }
  /// The array that was read or written last.
  const Input& last() const { return kept_.back(); }

 private:
  TensorView keep(Input&& input) {
    if (kept_.empty()) kept_.reserve(kMost);
    return kept_.emplace_back(std::move(input)).view;
  }

  static constexpr std::size_t kMost = 4;  ///< arrays of most calls
  std::vector<Input> kept_;
};

/// NumPy's view of an array on the host, with the types of ml_dtypes for bfloat16 and float8_e4m3.
/// Throws Error{invalid_argument} for an array on a GPU, Error{unsupported} without ml_dtypes.
nb::object numpy_values(nb::handle self, const char* call);
/// numpy_values; without ml_dtypes, the bits of its types as uint16 and uint8.
nb::object numpy_or_bits(nb::handle self);

/// __array__ of an array: `values`, converted as numpy.asarray asks.
nb::object as_numpy(const nb::object& values, nb::handle dtype, nb::handle copy);

/// The truth value of an Array of one element. Throws ValueError, as NumPy does, for other numbers
/// of elements; `type` names the class.
bool truth_of(nb::handle array, const char* type);

/// Defines __array__ of a class that holds arrays but is none, so that NumPy explains itself.
template <typename T>
void refuse_numpy(nb::class_<T>& type, const char* fields) {
  type.def(
      "__array__",
      [fields](nb::handle self, nb::handle, nb::handle) -> nb::object {
        throw nb::type_error(fmt::format("a {} is no array; take {}",
                                         nb::cast<std::string>(self.type().attr("__name__")),
                                         fields)
                                 .c_str());
      },
      nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none(),
      nb::sig("def __array__(self, dtype: shoal.typing.DType | None = None, copy: bool | None = "
              "None) -> typing.NoReturn"));
}

/// "float32 [3, 5] on cpu"
std::string summary_of(const TensorView& view);

/// A shoal.Array; None for an undefined tensor.
nb::object output(Tensor tensor, std::uintptr_t stream = 0);

/// The type variables of the signatures.
void bind_type_variables(nb::module_& module);
void bind_arrays(nb::module_& module);

}  // namespace shoal::python
