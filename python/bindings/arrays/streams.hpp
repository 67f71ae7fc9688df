// SPDX-License-Identifier: Apache-2.0
// arrays/streams.hpp: ordering of GPU streams between Shoal and other libraries; without effect in
// a build without CUDA.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace shoal::python {

/// Orders later work on the consumer's stream after the work queued on `producer`.
/// `consumer` is the stream argument of __dlpack__ (array API standard): None or 1: the legacy
/// default stream; 2: the per-thread default stream; -1: no ordering; else a cudaStream_t.
void order_behind(nanobind::handle consumer, std::uintptr_t producer, int device);

/// Waits on the host for the work queued on a cudaStream_t. Throws Error{system}.
void wait_for_stream(std::uintptr_t stream, int device);

}  // namespace shoal::python
