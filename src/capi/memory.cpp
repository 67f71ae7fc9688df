// SPDX-License-Identifier: Apache-2.0
// memory.cpp: the symmetric heap, and one-sided operations on an address of this PE and a PE, as in
// OpenSHMEM.
#include "capi/objects.hpp"

namespace shoal::capi {
namespace {

World& open_world(shoal_world* world, const char* call) {
  return required(world, call, "world").value;
}

RemoteAddress remote(const World& world, const void* symmetric, Pe pe) {
  return {pe, world.heap().offset_of(symmetric)};
}

RemoteSpan<std::uint64_t> remote_flag(const World& world, const std::uint64_t* flag, Pe pe) {
  return {remote(world, flag, pe), 1};
}

}  // namespace
}  // namespace shoal::capi

using namespace shoal::capi;

shoal_status shoal_malloc(shoal_world* world, size_t bytes, void** pointer) {
  const char* call = "shoal_malloc";
  return guarded([&] {
    void*& out = required(pointer, call, "pointer");
    out = open_world(world, call).heap().malloc(bytes);
  });
}

shoal_status shoal_calloc(shoal_world* world, size_t count, size_t size, void** pointer) {
  const char* call = "shoal_calloc";
  return guarded([&] {
    void*& out = required(pointer, call, "pointer");
    out = open_world(world, call).heap().calloc(count, size);
  });
}

shoal_status shoal_free(shoal_world* world, void* pointer) {
  return guarded([&] { open_world(world, "shoal_free").heap().free(pointer); });
}

shoal_status shoal_peer_pointer(const shoal_world* world, const void* symmetric, int32_t pe,
                                void** pointer) {
  const char* call = "shoal_peer_pointer";
  return guarded([&] {
    void*& out = required(pointer, call, "pointer");
    out = required(world, call, "world").value.heap().peer_pointer(symmetric, pe);
  });
}

shoal_status shoal_put(shoal_world* world, void* target, const void* source, size_t bytes,
                       int32_t pe) {
  return guarded([&] {
    const shoal::World& opened = open_world(world, "shoal_put");
    opened.put_bytes(remote(opened, target, pe), source, bytes);
  });
}

shoal_status shoal_get(shoal_world* world, void* target, const void* source, size_t bytes,
                       int32_t pe) {
  return guarded([&] {
    const shoal::World& opened = open_world(world, "shoal_get");
    opened.get_bytes(target, remote(opened, source, pe), bytes);
  });
}

shoal_status shoal_put_nbi(shoal_world* world, void* target, const void* source, size_t bytes,
                           int32_t pe) {
  return guarded([&] {
    const shoal::World& opened = open_world(world, "shoal_put_nbi");
    opened.put_bytes_nbi(remote(opened, target, pe), source, bytes);
  });
}

shoal_status shoal_get_nbi(shoal_world* world, void* target, const void* source, size_t bytes,
                           int32_t pe) {
  return guarded([&] {
    const shoal::World& opened = open_world(world, "shoal_get_nbi");
    opened.get_bytes_nbi(target, remote(opened, source, pe), bytes);
  });
}

shoal_status shoal_fence(shoal_world* world) {
  return guarded([&] { open_world(world, "shoal_fence").fence(); });
}

shoal_status shoal_quiet(shoal_world* world) {
  return guarded([&] { open_world(world, "shoal_quiet").quiet(); });
}

shoal_status shoal_atomic(shoal_world* world, int32_t op, void* target, size_t width,
                          uint64_t operand, uint64_t compare, int32_t pe, uint64_t* before) {
  const char* call = "shoal_atomic";
  return guarded([&] {
    const shoal::World& opened = open_world(world, call);
    shoal::require(width == 4 || width == 8, shoal::Code::invalid_argument,
                   "SHOAL-N881: {}: width is {}; allowed: 4 or 8", call, width);
    const std::uint64_t found =
        opened.atomic_word(enumeration(op, shoal::AtomicOp::compare_swap, call, "op"),
                           remote(opened, target, pe), operand, compare, width);
    if (before != nullptr) *before = width == 8 ? found : found & 0xffff'ffffu;
  });
}

shoal_status shoal_share_buffer(shoal_world* world, const void* pointer, size_t bytes,
                                shoal_shared_buffer** buffer) {
  const char* call = "shoal_share_buffer";
  return guarded([&] {
    shoal_shared_buffer*& out = required(buffer, call, "buffer");
    const shoal::World& opened = open_world(world, call);
    out = new shoal_shared_buffer{opened.heap().share_buffer(pointer, bytes), opened.n_pes()};
  });
}

shoal_status shoal_shared_buffer_pointer(const shoal_shared_buffer* buffer, int32_t pe,
                                         void** pointer) {
  const char* call = "shoal_shared_buffer_pointer";
  return guarded([&] {
    void*& out = required(pointer, call, "pointer");
    const shoal_shared_buffer& shared = required(buffer, call, "buffer");
    shoal::require(pe >= 0 && pe < shared.n_pes, shoal::Code::invalid_argument,
                   "SHOAL-N881: {}: pe is {}; allowed: 0 to {}", call, pe, shared.n_pes - 1);
    out = shared.value.on(pe);
  });
}

shoal_status shoal_unshare_buffer(shoal_world* world, shoal_shared_buffer* buffer) {
  const char* call = "shoal_unshare_buffer";
  return guarded([&] {
    open_world(world, call).heap().unshare_buffer(required(buffer, call, "buffer").value);
    delete buffer;
  });
}

shoal_status shoal_shared_buffer_destroy(shoal_shared_buffer* buffer) {
  delete buffer;
  return SHOAL_OK;
}

shoal_status shoal_signal(shoal_world* world, uint64_t* flag, int32_t op, uint64_t value,
                          int32_t pe) {
  const char* call = "shoal_signal";
  return guarded([&] {
    const shoal::World& opened = open_world(world, call);
    opened.signal(remote_flag(opened, flag, pe), enumeration(op, shoal::SignalOp::add, call, "op"),
                  value);
  });
}

shoal_status shoal_put_signal(shoal_world* world, void* target, const void* source, size_t bytes,
                              uint64_t* flag, int32_t op, uint64_t value, int32_t pe) {
  const char* call = "shoal_put_signal";
  return guarded([&] {
    const shoal::World& opened = open_world(world, call);
    opened.put_signal_bytes(remote(opened, target, pe), source, bytes,
                            remote_flag(opened, flag, pe),
                            enumeration(op, shoal::SignalOp::add, call, "op"), value);
  });
}

shoal_status shoal_signal_fetch(shoal_world* world, const uint64_t* flag, uint64_t* value) {
  const char* call = "shoal_signal_fetch";
  return guarded([&] {
    std::uint64_t& out = required(value, call, "value");
    out = open_world(world, call).signal_fetch(flag);
  });
}

shoal_status shoal_signal_wait(shoal_world* world, const uint64_t* flag, int32_t compare,
                               uint64_t value, uint64_t* seen) {
  const char* call = "shoal_signal_wait";
  return guarded([&] {
    const std::uint64_t found =
        open_world(world, call)
            .signal_wait_until(
                flag, enumeration(compare, shoal::Compare::less_equal, call, "compare"), value);
    if (seen != nullptr) *seen = found;
  });
}
