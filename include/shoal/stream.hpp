// SPDX-License-Identifier: Apache-2.0
// shoal/stream.hpp: streams and events of CUDA as opaque pointers. Needs no CUDA header.
//
//   cudaStream_t stream;
//   cudaStreamCreate(&stream);
//   shoal::Stream same = stream;  // the types are identical
#pragma once

#include <shoal/config.hpp>

struct CUstream_st;
struct CUevent_st;

namespace shoal {

/// cudaStream_t, CUstream. nullptr is CUDA's legacy default stream, unless a call states otherwise.
/// Streams and events belong to the caller.
using Stream = CUstream_st*;
/// cudaEvent_t, CUevent.
using Event = CUevent_st*;

}  // namespace shoal
