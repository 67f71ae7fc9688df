// SPDX-License-Identifier: Apache-2.0
// ep/signals.hpp: completion signals of a GEMM that runs while low_latency_combine sends its
// output.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "call_tensors.hpp"

namespace shoal::python {

/// The overlap arguments of `low_latency_combine`.
///
/// Two protocols exist. With `comp_signal`, blocks of `block_m` rows of an expert count up to
/// `threshold`: int32 with at least E / R * blocks elements, where blocks is ceil(rows of an expert
/// / block_m). Expert e has the `blocks` elements from e * blocks on, and with `packed_recv_count`
/// rows it uses the first ceil(count / block_m) of them. With `src_signals`, each expert counts up
/// to `src_signal_expect_value`: int32 or uint32 [E / R].
struct Overlap {
  nb::handle packed_recv_count, comp_signal, block_m, threshold, src_signals, src_value;

  /// Waits until the output of all rows that experts received is complete: the host for tensors on
  /// the CPU, else `stream`. rows: of each local expert. used_here: a function that records the
  /// use of a tensor on the current stream. timeout: in seconds. Raises RuntimeError for arguments
  /// that do not fit, and on the CPU TimeoutError where signals stay below their value; on a GPU
  /// the program's work there ends by a trap then.
  void wait(const CallTensors& tensors, std::int64_t experts, std::int64_t rows, Stream stream,
            const nb::object& used_here, double timeout) const;
};

}  // namespace shoal::python
