// SPDX-License-Identifier: Apache-2.0
// The word kernels of fake_cuda.hpp: atomics of the host on single words.
#ifdef SHOAL_WITH_CUDA

#include <atomic>

#include "transport/cuda_p2p/word_kernels.hpp"

namespace shoal::test {
namespace {

const char* load() {
  return nullptr;
}

template <typename T>
std::uint64_t apply(void* target, AtomicOp op, T operand, T compare) {
  const std::atomic_ref<T> word(*static_cast<T*>(target));
  switch (op) {
    case AtomicOp::fetch:
      return word.load();
    case AtomicOp::set:
    case AtomicOp::swap:
      return word.exchange(operand);
    case AtomicOp::add:
      return word.fetch_add(operand);
    case AtomicOp::bit_and:
      return word.fetch_and(operand);
    case AtomicOp::bit_or:
      return word.fetch_or(operand);
    case AtomicOp::bit_xor:
      return word.fetch_xor(operand);
    case AtomicOp::compare_swap:
      word.compare_exchange_strong(compare, operand);
      return compare;
  }
  return 0;
}
const char* atomic(CUstream_st*, void* word, AtomicOp op, std::uint64_t operand,
                   std::uint64_t compare, std::size_t width, std::uint64_t* before) {
  *before = width == 8 ? apply<std::uint64_t>(word, op, operand, compare)
                       : apply<std::uint32_t>(word, op, static_cast<std::uint32_t>(operand),
                                              static_cast<std::uint32_t>(compare));
  return nullptr;
}
const char* signal(CUstream_st*, std::uint64_t* word, SignalOp op, std::uint64_t value) {
  apply<std::uint64_t>(word, op == SignalOp::set ? AtomicOp::set : AtomicOp::add, value, 0);
  return nullptr;
}
const char* store(CUstream_st*, void* word, std::uint64_t value, std::size_t width) {
  std::uint64_t before = 0;
  return atomic(nullptr, word, AtomicOp::set, value, 0, width, &before);
}
constexpr transport::WordKernels kKernels = {load, atomic, signal, store};

}  // namespace

const transport::WordKernels& fake_word_kernels();
const transport::WordKernels& fake_word_kernels() {
  return kKernels;
}

}  // namespace shoal::test

#endif
