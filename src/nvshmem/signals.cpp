// SPDX-License-Identifier: Apache-2.0
// Put with signal, and signals; waits on streams.
#include "nvshmem/define.hpp"

using namespace shoal::nvshmem;

namespace {

using SignalSpan = shoal::RemoteSpan<std::uint64_t>;

SignalSpan signal_at(const Program& program, const std::uint64_t* address, int pe) {
  return {program.remote_word("sig_addr", address, sizeof *address, pe), 1};
}

/// `on`: the world, or operations on a stream.
template <typename Operations>
void put_signal(Program& program, const Operations& on, void* dest, const void* source,
                std::size_t nelems, std::size_t element, const std::uint64_t* sig_addr,
                std::uint64_t value, int sig_op, int pe) {
  const shoal::SignalOp op = signal_op_of(sig_op);
  const SignalSpan flag = signal_at(program, sig_addr, pe);
  const std::size_t bytes = bytes_of(nelems, element);
  if (bytes == 0) return on.signal(flag, op, value);
  on.put_signal_bytes(program.remote("dest", dest, bytes, pe), source, bytes, flag, op, value);
}

}  // namespace

#define DEFINE_FORM(TYPE, NAME, BYTES)                                                          \
  NVSHMEM_DEFINE(void, NAME,                                                                    \
                 (TYPE * dest, const TYPE* source, size_t nelems, uint64_t* sig_addr,           \
                  uint64_t signal, int sig_op, int pe)) {                                       \
    guarded("nvshmem_" #NAME, [&](Program& program) {                                           \
      put_signal(program, program.world, dest, source, nelems, BYTES, sig_addr, signal, sig_op, \
                 pe);                                                                           \
    });                                                                                         \
  }                                                                                             \
  NVSHMEMX_DEFINE(void, NAME##_on_stream,                                                       \
                  (TYPE * dest, const TYPE* source, size_t nelems, uint64_t* sig_addr,          \
                   uint64_t signal, int sig_op, int pe, cudaStream_t stream)) {                 \
    guarded("nvshmemx_" #NAME "_on_stream", [&](Program& program) {                             \
      put_signal(program, program.on(stream), dest, source, nelems, BYTES, sig_addr, signal,    \
                 sig_op, pe);                                                                   \
    });                                                                                         \
  }
#define DEFINE_TYPE(TYPE, NAME)                      \
  DEFINE_FORM(TYPE, NAME##_put_signal, sizeof(TYPE)) \
  DEFINE_FORM(TYPE, NAME##_put_signal_nbi, sizeof(TYPE))
#define DEFINE_SIZE(BITS)                         \
  DEFINE_FORM(void, put##BITS##_signal, BITS / 8) \
  DEFINE_FORM(void, put##BITS##_signal_nbi, BITS / 8)
SHOAL_NVSHMEM_RMA_TYPES(DEFINE_TYPE)
SHOAL_SHMEM_SIZES(DEFINE_SIZE)
DEFINE_FORM(void, putmem_signal, 1)
DEFINE_FORM(void, putmem_signal_nbi, 1)

NVSHMEM_DEFINE(uint64_t, signal_fetch, (uint64_t* sig_addr)) {
  return guarded("nvshmem_signal_fetch", [&](Program& program) {
    return program.world.atomic_fetch(signal_at(program, sig_addr, program.me));
  });
}
NVSHMEMX_DEFINE(void, signal_op, (uint64_t* sig_addr, uint64_t signal, int sig_op, int pe)) {
  guarded("nvshmemx_signal_op", [&](Program& program) {
    const shoal::SignalOp op = signal_op_of(sig_op);
    program.world.signal(signal_at(program, sig_addr, pe), op, signal);
  });
}
NVSHMEMX_DEFINE(void, signal_op_on_stream,
                (uint64_t* sig_addr, uint64_t signal, int sig_op, int pe, cudaStream_t stream)) {
  guarded("nvshmemx_signal_op_on_stream", [&](Program& program) {
    const shoal::SignalOp op = signal_op_of(sig_op);
    program.on(stream).signal(signal_at(program, sig_addr, pe), op, signal);
  });
}
NVSHMEMX_DEFINE(void, signal_wait_until_on_stream,
                (uint64_t* sig_addr, int cmp, uint64_t value, cudaStream_t stream)) {
  guarded("nvshmemx_signal_wait_until_on_stream", [&](Program& program) {
    const shoal::Compare compare = compare_of(cmp);
    program.on(stream).wait_until(sig_addr, compare, value);
  });
}
#define DEFINE_WAIT(TYPE, NAME)                                                \
  NVSHMEMX_DEFINE(void, NAME##_wait_until_on_stream,                           \
                  (TYPE * ivar, int cmp, TYPE value, cudaStream_t stream)) {   \
    guarded("nvshmemx_" #NAME "_wait_until_on_stream", [&](Program& program) { \
      const shoal::Compare compare = compare_of(cmp);                          \
      program.on(stream).wait_until<TYPE>(ivar, compare, value);               \
    });                                                                        \
  }
SHOAL_SHMEM_AMO_TYPES(DEFINE_WAIT)
