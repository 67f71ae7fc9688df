// SPDX-License-Identifier: Apache-2.0
// world_proxy.hpp: a proxy over the transports of a world whose heap is on the host. Threads post.
#pragma once

#include <chrono>
#include <memory>

#include "fabric/fabric.hpp"
#include "shoal/world.hpp"
#include "team/team_state.hpp"
#include "transport/proxy.hpp"
#include "transport/proxy/thread_platform.hpp"
#include "world/state.hpp"

namespace shoal::test {

using Producer = device::proxy::Producer<transport::proxy::ThreadPlatform>;
using device::proxy::Kind;
using device::proxy::Outcome;
using device::proxy::Request;
using device::proxy::Ticket;

class WorldProxy {
 public:
  WorldProxy(World& world, std::uint64_t n_slots)
      : world_(world), memory_(n_slots, world.settings().timeout) {
    detail::WorldState& state = state_of(world);
    proxy_ = transport::make_proxy(
        {.my_pe = world.my_pe(),
         .n_pes = world.n_pes(),
         .heap_bytes = world.heap().size(),
         .ring = memory_.ring(),
         .timeout = world.settings().timeout,
         .route = [&state](Pe pe) { return state.fabric().polled_route(pe); },
         .failure =
             [&state](Pe pe) {
               return std::string(state.health().has_failed(pe) ? "it has failed" : "");
             },
         .wait = progress_wait_of(world.settings().progress_wait)});
  }

  const device::proxy::Ring& ring() const { return memory_.ring(); }
  transport::Proxy& proxy() { return *proxy_; }

  Outcome post(const Request& request, Ticket& ticket) {
    return Producer::post(ring(), request, ticket);
  }
  /// Posts and waits for the ticket.
  Outcome run(const Request& request) {
    Ticket ticket = 0;
    const Outcome posted = post(request, ticket);
    return posted == Outcome::ok ? Producer::wait(ring(), ticket) : posted;
  }
  Outcome quiet() { return Producer::wait_all(ring(), Producer::quiet_ticket(ring())); }

  // Requests to `pe`, by addresses of this PE's heap.
  Request put(void* target, const void* source, std::size_t bytes, Pe pe) const {
    return {.kind = Kind::put,
            .pe = pe,
            .offset = offset(target),
            .source = reinterpret_cast<std::uintptr_t>(source),
            .bytes = bytes};
  }
  Request get(void* target, const void* source, std::size_t bytes, Pe pe) const {
    return {.kind = Kind::get,
            .pe = pe,
            .offset = offset(source),
            .source = reinterpret_cast<std::uintptr_t>(target),
            .bytes = bytes};
  }
  Request put_signal(void* target, const void* source, std::size_t bytes, std::uint64_t* flag,
                     std::uint64_t value, Pe pe) const {
    Request request = put(target, source, bytes, pe);
    request.flags = device::proxy::kSignalSet;
    request.signal_offset = offset(flag);
    request.signal_value = value;
    return request;
  }
  Request put_value(std::uint64_t* target, std::uint64_t value, Pe pe) const {
    return {
        .kind = Kind::put_value, .width = 8, .pe = pe, .offset = offset(target), .operand = value};
  }
  Request add(std::uint64_t* target, std::uint64_t value, Pe pe, std::uint8_t flags = 0) const {
    return {.kind = Kind::atomic,
            .op = AtomicOp::add,
            .width = 8,
            .flags = flags,
            .pe = pe,
            .offset = offset(target),
            .operand = value};
  }
  Request signal(std::uint64_t* flag, SignalOp op, std::uint64_t value, Pe pe) const {
    return {.kind = Kind::signal,
            .flags = op == SignalOp::set ? device::proxy::kSignalSet : device::proxy::kSignalAdd,
            .pe = pe,
            .signal_offset = offset(flag),
            .signal_value = value};
  }
  std::uint64_t offset(const void* address) const { return world_.heap().offset_of(address); }

 private:
  World& world_;
  transport::ProxyMemory memory_;
  std::unique_ptr<transport::Proxy> proxy_;
};

}  // namespace shoal::test
