// SPDX-License-Identifier: Apache-2.0
// Single words of GPU memory, local or a peer's: one thread per launch. A signal is a release at
// system scope; earlier copies on the stream are complete when the kernel starts. The result of an
// atomic goes to pinned host memory; the caller reads it after it has synchronized with the stream.
#include <atomic>
#include <cuda/atomic>

#include "transport/cuda_p2p/word_kernels.hpp"

namespace shoal::transport {
namespace {

template <typename T>
using Word = cuda::atomic_ref<T, cuda::thread_scope_system>;

template <typename T>
__global__ void atomic_kernel(T* target, AtomicOp op, T operand, T compare, std::uint64_t* before) {
  const Word<T> word(*target);
  constexpr auto order = cuda::std::memory_order_acq_rel;
  T seen = compare;
  switch (op) {
    case AtomicOp::fetch:
      seen = word.load(cuda::std::memory_order_acquire);
      break;
    case AtomicOp::set:
    case AtomicOp::swap:
      seen = word.exchange(operand, order);
      break;
    case AtomicOp::add:
      seen = word.fetch_add(operand, order);
      break;
    case AtomicOp::bit_and:
      seen = word.fetch_and(operand, order);
      break;
    case AtomicOp::bit_or:
      seen = word.fetch_or(operand, order);
      break;
    case AtomicOp::bit_xor:
      seen = word.fetch_xor(operand, order);
      break;
    case AtomicOp::compare_swap:
      word.compare_exchange_strong(seen, operand, order, cuda::std::memory_order_acquire);
      break;
  }
  *before = seen;
}

__global__ void signal_kernel(std::uint64_t* target, SignalOp op, std::uint64_t value) {
  __threadfence_system();
  const Word<std::uint64_t> word(*target);
  if (op == SignalOp::set) {
    word.store(value, cuda::std::memory_order_release);
  } else {
    word.fetch_add(value, cuda::std::memory_order_release);
  }
}

template <typename T>
__global__ void store_kernel(T* target, T value) {
  Word<T>(*target).store(value, cuda::std::memory_order_release);
}

const char* text_of(cudaError_t result) {
  return result == cudaSuccess ? nullptr : cudaGetErrorString(result);
}

const char* load() {
  const void* const kernels[] = {reinterpret_cast<const void*>(atomic_kernel<std::uint32_t>),
                                 reinterpret_cast<const void*>(atomic_kernel<std::uint64_t>),
                                 reinterpret_cast<const void*>(signal_kernel),
                                 reinterpret_cast<const void*>(store_kernel<std::uint32_t>),
                                 reinterpret_cast<const void*>(store_kernel<std::uint64_t>)};
  for (const void* const kernel : kernels) {
    cudaFuncAttributes attributes{};
    if (const cudaError_t result = cudaFuncGetAttributes(&attributes, kernel);
        result != cudaSuccess)
      return text_of(result);
  }
  return nullptr;
}

template <typename T>
void launch_atomic(CUstream_st* stream, void* word, AtomicOp op, std::uint64_t operand,
                   std::uint64_t compare, std::uint64_t* before) {
  atomic_kernel<<<1, 1, 0, stream>>>(static_cast<T*>(word), op, static_cast<T>(operand),
                                     static_cast<T>(compare), before);
}

const char* atomic(CUstream_st* stream, void* word, AtomicOp op, std::uint64_t operand,
                   std::uint64_t compare, std::size_t width, std::uint64_t* before) {
  if (width == sizeof(std::uint64_t)) {
    launch_atomic<std::uint64_t>(stream, word, op, operand, compare, before);
  } else {
    launch_atomic<std::uint32_t>(stream, word, op, operand, compare, before);
  }
  return text_of(cudaGetLastError());
}

const char* signal(CUstream_st* stream, std::uint64_t* word, SignalOp op, std::uint64_t value) {
  signal_kernel<<<1, 1, 0, stream>>>(word, op, value);
  return text_of(cudaGetLastError());
}

const char* store(CUstream_st* stream, void* word, std::uint64_t value, std::size_t width) {
  if (width == sizeof(std::uint64_t)) {
    store_kernel<<<1, 1, 0, stream>>>(static_cast<std::uint64_t*>(word), value);
  } else {
    store_kernel<<<1, 1, 0, stream>>>(static_cast<std::uint32_t*>(word),
                                      static_cast<std::uint32_t>(value));
  }
  return text_of(cudaGetLastError());
}

constexpr WordKernels kKernels = {load, atomic, signal, store};
std::atomic<const WordKernels*> replacement{nullptr};

}  // namespace

const WordKernels& word_kernels() {
  const WordKernels* const table = replacement.load();
  return table == nullptr ? kKernels : *table;
}

void replace_word_kernels(const WordKernels* table) {
  replacement = table;
}

}  // namespace shoal::transport
