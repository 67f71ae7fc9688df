// streams.hpp: the order of GPU streams at the border to other libraries; nothing in a build without CUDA.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace shoal::python {

/// Makes what runs on the consumer's stream from now on wait for what is queued on `producer`. `consumer` is the stream
/// argument of __dlpack__ (the array API standard): None or 1: the legacy default stream; 2: the stream of the thread;
/// -1: no ordering is wanted; else a cudaStream_t.
void order_behind(nanobind::handle consumer, std::uintptr_t producer, int device);

}  // namespace shoal::python
