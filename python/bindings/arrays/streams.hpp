// SPDX-License-Identifier: Apache-2.0
// arrays/streams.hpp: GPU streams and events of other libraries, and ordering between them and
// Shoal, which has no effect in a build without CUDA.
#pragma once

#include <shoal/stream.hpp>

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>

namespace shoal::python {

/// Orders later work on the consumer's stream after the work queued on `producer`.
/// `consumer` is the stream argument of __dlpack__ (array API standard): None or 1: the legacy
/// default stream; 2: the per-thread default stream; -1: no ordering; else a cudaStream_t.
void order_behind(nanobind::handle consumer, std::uintptr_t producer, int device);

/// The cudaStream_t of `stream=` of `call`: a torch.cuda.Stream or its number. nullptr for None.
/// Throws Error{invalid_argument} for values of other types.
Stream stream_from(std::string_view call, nanobind::handle value);
/// The cudaEvent_t of argument `name`, in the same way. Throws Error{invalid_argument} for an event
/// that has no cudaEvent_t yet, too.
Event event_from(std::string_view call, std::string_view name, nanobind::handle value);

/// Waits on the host for the work queued on a cudaStream_t. Throws Error{system}.
void wait_for_stream(std::uintptr_t stream, int device);

}  // namespace shoal::python
