// SPDX-License-Identifier: Apache-2.0
#include "transport/proxy/requests.hpp"

#include <fmt/format.h>

#include "transport/proxy/thread_platform.hpp"

namespace shoal::transport::proxy {

using device::proxy::Kind;
using device::proxy::kResult;
using device::proxy::kSignalAdd;
using device::proxy::kSignalSet;
using device::proxy::Request;

namespace {

/// True if [offset, offset + bytes) leaves a heap of `heap_bytes` bytes.
bool leaves(std::uint64_t offset, std::uint64_t bytes, std::uint64_t heap_bytes) noexcept {
  return offset > heap_bytes || bytes > heap_bytes - offset;
}

std::optional<std::string> range_fault(const char* what, std::uint64_t offset, std::uint64_t bytes,
                                       std::uint64_t heap_bytes) {
  if (!leaves(offset, bytes, heap_bytes)) return std::nullopt;
  return fmt::format(
      "SHOAL-N342: the request names {} of {} bytes at heap offset {}; the heap has {} bytes", what,
      bytes, offset, heap_bytes);
}

std::optional<std::string> word_fault(const char* what, std::uint64_t offset, std::uint64_t width,
                                      std::uint64_t heap_bytes) {
  if (offset % width != 0)
    return fmt::format(
        "SHOAL-N342: the request names {} at heap offset {}; allowed: multiples of {}", what,
        offset, width);
  return range_fault(what, offset, width, heap_bytes);
}

std::optional<std::string> data_fault(const Request& request, std::uint64_t heap_bytes) {
  const unsigned width = request.width;
  switch (request.kind) {
    case Kind::put:
    case Kind::get:
      if (request.bytes != 0 &&
          (request.source == 0 || request.source + request.bytes < request.source))
        return fmt::format("SHOAL-N342: the request names a {} of {} bytes at address {:#x}",
                           request.kind == Kind::put ? "source" : "target", request.bytes,
                           request.source);
      return range_fault(request.kind == Kind::put ? "a target" : "a source", request.offset,
                         request.bytes, heap_bytes);
    case Kind::put_value:
      if (width != 1 && width != 2 && width != 4 && width != 8)
        return fmt::format("SHOAL-N342: the request names a value of {} bytes; allowed: 1, 2, 4, 8",
                           width);
      return range_fault("a target", request.offset, width, heap_bytes);
    case Kind::atomic:
      if (width != 4 && width != 8)
        return fmt::format("SHOAL-N342: the request names a word of {} bytes; allowed: 4, 8",
                           width);
      if (request.op > AtomicOp::compare_swap)
        return fmt::format("SHOAL-N342: the request names atomic operation {}; allowed: 0 to {}",
                           static_cast<int>(request.op), static_cast<int>(AtomicOp::compare_swap));
      return word_fault("a word", request.offset, width, heap_bytes);
    case Kind::signal:
      if ((request.flags & (kSignalSet | kSignalAdd)) == 0)
        return fmt::format(
            "SHOAL-N342: the request names a signal with flags {:#x}, which neither set nor add",
            request.flags);
      break;
    case Kind::fence:
      break;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Request> read_request(const device::proxy::Ring& ring,
                                    std::uint64_t position) noexcept {
  std::uint64_t* const words = ring.slots[position % ring.n_slots].words;
  const std::uint64_t tag = ThreadPlatform::load_acquire_system(words + device::proxy::kTagWord);
  if (tag >> 32 != device::proxy::lap_of(position, ring.n_slots)) return std::nullopt;
  Request request;
  request.kind = static_cast<Kind>(tag & 0xff);
  request.op = static_cast<AtomicOp>(tag >> 8 & 0xff);
  request.width = static_cast<std::uint8_t>(tag >> 16);
  request.flags = static_cast<std::uint8_t>(tag >> 24);
  request.offset = ThreadPlatform::load_relaxed_system(words + 0);
  request.source = request.operand = ThreadPlatform::load_relaxed_system(words + 1);
  request.bytes = request.compare = ThreadPlatform::load_relaxed_system(words + 2);
  request.signal_offset = ThreadPlatform::load_relaxed_system(words + 3);
  request.signal_value = ThreadPlatform::load_relaxed_system(words + 4);
  request.pe = static_cast<Pe>(ThreadPlatform::load_relaxed_system(words + 5));
  return request;
}

std::optional<std::string> fault_of(const Request& request, Pe n_pes, std::uint64_t heap_bytes) {
  constexpr std::uint8_t kSignal = kSignalSet | kSignalAdd;
  if (request.kind < Kind::put || request.kind > Kind::get)
    return fmt::format("SHOAL-N342: the request names kind {}; allowed: {} to {}",
                       static_cast<int>(request.kind), static_cast<int>(Kind::put),
                       static_cast<int>(Kind::get));
  if (request.kind == Kind::fence) return std::nullopt;
  if (request.pe < 0 || request.pe >= n_pes)
    return fmt::format("SHOAL-N342: the request names PE {}; allowed: 0 to {}", request.pe,
                       n_pes - 1);
  const bool atomic = request.kind == Kind::atomic;
  const bool signals_nothing = atomic || request.kind == Kind::get;
  if ((request.flags & kSignal) == kSignal || (request.flags & ~(kSignal | kResult)) != 0 ||
      ((request.flags & kResult) != 0) > atomic ||
      ((request.flags & kSignal) != 0 && signals_nothing))
    return fmt::format("SHOAL-N342: the request names flags {:#x}, which do not fit kind {}",
                       request.flags, static_cast<int>(request.kind));
  if (auto fault = data_fault(request, heap_bytes)) return fault;
  if ((request.flags & kSignal) == 0) return std::nullopt;
  return word_fault("a signal", request.signal_offset, sizeof(std::uint64_t), heap_bytes);
}

std::string describe(const Request& request) {
  const bool signals = (request.flags & (kSignalSet | kSignalAdd)) != 0;
  switch (request.kind) {
    case Kind::put:
      return fmt::format("{} of {} bytes to PE {}", signals ? "put_signal" : "put", request.bytes,
                         request.pe);
    case Kind::get:
      return fmt::format("get of {} bytes from PE {}", request.bytes, request.pe);
    case Kind::put_value:
      return fmt::format("put_value of {} bytes to PE {}", request.width, request.pe);
    case Kind::atomic:
      return fmt::format("atomic of {} bytes on PE {}", request.width, request.pe);
    case Kind::signal:
      return fmt::format("signal to PE {}", request.pe);
    case Kind::fence:
      return "fence";
  }
  return fmt::format("request of kind {}", static_cast<int>(request.kind));
}

}  // namespace shoal::transport::proxy
