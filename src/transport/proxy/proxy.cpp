// SPDX-License-Identifier: Apache-2.0
// The thread that runs an Executor.
//
// It is a thread of its own, not the progress thread of a network: operations of transports may
// wait, and a world on shared memory has no progress thread. While requests are in flight it polls
// the network itself (PolledOperations::reached), and the progress thread rests.
#include <cstring>
#include <new>

#include "base/backoff.hpp"
#include "base/check.hpp"
#include "transport/proxy.hpp"
#include "transport/proxy/executor.hpp"
#include "transport/proxy/thread_platform.hpp"

namespace shoal::transport {
namespace {

using device::proxy::State;

class ProxyThread final : public Proxy {
 public:
  explicit ProxyThread(const ProxyContext& context)
      : context_(context),
        executor_(context),
        thread_({.pe = context.my_pe,
                 .name = "shoal-proxy",
                 .wait = context.wait,
                 .core = context.core,
                 .core_setting = "SHOAL_PROXY_CORE"},
                [this] { return step(); }) {}
  ~ProxyThread() override { abort(); }

  void drain(std::uint64_t posted) override;
  void abort() noexcept override { executor_.abort(); }
  std::optional<Error> failure() const override { return executor_.failure(); }
  std::uint64_t completed() const noexcept override { return executor_.completed(); }

 private:
  ServiceThread::Polled step() {
    const bool any = executor_.state() == State::running && executor_.step();
    return any ? ServiceThread::Polled::something : ServiceThread::Polled::nothing;
  }

  const ProxyContext context_;
  proxy::Executor executor_;
  ServiceThread thread_;
};

void ProxyThread::drain(std::uint64_t posted) {
  Deadline deadline(std::chrono::steady_clock::now() + context_.timeout);
  Backoff backoff;
  while (completed() < posted) {
    if (auto error = failure()) throw Error(*error);
    require(executor_.state() == State::running, Code::closed,
            "SHOAL-N340: proxy of PE {}: it was aborted", context_.my_pe);
    require(!deadline.passed(std::chrono::steady_clock::now()), Code::timeout,
            "SHOAL-N341: proxy of PE {}: timed out after {} ms with {} of {} requests complete; "
            "Setting: SHOAL_TIMEOUT_MS.",
            context_.my_pe, context_.timeout.count(), completed(), posted);
    backoff();
  }
}

constexpr std::size_t kControlBytes =
    (sizeof(device::proxy::Control) + alignof(device::proxy::Slot) - 1) /
    alignof(device::proxy::Slot) * alignof(device::proxy::Slot);

}  // namespace

std::unique_ptr<Proxy> make_proxy(const ProxyContext& context) {
  return std::make_unique<ProxyThread>(context);
}

std::size_t proxy_ring_bytes(std::uint64_t n_slots) noexcept {
  return kControlBytes + n_slots * (sizeof(device::proxy::Slot) + sizeof(device::proxy::Response));
}

void place_proxy_ring(device::proxy::Ring& ring, std::byte* memory,
                      std::uint64_t n_slots) noexcept {
  ring.control = reinterpret_cast<device::proxy::Control*>(memory);
  ring.slots = reinterpret_cast<device::proxy::Slot*>(memory + kControlBytes);
  ring.responses = reinterpret_cast<device::proxy::Response*>(ring.slots + n_slots);
  ring.n_slots = n_slots;
}

void ProxyMemory::Free::operator()(void* memory) const noexcept {
  ::operator delete(memory, std::align_val_t{64});
}

ProxyMemory::ProxyMemory(std::uint64_t n_slots, std::chrono::milliseconds timeout) {
  const std::size_t bytes = proxy_ring_bytes(n_slots);
  constexpr std::size_t kProducerBytes = 128;  // `head` and `completed_copy`, a cache line each
  memory_.reset(
      static_cast<std::byte*>(::operator new(bytes + kProducerBytes, std::align_val_t{64})));
  std::memset(memory_.get(), 0, bytes + kProducerBytes);
  place_proxy_ring(ring_, memory_.get(), n_slots);
  ring_.head = reinterpret_cast<std::uint64_t*>(memory_.get() + bytes);
  ring_.completed_copy = ring_.head + 8;
  ring_.timeout_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(timeout).count());
}

}  // namespace shoal::transport
