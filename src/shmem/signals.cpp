// SPDX-License-Identifier: Apache-2.0
// Put with signal, and signals.
#include "rma/address_checks.hpp"
#include "shmem/define.hpp"

using namespace shoal::shmem;

namespace {

Target signal_at(const Program& program, shmem_ctx_t ctx, const std::uint64_t* address, int pe) {
  const Target at = program.target(ctx, "sig_addr", address, sizeof *address, pe);
  shoal::require(at.offset % sizeof *address == 0, shoal::Code::invalid_argument,
                 "SHOAL-N820: sig_addr is {}; allowed: multiples of {}",
                 static_cast<const void*>(address), sizeof *address);
  return at;
}

shoal::SignalOp checked_op(int op) {
  shoal::require(
      op == SHMEM_SIGNAL_SET || op == SHMEM_SIGNAL_ADD, shoal::Code::invalid_argument,
      "SHOAL-N838: sig_op is {}; allowed: SHMEM_SIGNAL_SET ({}) or SHMEM_SIGNAL_ADD ({})", op,
      SHMEM_SIGNAL_SET, SHMEM_SIGNAL_ADD);
  return op == SHMEM_SIGNAL_SET ? shoal::SignalOp::set : shoal::SignalOp::add;
}

void put_signal(const char* call, shmem_ctx_t ctx, void* dest, const void* source,
                std::size_t nelems, std::size_t element, std::uint64_t* address,
                std::uint64_t signal, int op, int pe) noexcept {
  guarded(call, [&](Program& program) {
    const std::size_t bytes = bytes_of(nelems, element);
    const Target flag = signal_at(program, ctx, address, pe);
    const shoal::SignalOp operation = checked_op(op);
    if (bytes == 0) return flag.transport.signal(flag.pe, flag.offset, operation, signal);
    const Target to = program.target(ctx, "dest", dest, bytes, pe);
    shoal::detail::check_local("put_signal", source, bytes);
    to.transport.put_signal(to.pe, to.offset, source, bytes, flag.offset, operation, signal);
  });
}

void signal(const char* call, shmem_ctx_t ctx, std::uint64_t* address, std::uint64_t value, int op,
            int pe) noexcept {
  guarded(call, [&](Program& program) {
    const Target flag = signal_at(program, ctx, address, pe);
    flag.transport.signal(flag.pe, flag.offset, checked_op(op), value);
  });
}

}  // namespace

// The blocking and the non-blocking form, with and without a context.
#define DEFINE_FORM(TYPE, NAME, BYTES)                                                           \
  SHMEM_DEFINE(void, NAME,                                                                       \
               (TYPE * dest, const TYPE* source, size_t nelems, uint64_t* sig_addr,              \
                uint64_t signal, int sig_op, int pe)) {                                          \
    put_signal("shmem_" #NAME, SHMEM_CTX_DEFAULT, dest, source, nelems, BYTES, sig_addr, signal, \
               sig_op, pe);                                                                      \
  }                                                                                              \
  SHMEM_DEFINE(void, ctx_##NAME,                                                                 \
               (shmem_ctx_t ctx, TYPE * dest, const TYPE* source, size_t nelems,                 \
                uint64_t* sig_addr, uint64_t signal, int sig_op, int pe)) {                      \
    put_signal("shmem_ctx_" #NAME, ctx, dest, source, nelems, BYTES, sig_addr, signal, sig_op,   \
               pe);                                                                              \
  }
#define DEFINE_TYPE(TYPE, NAME)                      \
  DEFINE_FORM(TYPE, NAME##_put_signal, sizeof(TYPE)) \
  DEFINE_FORM(TYPE, NAME##_put_signal_nbi, sizeof(TYPE))
#define DEFINE_SIZE(BITS)                         \
  DEFINE_FORM(void, put##BITS##_signal, BITS / 8) \
  DEFINE_FORM(void, put##BITS##_signal_nbi, BITS / 8)
SHOAL_SHMEM_RMA_TYPES(DEFINE_TYPE)
SHOAL_SHMEM_SIZES(DEFINE_SIZE)
DEFINE_FORM(void, putmem_signal, 1)
DEFINE_FORM(void, putmem_signal_nbi, 1)

#define DEFINE_SIGNAL(NAME, OP)                                                                   \
  SHMEM_DEFINE(void, NAME, (uint64_t* sig_addr, uint64_t value, int pe)) {                        \
    signal("shmem_" #NAME, SHMEM_CTX_DEFAULT, sig_addr, value, OP, pe);                           \
  }                                                                                               \
  SHMEM_DEFINE(void, ctx_##NAME, (shmem_ctx_t ctx, uint64_t* sig_addr, uint64_t value, int pe)) { \
    signal("shmem_ctx_" #NAME, ctx, sig_addr, value, OP, pe);                                     \
  }
DEFINE_SIGNAL(signal_set, SHMEM_SIGNAL_SET)
DEFINE_SIGNAL(signal_add, SHMEM_SIGNAL_ADD)

SHMEM_DEFINE(uint64_t, signal_fetch, (const uint64_t* sig_addr)) {
  return guarded("shmem_signal_fetch", [&](Program& program) {
    const Target at = signal_at(program, SHMEM_CTX_DEFAULT, sig_addr, program.me);
    return at.transport.atomic(at.pe, shoal::AtomicOp::fetch, at.offset, 0, 0, sizeof *sig_addr);
  });
}
