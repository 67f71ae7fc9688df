// SPDX-License-Identifier: Apache-2.0
// word_kernels.hpp: operations on single words of GPU memory, as kernels of one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shoal/operation.hpp"

struct CUstream_st;

namespace shoal::transport {

/// The launchers, as a table that tests without a GPU replace. Each starts its work on `stream`, in
/// the current context, and returns nullptr or the text of the failure.
struct WordKernels {
  /// Loads the kernels. Otherwise a first launch may wait for other kernels of the context, which
  /// may be waiting for this PE.
  const char* (*load)();
  /// Atomic at system scope on a word of 4 or 8 bytes; `*before` (memory that host and GPU see)
  /// becomes the value before.
  const char* (*atomic)(CUstream_st* stream, void* word, AtomicOp op, std::uint64_t operand,
                        std::uint64_t compare, std::size_t width, std::uint64_t* before);
  /// Updates the word, as a release at system scope, after all earlier work on the stream.
  const char* (*signal)(CUstream_st* stream, std::uint64_t* word, SignalOp op, std::uint64_t value);
  /// Stores a word of 4 or 8 bytes whole.
  const char* (*store)(CUstream_st* stream, void* word, std::uint64_t value, std::size_t width);
};

const WordKernels& word_kernels();
/// Replaces the GPU's kernels by `table`; nullptr restores them. For tests, while no world is open.
void replace_word_kernels(const WordKernels* table);

}  // namespace shoal::transport
