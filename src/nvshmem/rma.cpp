// SPDX-License-Identifier: Apache-2.0
// Put and get, on the host and on streams. Every function is one of the functions on bytes below.
#include "nvshmem/define.hpp"
#include "pe/memory.hpp"
#include "rma/address_checks.hpp"

using namespace shoal::nvshmem;

namespace {

enum class Blocking : bool { no, yes };

void put(const char* call, void* dest, const void* source, std::size_t nelems, std::size_t element,
         int pe, Blocking blocking) noexcept {
  guarded(call, [&](Program& program) {
    const std::size_t bytes = bytes_of(nelems, element);
    if (bytes == 0) return program.check_pe(pe);
    const shoal::RemoteAddress to = program.remote("dest", dest, bytes, pe);
    if (blocking == Blocking::yes)
      program.world.put_bytes(to, source, bytes);
    else
      program.world.put_bytes_nbi(to, source, bytes);
  });
}

void get(const char* call, void* dest, const void* source, std::size_t nelems, std::size_t element,
         int pe, Blocking blocking) noexcept {
  guarded(call, [&](Program& program) {
    const std::size_t bytes = bytes_of(nelems, element);
    if (bytes == 0) return program.check_pe(pe);
    const shoal::RemoteAddress from = program.remote("source", source, bytes, pe);
    if (blocking == Blocking::yes)
      program.world.get_bytes(dest, from, bytes);
    else
      program.world.get_bytes_nbi(dest, from, bytes);
  });
}

void put(const char* call, void* dest, const void* source, std::size_t nelems, std::size_t element,
         int pe, cudaStream_t stream) noexcept {
  guarded(call, [&](Program& program) {
    const std::size_t bytes = bytes_of(nelems, element);
    if (bytes == 0) return program.check_pe(pe);
    program.on(stream).put_bytes(program.remote("dest", dest, bytes, pe), source, bytes);
  });
}

void get(const char* call, void* dest, const void* source, std::size_t nelems, std::size_t element,
         int pe, cudaStream_t stream) noexcept {
  guarded(call, [&](Program& program) {
    const std::size_t bytes = bytes_of(nelems, element);
    if (bytes == 0) return program.check_pe(pe);
    program.on(stream).get_bytes(dest, program.remote("source", source, bytes, pe), bytes);
  });
}

/// A get of the host, after what is queued on the stream.
void get_after(const char* call, void* dest, const void* source, std::size_t bytes, int pe,
               cudaStream_t stream) noexcept {
  guarded(call, [&](Program& program) {
    (void)program.on(stream);  // checks the stream, and that there is a GPU
    const shoal::RemoteAddress from = program.remote("source", source, bytes, pe);
    program.core.memory().cuda()->activate();
    program.core.memory().cuda()->synchronize(stream, call);
    program.check_kernels();
    program.world.get_bytes(dest, from, bytes);
  });
}

/// Strides in bytes; throws Error{invalid_argument}, naming the argument, unless it is at least 1.
struct Strides {
  Strides(std::ptrdiff_t dst, std::ptrdiff_t sst, std::size_t element)
      : to(checked("dst", dst, element)), from(checked("sst", sst, element)) {}
  static std::size_t checked(const char* argument, std::ptrdiff_t stride, std::size_t element) {
    shoal::require(stride >= 1, shoal::Code::invalid_argument,
                   "SHOAL-N863: {} is {}; allowed: at least 1", argument, stride);
    return bytes_of(static_cast<std::size_t>(stride), element);
  }
  std::size_t to, from;
};

template <typename Operations>
void put_strided(Program& program, const Operations& on, void* dest, const void* source,
                 std::ptrdiff_t dst, std::ptrdiff_t sst, std::size_t nelems, std::size_t element,
                 int pe) {
  if (nelems == 0) return program.check_pe(pe);
  const Strides strides(dst, sst, element);
  const std::size_t extent = shoal::detail::extent(element, strides.to, nelems);
  on.put_strided_bytes(program.remote("dest", dest, extent, pe), strides.to, source, strides.from,
                       element, nelems);
}
template <typename Operations>
void get_strided(Program& program, const Operations& on, void* dest, const void* source,
                 std::ptrdiff_t dst, std::ptrdiff_t sst, std::size_t nelems, std::size_t element,
                 int pe) {
  if (nelems == 0) return program.check_pe(pe);
  const Strides strides(dst, sst, element);
  const std::size_t extent = shoal::detail::extent(element, strides.from, nelems);
  on.get_strided_bytes(dest, strides.to, program.remote("source", source, extent, pe), strides.from,
                       element, nelems);
}

}  // namespace

#define DEFINE_MOVE(TYPE, DIRECTION, NAME, BYTES, BLOCKING)                                        \
  NVSHMEM_DEFINE(void, NAME, (TYPE * dest, const TYPE* source, size_t nelems, int pe)) {           \
    DIRECTION("nvshmem_" #NAME, dest, source, nelems, BYTES, pe, Blocking::BLOCKING);              \
  }                                                                                                \
  NVSHMEMX_DEFINE(void, NAME##_on_stream,                                                          \
                  (TYPE * dest, const TYPE* source, size_t nelems, int pe, cudaStream_t stream)) { \
    DIRECTION("nvshmemx_" #NAME "_on_stream", dest, source, nelems, BYTES, pe, stream);            \
  }
#define DEFINE_STRIDED(TYPE, FUNCTION, NAME, BYTES)                                              \
  NVSHMEM_DEFINE(                                                                                \
      void, NAME,                                                                                \
      (TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe)) {  \
    guarded("nvshmem_" #NAME, [&](Program& program) {                                            \
      FUNCTION(program, program.world, dest, source, dst, sst, nelems, BYTES, pe);               \
    });                                                                                          \
  }                                                                                              \
  NVSHMEMX_DEFINE(void, NAME##_on_stream,                                                        \
                  (TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, \
                   int pe, cudaStream_t stream)) {                                               \
    guarded("nvshmemx_" #NAME "_on_stream", [&](Program& program) {                              \
      FUNCTION(program, program.on(stream), dest, source, dst, sst, nelems, BYTES, pe);          \
    });                                                                                          \
  }

#define DEFINE_TYPE(TYPE, NAME)                                                                    \
  DEFINE_MOVE(TYPE, put, NAME##_put, sizeof(TYPE), yes)                                            \
  DEFINE_MOVE(TYPE, get, NAME##_get, sizeof(TYPE), yes)                                            \
  DEFINE_MOVE(TYPE, put, NAME##_put_nbi, sizeof(TYPE), no)                                         \
  DEFINE_MOVE(TYPE, get, NAME##_get_nbi, sizeof(TYPE), no)                                         \
  DEFINE_STRIDED(TYPE, put_strided, NAME##_iput, sizeof(TYPE))                                     \
  DEFINE_STRIDED(TYPE, get_strided, NAME##_iget, sizeof(TYPE))                                     \
  NVSHMEM_DEFINE(void, NAME##_p, (TYPE * dest, TYPE value, int pe)) {                              \
    put("nvshmem_" #NAME "_p", dest, &value, 1, sizeof value, pe, Blocking::yes);                  \
  }                                                                                                \
  NVSHMEM_DEFINE(TYPE, NAME##_g, (const TYPE* source, int pe)) {                                   \
    TYPE value{};                                                                                  \
    get("nvshmem_" #NAME "_g", &value, source, 1, sizeof value, pe, Blocking::yes);                \
    return value;                                                                                  \
  }                                                                                                \
  NVSHMEMX_DEFINE(TYPE, NAME##_g_on_stream, (const TYPE* source, int pe, cudaStream_t stream)) {   \
    TYPE value{};                                                                                  \
    get_after("nvshmemx_" #NAME "_g_on_stream", &value, source, sizeof value, pe, stream);         \
    return value;                                                                                  \
  }                                                                                                \
  NVSHMEMX_DEFINE(void, NAME##_p_on_stream,                                                        \
                  (TYPE * dest, TYPE value, int pe, cudaStream_t stream)) {                        \
    guarded("nvshmemx_" #NAME "_p_on_stream", [&](Program& program) {                              \
      program.on(stream).put_value(                                                                \
          shoal::RemoteSpan<TYPE>{program.remote_word("dest", dest, sizeof value, pe), 1}, value); \
    });                                                                                            \
  }
#define DEFINE_SIZE(BITS)                                 \
  DEFINE_MOVE(void, put, put##BITS, BITS / 8, yes)        \
  DEFINE_MOVE(void, get, get##BITS, BITS / 8, yes)        \
  DEFINE_MOVE(void, put, put##BITS##_nbi, BITS / 8, no)   \
  DEFINE_MOVE(void, get, get##BITS##_nbi, BITS / 8, no)   \
  DEFINE_STRIDED(void, put_strided, iput##BITS, BITS / 8) \
  DEFINE_STRIDED(void, get_strided, iget##BITS, BITS / 8)
SHOAL_NVSHMEM_RMA_TYPES(DEFINE_TYPE)
SHOAL_SHMEM_SIZES(DEFINE_SIZE)
DEFINE_MOVE(void, put, putmem, 1, yes)
DEFINE_MOVE(void, get, getmem, 1, yes)
DEFINE_MOVE(void, put, putmem_nbi, 1, no)
DEFINE_MOVE(void, get, getmem_nbi, 1, no)
