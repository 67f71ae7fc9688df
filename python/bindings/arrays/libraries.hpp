// SPDX-License-Identifier: Apache-2.0
// arrays/libraries.hpp: results as arrays of the library that the arguments came from.
//
// torch tensors in, torch tensors out, and so on for NumPy, JAX and CuPy. The memory is Shoal's: no
// copy is made, except where JAX cannot use the memory. A shoal.Array stands for the result where
// the arguments are arrays of other libraries.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "shoal/tensor.hpp"

namespace shoal::python {

/// An array library of Python.
struct Library;

/// The library of an array type, also of a derived one; nullptr: none of those above.
const Library* library_of_type(nanobind::handle type);
/// The library of an array; nullptr: none of those above.
const Library* library_of(nanobind::handle array);
/// The library of a dtype object; nullptr for names of dtypes. ml_dtypes belongs to NumPy.
const Library* library_of_dtype(nanobind::handle dtype);
/// The library of `like=` of `call`, an array or the module itself; nullptr for None. Throws
/// Error{invalid_argument} for other values.
const Library* library_like(std::string_view call, nanobind::handle like);

/// `tensor` as an array of the library, which owns it; a shoal.Array for nullptr, None for an
/// undefined tensor. On a GPU, the library's current stream waits for `stream`.
nanobind::object make_array(const Library* library, Tensor tensor, std::uintptr_t stream);

/// A field of a result. The array is made on first access, so that fields that are not read cost
/// nothing; on a GPU, each access makes the library's current stream wait for the call.
class Result {
 public:
  Result() = default;
  Result(const Library* library, Tensor tensor, std::uintptr_t stream)
      : library_(library), tensor_(std::move(tensor)), stream_(stream) {}
  /// The array that the caller passed for the result.
  explicit Result(nanobind::handle array) : array_(nanobind::borrow(array)) {}

  /// Undefined where the caller passed the array.
  const Tensor& tensor() const { return tensor_; }
  bool defined() const { return array_.is_valid() || tensor_.defined(); }
  /// The array; None where it is not defined.
  nanobind::object get() const;
  /// "float32 [3, 5] on cpu"
  std::string summary() const;

 private:
  const Library* library_ = nullptr;
  Tensor tensor_;
  std::uintptr_t stream_ = 0;
  mutable nanobind::object array_;
};

}  // namespace shoal::python
