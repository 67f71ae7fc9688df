// exchange.hpp: the C exchange table of DLPack 1.2 or newer, by which array types hand out a view without a Python call
// (https://dmlc.github.io/dlpack/latest/; torch has it since 2.10): a tenth of what __dlpack__ costs.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>

namespace shoal::python {

/// The view of an array whose type has the table; valid while the array lives and is not reshaped. nullopt for others.
/// Throws python_error where the array refuses.
std::optional<nanobind::dlpack::dltensor> exchange_view(nanobind::handle array);

/// The stream (cudaStream_t) that the library of such an array queues work on now, in this thread; 1 stands for the
/// legacy default stream. nullopt where the library does not say.
std::optional<std::uintptr_t> exchange_stream(nanobind::handle array, nanobind::dlpack::dltensor view);

}  // namespace shoal::python
