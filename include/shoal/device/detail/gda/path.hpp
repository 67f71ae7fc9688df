// SPDX-License-Identifier: Apache-2.0
// path.hpp: World::gda, the queues that lead kernels to heaps on other nodes, and the operations on
// heaps by these queues. For host and device code.
//
//   const Route* route = route_to(routes, pe, offset, bytes);    // nullptr: take the proxy
//   Ending ending = put(routes, *route, spread, {offset, source, bytes}, nullptr, platform);
//   if (ending.outcome != Outcome::ok) ...                       // ending.queue for the report
//
// `spread` selects the queue: callers with the same number have the same queue, so one signals what
// the other has put. Kernels pass the index of the block.
//
// put() returns when its data are at the peer; start_put(), put_value() and signal() return when
// they are posted. signal() follows everything that was posted before to the same queue. Additions
// and other atomics are not here: they would not be atomic towards the processor of the target.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/detail/gda/operations.hpp>
#include <shoal/pe.hpp>

namespace shoal::device::gda {

/// Queues and keys that lead to the heap of one PE.
struct Route {
  const Queue* queues = nullptr;
  std::uint32_t n_queues = 0;   ///< 0: none leads there
  std::uint32_t local_key = 0;  ///< of this PE's heap
  mlx5::Memory heap;            ///< start of that PE's heap
  std::uint64_t bytes = 0;      ///< from the start of both heaps: what the NICs reach
};

/// In memory that the users of the queues share.
struct Routes {
  const Route* by_pe = nullptr;
  std::uint64_t n_pes = 0;
  const std::byte* heap = nullptr;  ///< start of this PE's heap
  std::uint64_t timeout_ns = 0;
  const std::uint32_t* abort = nullptr;  ///< not 0: every wait ends
};

/// For failure reports.
enum class Operation : std::uint8_t { none, put, put_value, signal, order };

/// Outcome of an operation, and its queue.
struct Ending {
  Outcome outcome = Outcome::ok;
  const Queue* queue = nullptr;
};

/// A range of the target's heap and its source.
struct Transfer {
  std::uint64_t offset = 0;
  const void* source = nullptr;
  std::uint64_t bytes = 0;
};

/// The route to [offset, offset + bytes) of the heap of `pe`, a PE of the world; nullptr: none.
SHOAL_HOST_DEVICE inline const Route* route_to(const Routes& routes, Pe pe, std::uint64_t offset,
                                               std::uint64_t bytes) {
  const Route& route = routes.by_pe[pe];
  const bool reached =
      route.n_queues != 0 && offset <= route.bytes && bytes <= route.bytes - offset;
  return reached ? &route : nullptr;
}

/// True if the NIC can send these bytes: from the heap, or as a part of the request.
SHOAL_HOST_DEVICE inline bool can_send(const Routes& routes, const Route& route, const void* source,
                                       std::uint64_t bytes) {
  if (bytes <= kInlineBytes) return true;
  const auto at =
      reinterpret_cast<std::uintptr_t>(source) - reinterpret_cast<std::uintptr_t>(routes.heap);
  return at <= route.bytes && bytes <= route.bytes - at;
}

namespace detail {

/// Operations work on a copy: a GPU would load its fields again after each access to shared words.
SHOAL_HOST_DEVICE inline const Queue* choose(const Route& route, std::uint32_t spread) {
  return &route.queues[spread % route.n_queues];
}

/// Small sources are sent inline: they need not be in the heap.
SHOAL_HOST_DEVICE inline Source source_of(const Route& route, const Transfer& transfer) {
  const auto* const bytes = static_cast<const std::byte*>(transfer.source);
  return {transfer.bytes <= kInlineBytes ? bytes : nullptr,
          {reinterpret_cast<std::uintptr_t>(bytes), route.local_key}};
}

SHOAL_HOST_DEVICE inline Signal signal_of(const Route& route, std::uint64_t offset,
                                          std::uint64_t value) {
  return {advance(route.heap, offset), value, SignalKind::set};
}

}  // namespace detail

/// A word of the target's heap that a signal sets.
struct Flag {
  std::uint64_t offset = 0;
  std::uint64_t value = 0;
};

namespace detail {

/// Posts a put, then a signal where `flag` is not nullptr. `ticket` is for wait().
template <typename Platform>
SHOAL_HOST_DEVICE Ending post(const Route& route, std::uint32_t spread, const Transfer& transfer,
                              const Flag* flag, std::uint64_t deadline, Platform& platform,
                              std::uint64_t& ticket) {
  const Queue* const at = choose(route, spread);
  const Queue queue = *at;
  const Source source = source_of(route, transfer);
  const mlx5::Memory target = advance(route.heap, transfer.offset);
  const Outcome outcome =
      flag == nullptr
          ? gda::put(queue, source, target, transfer.bytes, deadline, platform, ticket)
          : put_signal(queue, source, target, transfer.bytes,
                       signal_of(route, flag->offset, flag->value), deadline, platform, ticket);
  return {outcome, at};
}

}  // namespace detail

/// Puts what can_send() accepts, then sets `flag` unless it is nullptr. Waits until both are at the
/// peer, at most `wait_ns`; a deadline that passes in the post, that of the routes, ends the queue.
template <typename Platform>
SHOAL_HOST_DEVICE Ending put(const Routes& routes, const Route& route, std::uint32_t spread,
                             const Transfer& transfer, const Flag* flag, Platform& platform,
                             std::uint64_t wait_ns) {
  const std::uint64_t start = platform.now();
  std::uint64_t ticket = 0;
  Ending ending =
      detail::post(route, spread, transfer, flag, start + routes.timeout_ns, platform, ticket);
  if (ending.outcome == Outcome::ok)
    ending.outcome = wait(*ending.queue, ticket, start + wait_ns, platform);
  return ending;
}
template <typename Platform>
SHOAL_HOST_DEVICE Ending put(const Routes& routes, const Route& route, std::uint32_t spread,
                             const Transfer& transfer, const Flag* flag, Platform& platform) {
  return put(routes, route, spread, transfer, flag, platform, routes.timeout_ns);
}

/// The same without the wait. Sources of more than kInlineBytes must stay as they are until a later
/// signal has arrived.
template <typename Platform>
SHOAL_HOST_DEVICE Ending start_put(const Routes& routes, const Route& route, std::uint32_t spread,
                                   const Transfer& transfer, const Flag* flag, Platform& platform) {
  std::uint64_t ticket = 0;
  return detail::post(route, spread, transfer, flag, platform.now() + routes.timeout_ns, platform,
                      ticket);
}

/// The puts of all lanes of a group, except those of 0 bytes, and then the flags that are not
/// nullptr, with one doorbell (post_each()). All lanes call, for one PE, and get the same result.
/// `bytes` is at most the largest message of the queue, which has slots for all and one more.
template <typename Group, typename Platform>
SHOAL_HOST_DEVICE Ending start_each(const Group& group, const Routes& routes, const Route& route,
                                    std::uint32_t spread, const Transfer& transfer,
                                    const Flag* flag, Platform& platform) {
  const Queue* const at = detail::choose(route, spread);
  const Queue queue = *at;
  Signal signal;
  if (flag != nullptr) signal = detail::signal_of(route, flag->offset, flag->value);
  std::uint64_t ticket = 0;
  const Outcome outcome = post_each(group, queue,
                                    {.source = detail::source_of(route, transfer),
                                     .remote = detail::advance(route.heap, transfer.offset),
                                     .bytes = static_cast<std::uint32_t>(transfer.bytes),
                                     .signal = flag == nullptr ? nullptr : &signal},
                                    platform.now() + routes.timeout_ns, platform, ticket);
  return {outcome, at};
}

/// `count` elements, as put() does; `stride`: bytes between elements of the target and the source.
/// Those with a number of `first` + i * `step` only.
struct Strides {
  std::uint64_t target = 0, source = 0;
  std::uint64_t first = 0, step = 1, count = 0;
};
template <typename Platform>
SHOAL_HOST_DEVICE Ending put_strided(const Routes& routes, const Route& route, std::uint32_t spread,
                                     Transfer element, const Strides& strides, Platform& platform) {
  const Queue* const at = detail::choose(route, spread);
  const Queue queue = *at;
  const std::uint64_t deadline = platform.now() + routes.timeout_ns;
  const Transfer start = element;
  std::uint64_t ticket = 0;
  Outcome outcome = Outcome::ok;
  for (std::uint64_t i = strides.first; i < strides.count && outcome == Outcome::ok;
       i += strides.step) {
    element.source = static_cast<const std::byte*>(start.source) + i * strides.source;
    outcome = put(queue, detail::source_of(route, element),
                  detail::advance(route.heap, start.offset + i * strides.target), element.bytes,
                  deadline, platform, ticket);
  }
  if (outcome == Outcome::ok) outcome = wait(queue, ticket, deadline, platform);
  return {outcome, at};
}

/// Puts the low `width` bytes of `value`, at most 8. Does not wait.
template <typename Platform>
SHOAL_HOST_DEVICE Ending put_value(const Routes& routes, const Route& route, std::uint32_t spread,
                                   std::uint64_t offset, std::uint64_t value, unsigned width,
                                   Platform& platform) {
  const Queue* const at = detail::choose(route, spread);
  const Queue queue = *at;
  std::uint64_t ticket = 0;
  const Source source{reinterpret_cast<const std::byte*>(&value), {}};
  const Outcome outcome = put(queue, source, detail::advance(route.heap, offset), width,
                              platform.now() + routes.timeout_ns, platform, ticket);
  return {outcome, at};
}

/// Sets a word after everything posted before to the same queue. Does not wait.
template <typename Platform>
SHOAL_HOST_DEVICE Ending signal(const Routes& routes, const Route& route, std::uint32_t spread,
                                const Flag& flag, Platform& platform) {
  const Queue* const at = detail::choose(route, spread);
  const Queue queue = *at;
  std::uint64_t ticket = 0;
  const Outcome outcome = signal(queue, detail::signal_of(route, flag.offset, flag.value),
                                 platform.now() + routes.timeout_ns, platform, ticket);
  return {outcome, at};
}

/// Waits until all that was posted before to the queue of `spread` to one PE is at the peer.
template <typename Platform>
SHOAL_HOST_DEVICE Ending drain(const Routes& routes, const Route& route, std::uint32_t spread,
                               Platform& platform) {
  if (route.n_queues == 0) return {};
  const Queue* const at = detail::choose(route, spread);
  const Queue queue = *at;
  return {quiet(queue, platform.now() + routes.timeout_ns, platform), at};
}

/// Waits until all that was posted before to any queue is at its peer. Continues after a failure,
/// and returns the first one.
template <typename Platform>
SHOAL_HOST_DEVICE Ending drain_all(const Routes& routes, Platform& platform) {
  Ending first;
  for (std::uint64_t pe = 0; pe < routes.n_pes; ++pe)
    for (std::uint32_t i = 0; i < routes.by_pe[pe].n_queues; ++i) {
      const Ending one = drain(routes, routes.by_pe[pe], i, platform);
      if (first.outcome == Outcome::ok && one.outcome != Outcome::ok) first = one;
    }
  return first;
}

}  // namespace shoal::device::gda
