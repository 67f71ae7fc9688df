// SPDX-License-Identifier: Apache-2.0
// streams.hpp: the order of GPU streams at the border to other libraries; nothing in a build
// without CUDA.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace shoal::python {

/// Makes what runs on the consumer's stream from now on wait for what is queued on `producer`.
/// `consumer` is the stream argument of __dlpack__ (the array API standard): None or 1: the legacy
/// default stream; 2: the stream of the thread; -1: no ordering is wanted; else a cudaStream_t.
void order_behind(nanobind::handle consumer, std::uintptr_t producer, int device);

/// Waits on the host for what is queued on a cudaStream_t. Throws Error{system}.
void wait_for_stream(std::uintptr_t stream, int device);

}  // namespace shoal::python
