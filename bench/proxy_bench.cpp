// SPDX-License-Identifier: Apache-2.0
// proxy_bench.cpp: puts and gets of 8 bytes through the ring of a proxy, posted by a thread in
// place of a kernel. The rows of rma_bench.cpp with the same sizes are the host calls over the same
// transport.
#include <memory>
#include <thread>

#include "base/check.hpp"
#include "fabric/fabric.hpp"
#include "shoal/collective.hpp"
#include "shoal_bench.hpp"
#include "transport/proxy.hpp"
#include "transport/proxy/thread_platform.hpp"
#include "world/state.hpp"

namespace shoal::bench {
namespace {

using Producer = device::proxy::Producer<transport::proxy::ThreadPlatform>;
using device::proxy::Outcome;
using device::proxy::Ticket;

constexpr std::uint64_t kSlots = 1024;
constexpr std::int64_t kWindow = 16;  ///< as in rma_bench.cpp

std::unique_ptr<transport::Proxy> start(World& world, const transport::ProxyMemory& memory) {
  detail::WorldState& state = world.state();
  return transport::make_proxy({.my_pe = world.my_pe(),
                                .n_pes = world.n_pes(),
                                .heap_bytes = world.heap().size(),
                                .ring = memory.ring(),
                                .timeout = world.settings().timeout,
                                .route =
                                    [&state](Pe pe) {
                                      return state.fabric().heap_route(
                                          pe, transport::capability::all_operations);
                                    },
                                .wait = progress_wait_of(world.settings().progress_wait),
                                .core = world.settings().proxy_core});
}

void check(Outcome outcome, const transport::Proxy& proxy) {
  if (auto failure = proxy.failure()) throw Error(*failure);
  require(outcome == Outcome::ok, Code::timeout, "a request to the proxy was not completed");
}

}  // namespace

std::vector<Measurement> measure_proxy(World& world, std::int64_t iterations) {
  const auto target = world.heap().allocate<std::uint64_t>(1);
  const transport::ProxyMemory memory(kSlots, world.settings().timeout);
  const auto proxy = start(world, memory);
  const device::proxy::Request put{.kind = device::proxy::Kind::put_value,
                                   .width = 8,
                                   .pe = 1 % world.n_pes(),
                                   .offset = world.heap().offset_of(target.data()),
                                   .operand = 1};
  std::uint64_t result = 0;
  const device::proxy::Request get{.kind = device::proxy::Kind::get,
                                   .pe = put.pe,
                                   .offset = put.offset,
                                   .source = reinterpret_cast<std::uintptr_t>(&result),
                                   .bytes = sizeof result};
  std::vector<Measurement> measurements;
  const auto measure = [&](const std::string& name, const device::proxy::Request& request,
                           std::int64_t count) {
    barrier(world.team());
    Times times;
    if (world.my_pe() == 0) {
      const auto body = [&] {
        Ticket last = 0;
        for (std::int64_t i = 0; i < count; ++i)
          check(Producer::post(memory.ring(), request, last), *proxy);
        check(Producer::wait(memory.ring(), last), *proxy);
      };
      body();
      const Times begin = now();
      for (std::int64_t i = 0; i < iterations; ++i) body();
      times = (now() - begin) / static_cast<double>(iterations);
    }
    barrier(world.team());
    measurements.push_back({name, times, 8.0 * static_cast<double>(count)});
  };
  measure("proxy: put + wait 8 B", put, 1);
  measure("proxy: " + std::to_string(kWindow) + " put 8 B", put, kWindow);
  measure("proxy: get + wait 8 B", get, 1);
  measure("proxy: " + std::to_string(kWindow) + " get 8 B", get, kWindow);
  require(world.my_pe() != 0 || result == put.operand, Code::mismatch,
          "a get by the proxy returned {}, the puts wrote {}", result, put.operand);
  return measurements;
}

}  // namespace shoal::bench
