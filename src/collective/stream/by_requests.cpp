// SPDX-License-Identifier: Apache-2.0
#include "collective/stream/by_requests.hpp"

#include <algorithm>

#include "base/align.hpp"
#include "base/check.hpp"
#include "collective/host_forms.hpp"
#include "device/device_side.hpp"
#include "fabric/fabric.hpp"
#include "shoal/device/detail/collective/plan.hpp"

namespace shoal::collective {
namespace {

using device::proxy::Kind;

/// Bytes of GPU memory that a reduction takes for the parts of all PEs while it runs.
constexpr std::size_t kScratchBytes = std::size_t{32} << 20;
/// Up to so many bytes, every PE fetches and reduces all elements: one exchange less than with
/// shares.
constexpr std::size_t kWholeBytes = std::size_t{64} << 10;
constexpr std::size_t kAlignment = 256;  ///< bytes

std::byte* bytes_of(const void* memory) {
  return static_cast<std::byte*>(const_cast<void*>(memory));
}

}  // namespace

ByRequests::ByRequests(const Call& call, const kernels::Launch& launch)
    : call_(call), launch_(launch), side_(*call.world().device_side()) {
  for (const Pe pe : call.team().pes) posts_ |= call.world().fabric().peer_base(pe) == nullptr;
}

void ByRequests::barrier() const {
  side_.barrier(launch_.stream, launch_.team);
}

void ByRequests::drain() const {
  if (posts_) side_.drain(launch_.stream);
}

void ByRequests::move(Kind kind, std::size_t index, const std::byte* in_heap,
                      const std::byte* local, std::size_t bytes) const {
  if (bytes == 0) return;
  const Pe pe = call_.team().pes[index];
  const auto offset = static_cast<std::size_t>(in_heap - launch_.world.heap);
  if (std::byte* const base = call_.world().fabric().peer_base(pe)) {
    std::byte* const there = base + offset;
    if (there == local) return;
    return kind == Kind::put ? side_.copy(launch_.stream, there, local, bytes)
                             : side_.copy(launch_.stream, bytes_of(local), there, bytes);
  }
  detail::Posts posts;
  posts.request.kind = kind;
  posts.request.pe = pe;
  posts.request.offset = offset;
  posts.request.source = reinterpret_cast<std::uintptr_t>(local);
  posts.request.bytes = bytes;
  posts.complete = false;
  side_.post(launch_.stream, posts);
}

void ByRequests::put(std::size_t to, std::byte* target, const std::byte* source,
                     std::size_t bytes) const {
  move(Kind::put, to, target, source, bytes);
}

void ByRequests::get(std::size_t from, std::byte* target, const std::byte* source,
                     std::size_t bytes) const {
  move(Kind::get, from, source, target, bytes);
}

void ByRequests::broadcast(void* target, const void* source, std::size_t bytes, Pe root) const {
  barrier();
  if (call_.team().my_pe == root) {
    for (std::size_t step = 1; step <= call_.n_pes(); ++step)
      put(after_me(step), bytes_of(target), bytes_of(source), bytes);
    drain();
  }
  barrier();
}

void ByRequests::spread(void* target, const void* source, std::size_t bytes, bool same) const {
  barrier();
  std::byte* const place = bytes_of(target) + call_.me() * bytes;
  for (std::size_t step = 1; step <= call_.n_pes(); ++step) {
    const std::size_t pe = after_me(step);
    put(pe, place, bytes_of(source) + (same ? 0 : pe * bytes), bytes);
  }
  drain();
  barrier();
}

void ByRequests::all_to_all_v(const device::AllToAllV& arguments) const {
  barrier();
  for (std::size_t step = 0; step < call_.n_pes(); ++step) {
    const std::size_t index = after_me(step);
    side_.fetch_block(launch_.stream, arguments, static_cast<Pe>(index), call_.team().my_pe,
                      call_.team().pes[index]);
  }
  barrier();
}

// One of three ways. reduce_scatter: each PE fetches and reduces its block. Few bytes: each fetches
// and reduces all elements, with a barrier before it writes, since the target may be the source.
// More bytes: each PE reduces a share, which no other PE reads, and puts it to all.
void ByRequests::reduce(cuda::ElementType type, std::size_t element, ReduceOp op,
                        const kernels::ReduceArguments& arguments) const {
  const std::size_t n = call_.n_pes(), count = arguments.count;
  const std::size_t room = kScratchBytes / (n + 1) / kAlignment * kAlignment;
  const bool whole = !arguments.scatter && count * element <= std::min(kWholeBytes, room);
  const bool divided = !arguments.scatter && !whole;
  device::detail::Share share{0, count};
  if (divided)
    share = device::detail::share_of(count, element, static_cast<Pe>(n), call_.team().my_pe);
  const std::byte* const source =
      bytes_of(arguments.source) + (arguments.scatter ? call_.me() * count : share.begin) * element;
  std::byte* const target = bytes_of(arguments.target) + share.begin * element;
  const std::size_t total = share.count * element;
  const std::size_t stride = std::min(room, align_up(total, kAlignment));

  barrier();
  if (total != 0) {
    std::byte* const scratch = side_.scratch(call_.team().index, (n + 1) * stride);
    std::byte* const sums = scratch + n * stride;
    for (std::size_t done = 0; done < total; done += stride) {
      const std::size_t bytes = std::min(stride, total - done);
      for (std::size_t step = 1; step <= n; ++step) {
        const std::size_t pe = after_me(step);
        get(pe, scratch + pe * stride, source + done, bytes);
      }
      drain();
      if (whole) barrier();
      kernels::ReduceArguments parts{divided ? sums : target + done, scratch, bytes / element};
      parts.parts = n;
      parts.stride = stride;
      const char* const failure = kernel_table().reduce(launch_, type, op, parts);
      require(failure == nullptr, Code::system, "SHOAL-N450: {} did not start on GPU {}: {}",
              call_.name(), side_.launch().device, failure == nullptr ? "" : failure);
      if (!divided) continue;
      for (std::size_t step = 1; step <= n; ++step) put(after_me(step), target + done, sums, bytes);
      drain();
    }
  }
  if (!whole || total == 0) barrier();
}

}  // namespace shoal::collective
