// SPDX-License-Identifier: Apache-2.0
// arrays/exchange.hpp: the C exchange table of DLPack 1.2, by which array types export a view
// without a Python call, at a tenth of the cost of __dlpack__.
// Source: https://dmlc.github.io/dlpack/latest/. torch has the table since 2.10.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>

#include "libraries.hpp"
#include "shoal/tensor.hpp"

namespace shoal::python {

/// Exchange of an array type: the functions of its table, which return 0 or set an error.
/// Either may be null.
struct Exchange {
  int (*view)(void* object, nanobind::dlpack::dltensor* view) = nullptr;
  int (*current_stream)(std::int32_t device_type, std::int32_t device, void** stream) = nullptr;
  /// Takes a DLManagedTensorVersioned.
  int (*to_object)(void* tensor, void** object) = nullptr;
  const Library* library = nullptr;
  bool has_gradients = false;  ///< whether its arrays have the attribute requires_grad, as in torch
};

/// Exchange of a type, cached.
const Exchange& exchange_of(PyTypeObject* type);

/// The legacy default stream, where 0 means no stream.
inline constexpr std::uintptr_t kLegacyStream = 1;

/// The view of an array whose type has the table, valid while the array lives and keeps its shape;
/// nullopt for other arrays. Throws python_error where the export fails.
std::optional<nanobind::dlpack::dltensor> exchange_view(nanobind::handle array);

/// An array of this type over `tensor`, which it owns; a null object where the type cannot make
/// one. The values must be ready on the current stream.
nanobind::object exchange_object(PyTypeObject* type, Tensor tensor);

/// The current stream (cudaStream_t) of the library of the array, in this thread; 1 is the legacy
/// default stream. nullopt where the library does not report it.
std::optional<std::uintptr_t> exchange_stream(nanobind::handle array,
                                              nanobind::dlpack::dltensor view);

}  // namespace shoal::python
