// SPDX-License-Identifier: Apache-2.0
// The thread that runs an Executor.
//
// It is a thread of its own, not the progress thread of a network: operations of transports may
// wait, and a world on shared memory has no progress thread. While requests are in flight it polls
// the network itself (Transport::reached), and the progress thread rests.
#include <pthread.h>

#include <atomic>
#include <cstring>
#include <new>
#include <thread>

#include "base/backoff.hpp"
#include "base/check.hpp"
#include "base/log.hpp"
#include "base/nap.hpp"
#include "base/system_error.hpp"
#include "transport/proxy.hpp"
#include "transport/proxy/executor.hpp"
#include "transport/proxy/thread_platform.hpp"

namespace shoal::transport {
namespace {

using device::proxy::State;

/// After this time without a request, the thread sleeps between two polls of the ring.
constexpr std::chrono::milliseconds kIdle{2};
constexpr std::chrono::microseconds kSleep{50};
/// Interval at which the thread of a ring that has ended looks for its own end.
constexpr std::chrono::milliseconds kEndedSleep{1};

class ProxyThread final : public Proxy {
 public:
  explicit ProxyThread(const ProxyContext& context) : context_(context), executor_(context) {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "shoal-proxy");
    if (context.core >= 0) bind();
  }
  ~ProxyThread() override {
    abort();
    stop_.store(true, std::memory_order_release);
    thread_.join();
  }

  void drain(std::uint64_t posted) override;
  void abort() noexcept override { executor_.abort(); }
  std::optional<Error> failure() const override { return executor_.failure(); }
  std::uint64_t completed() const noexcept override { return executor_.completed(); }

 private:
  void run();
  void bind();

  const ProxyContext context_;
  proxy::Executor executor_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

void ProxyThread::run() {
  Backoff backoff;
  auto last = std::chrono::steady_clock::now();  // when there was something to do
  while (!stop_.load(std::memory_order_acquire)) {
    if (executor_.state() != State::running) {
      std::this_thread::sleep_for(kEndedSleep);
      continue;
    }
    const bool any = executor_.step();
    if (context_.wait == ProgressWait::spin) continue;
    const auto now = std::chrono::steady_clock::now();
    if (any) {
      last = now;
      backoff.reset();
    } else if (executor_.busy() || (context_.wait != ProgressWait::sleep && now - last < kIdle)) {
      backoff();
    } else {
      nap(kSleep);
    }
  }
}

void ProxyThread::bind() {
  const int error = bind_to_core(thread_, context_.core);
  if (error != 0)
    log::warn("PE {}: cannot bind the proxy's thread to core {}: {}. Setting: SHOAL_PROXY_CORE",
              context_.my_pe, context_.core, errno_text(error));
}

void ProxyThread::drain(std::uint64_t posted) {
  Deadline deadline(std::chrono::steady_clock::now() + context_.timeout);
  Backoff backoff;
  while (completed() < posted) {
    if (auto error = failure()) throw Error(*error);
    require(executor_.state() == State::running, Code::closed, "proxy of PE {}: it was aborted",
            context_.my_pe);
    require(!deadline.passed(std::chrono::steady_clock::now()), Code::timeout,
            "proxy of PE {}: timed out after {} ms with {} of {} requests complete; Setting: "
            "SHOAL_TIMEOUT_MS.",
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
