// SPDX-License-Identifier: Apache-2.0
// Put and get. Every routine is one of the functions on bytes below.
#include "rma/address_checks.hpp"
#include "shmem/define.hpp"

using namespace shoal::shmem;

namespace {

enum class Blocking : bool { no, yes };

void put(const char* call, shmem_ctx_t ctx, void* dest, const void* source, std::size_t nelems,
         std::size_t element, int pe, Blocking blocking) noexcept {
  guarded(call, [&](Program& program) {
    const std::size_t bytes = bytes_of(nelems, element);
    if (bytes == 0) return program.check_pe(program.world_pe(ctx, pe));
    const Target to = program.target(ctx, "dest", dest, bytes, pe);
    shoal::detail::check_local("put", source, bytes);
    if (blocking == Blocking::yes)
      to.transport.put(to.pe, to.offset, source, bytes);
    else
      to.transport.put_nbi(to.pe, to.offset, source, bytes);
  });
}

void get(const char* call, shmem_ctx_t ctx, void* dest, const void* source, std::size_t nelems,
         std::size_t element, int pe, Blocking blocking) noexcept {
  guarded(call, [&](Program& program) {
    const std::size_t bytes = bytes_of(nelems, element);
    if (bytes == 0) return program.check_pe(program.world_pe(ctx, pe));
    const Target from = program.target(ctx, "source", source, bytes, pe);
    shoal::detail::check_local("get", dest, bytes);
    if (blocking == Blocking::yes) {
      from.transport.get(dest, from.pe, from.offset, bytes);
    } else {
      from.transport.get_nbi(dest, from.pe, from.offset, bytes);
      if (ctx != SHMEM_CTX_DEFAULT)
        if (shoal_shmem_ctx& context = program.context(ctx); context.records)
          context.fetches |= !program.is_mapped(from.pe);
    }
  });
}

/// `count` blocks of `block` bytes; the starts of two blocks are strides of `element` bytes apart.
struct Layout {
  std::ptrdiff_t dst, sst;
  std::size_t element, block, count;
};

/// Bytes from one block to the next.
std::size_t checked_stride(const char* argument, std::ptrdiff_t stride, const Layout& layout) {
  const std::size_t least = layout.block / layout.element;
  shoal::require(stride >= 1 && static_cast<std::size_t>(stride) >= least,
                 shoal::Code::invalid_argument, "SHOAL-N824: {} is {}; allowed: at least {}",
                 argument, stride, least);
  return bytes_of(static_cast<std::size_t>(stride), layout.element);
}

void put_strided(const char* call, shmem_ctx_t ctx, void* dest, const void* source, int pe,
                 const Layout& layout) noexcept {
  guarded(call, [&](Program& program) {
    if (layout.count == 0 || layout.block == 0) return program.check_pe(program.world_pe(ctx, pe));
    const std::size_t to = checked_stride("dst", layout.dst, layout);
    const std::size_t from = checked_stride("sst", layout.sst, layout);
    const std::size_t extent = shoal::detail::extent(layout.block, to, layout.count);
    const Target target = program.target(ctx, "dest", dest, extent, pe);
    shoal::detail::check_local("put_strided", source, layout.count);
    target.transport.put_strided(target.pe, target.offset, to, source, from, layout.block,
                                 layout.count);
  });
}

void get_strided(const char* call, shmem_ctx_t ctx, void* dest, const void* source, int pe,
                 const Layout& layout) noexcept {
  guarded(call, [&](Program& program) {
    if (layout.count == 0 || layout.block == 0) return program.check_pe(program.world_pe(ctx, pe));
    const std::size_t to = checked_stride("dst", layout.dst, layout);
    const std::size_t from = checked_stride("sst", layout.sst, layout);
    const std::size_t extent = shoal::detail::extent(layout.block, from, layout.count);
    const Target target = program.target(ctx, "source", source, extent, pe);
    shoal::detail::check_local("get_strided", dest, layout.count);
    target.transport.get_strided(dest, to, target.pe, target.offset, from, layout.block,
                                 layout.count);
  });
}

}  // namespace

// put and get: DIRECTION is put or get, NAME the part of the name before the direction, TYPE the
// type of the pointers, BYTES the size of an element.
#define DEFINE_MOVE(TYPE, DIRECTION, NAME, BYTES, BLOCKING)                                  \
  SHMEM_DEFINE(void, NAME, (TYPE * dest, const TYPE* source, size_t nelems, int pe)) {       \
    DIRECTION("shmem_" #NAME, SHMEM_CTX_DEFAULT, dest, source, nelems, BYTES, pe, BLOCKING); \
  }                                                                                          \
  SHMEM_DEFINE(void, ctx_##NAME,                                                             \
               (shmem_ctx_t ctx, TYPE * dest, const TYPE* source, size_t nelems, int pe)) {  \
    DIRECTION("shmem_ctx_" #NAME, ctx, dest, source, nelems, BYTES, pe, BLOCKING);           \
  }
#define DEFINE_STRIDED(TYPE, DIRECTION, NAME, BYTES)                                            \
  SHMEM_DEFINE(                                                                                 \
      void, NAME,                                                                               \
      (TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe)) { \
    DIRECTION("shmem_" #NAME, SHMEM_CTX_DEFAULT, dest, source, pe,                              \
              {dst, sst, BYTES, BYTES, nelems});                                                \
  }                                                                                             \
  SHMEM_DEFINE(void, ctx_##NAME,                                                                \
               (shmem_ctx_t ctx, TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, \
                size_t nelems, int pe)) {                                                       \
    DIRECTION("shmem_ctx_" #NAME, ctx, dest, source, pe, {dst, sst, BYTES, BYTES, nelems});     \
  }
#define DEFINE_BLOCK_STRIDED(TYPE, DIRECTION, NAME, BYTES)                                      \
  SHMEM_DEFINE(void, NAME,                                                                      \
               (TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, size_t bsize,    \
                size_t nblocks, int pe)) {                                                      \
    DIRECTION("shmem_" #NAME, SHMEM_CTX_DEFAULT, dest, source, pe,                              \
              {dst, sst, BYTES, bytes_of(bsize, BYTES), nblocks});                              \
  }                                                                                             \
  SHMEM_DEFINE(void, ctx_##NAME,                                                                \
               (shmem_ctx_t ctx, TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, \
                size_t bsize, size_t nblocks, int pe)) {                                        \
    DIRECTION("shmem_ctx_" #NAME, ctx, dest, source, pe,                                        \
              {dst, sst, BYTES, bytes_of(bsize, BYTES), nblocks});                              \
  }

#define DEFINE_TYPE(TYPE, NAME)                                                                    \
  DEFINE_MOVE(TYPE, put, NAME##_put, sizeof(TYPE), Blocking::yes)                                  \
  DEFINE_MOVE(TYPE, get, NAME##_get, sizeof(TYPE), Blocking::yes)                                  \
  DEFINE_MOVE(TYPE, put, NAME##_put_nbi, sizeof(TYPE), Blocking::no)                               \
  DEFINE_MOVE(TYPE, get, NAME##_get_nbi, sizeof(TYPE), Blocking::no)                               \
  DEFINE_STRIDED(TYPE, put_strided, NAME##_iput, sizeof(TYPE))                                     \
  DEFINE_STRIDED(TYPE, get_strided, NAME##_iget, sizeof(TYPE))                                     \
  DEFINE_BLOCK_STRIDED(TYPE, put_strided, NAME##_ibput, sizeof(TYPE))                              \
  DEFINE_BLOCK_STRIDED(TYPE, get_strided, NAME##_ibget, sizeof(TYPE))                              \
  SHMEM_DEFINE(void, NAME##_p, (TYPE * dest, TYPE value, int pe)) {                                \
    put("shmem_" #NAME "_p", SHMEM_CTX_DEFAULT, dest, &value, 1, sizeof value, pe, Blocking::yes); \
  }                                                                                                \
  SHMEM_DEFINE(void, ctx_##NAME##_p, (shmem_ctx_t ctx, TYPE * dest, TYPE value, int pe)) {         \
    put("shmem_ctx_" #NAME "_p", ctx, dest, &value, 1, sizeof value, pe, Blocking::yes);           \
  }                                                                                                \
  SHMEM_DEFINE(TYPE, NAME##_g, (const TYPE* source, int pe)) {                                     \
    TYPE value;                                                                                    \
    get("shmem_" #NAME "_g", SHMEM_CTX_DEFAULT, &value, source, 1, sizeof value, pe,               \
        Blocking::yes);                                                                            \
    return value;                                                                                  \
  }                                                                                                \
  SHMEM_DEFINE(TYPE, ctx_##NAME##_g, (shmem_ctx_t ctx, const TYPE* source, int pe)) {              \
    TYPE value;                                                                                    \
    get("shmem_ctx_" #NAME "_g", ctx, &value, source, 1, sizeof value, pe, Blocking::yes);         \
    return value;                                                                                  \
  }
SHOAL_SHMEM_RMA_TYPES(DEFINE_TYPE)

#define DEFINE_SIZE(BITS)                                         \
  DEFINE_MOVE(void, put, put##BITS, BITS / 8, Blocking::yes)      \
  DEFINE_MOVE(void, get, get##BITS, BITS / 8, Blocking::yes)      \
  DEFINE_MOVE(void, put, put##BITS##_nbi, BITS / 8, Blocking::no) \
  DEFINE_MOVE(void, get, get##BITS##_nbi, BITS / 8, Blocking::no) \
  DEFINE_STRIDED(void, put_strided, iput##BITS, BITS / 8)         \
  DEFINE_STRIDED(void, get_strided, iget##BITS, BITS / 8)         \
  DEFINE_BLOCK_STRIDED(void, put_strided, ibput##BITS, BITS / 8)  \
  DEFINE_BLOCK_STRIDED(void, get_strided, ibget##BITS, BITS / 8)
SHOAL_SHMEM_SIZES(DEFINE_SIZE)

DEFINE_MOVE(void, put, putmem, 1, Blocking::yes)
DEFINE_MOVE(void, get, getmem, 1, Blocking::yes)
DEFINE_MOVE(void, put, putmem_nbi, 1, Blocking::no)
DEFINE_MOVE(void, get, getmem_nbi, 1, Blocking::no)
