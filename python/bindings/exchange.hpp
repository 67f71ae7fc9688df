// SPDX-License-Identifier: Apache-2.0
// exchange.hpp: the C exchange table of DLPack 1.2 or newer, by which array types hand out a view
// without a Python call (https://dmlc.github.io/dlpack/latest/; torch has it since 2.10): a tenth
// of what __dlpack__ costs.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>

namespace shoal::python {

/// Functions of the table of one type of arrays; either may be null. They return 0, or else have
/// set a Python error.
struct Exchange {
  int (*view)(void* object, nanobind::dlpack::dltensor* view) = nullptr;
  int (*current_stream)(std::int32_t device_type, std::int32_t device, void** stream) = nullptr;
};

/// Those of a type, looked up once.
Exchange exchange_of(PyTypeObject* type);

/// How the legacy default stream is written where 0 stands for no stream.
inline constexpr std::uintptr_t kLegacyStream = 1;

/// The view of an array whose type has the table; valid while the array lives and is not reshaped.
/// nullopt for others. Throws python_error where the array refuses.
std::optional<nanobind::dlpack::dltensor> exchange_view(nanobind::handle array);

/// The stream (cudaStream_t) that the library of such an array queues work on now, in this thread;
/// 1 stands for the legacy default stream. nullopt where the library does not say.
std::optional<std::uintptr_t> exchange_stream(nanobind::handle array,
                                              nanobind::dlpack::dltensor view);

}  // namespace shoal::python
