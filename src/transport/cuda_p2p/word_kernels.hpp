// SPDX-License-Identifier: Apache-2.0
// word_kernels.hpp: operations on single words of GPU memory, as kernels of one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shoal/operation.hpp"

struct CUstream_st;

namespace shoal::transport {

/// The launchers, as a table so that tests without a GPU can run the transport. Each starts its
/// work on `stream`, in the current context, and returns nullptr or the text of what failed.
struct WordKernels {
  /// Loads the kernels: a first launch may otherwise wait for other kernels of the context to end,
  /// which may be waiting for this PE.
  const char* (*load)();
  /// Atomic at system scope on a word of 4 or 8 bytes; `*before` (memory that host and GPU see)
  /// becomes the value before.
  const char* (*atomic)(CUstream_st* stream, void* word, AtomicOp op, std::uint64_t operand,
                        std::uint64_t compare, std::size_t width, std::uint64_t* before);
  /// Updates the word after everything before it on the stream, for whoever acquires it at system
  /// scope.
  const char* (*signal)(CUstream_st* stream, std::uint64_t* word, SignalOp op, std::uint64_t value);
  /// Stores a word of 4 or 8 bytes whole.
  const char* (*store)(CUstream_st* stream, void* word, std::uint64_t value, std::size_t width);
};

const WordKernels& word_kernels();
/// Puts `table` in the place of the GPU's kernels, nullptr: those again. For tests, while no world
/// is open.
void replace_word_kernels(const WordKernels* table);

}  // namespace shoal::transport
