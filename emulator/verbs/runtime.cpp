// SPDX-License-Identifier: Apache-2.0
#include "verbs/runtime.hpp"

#include <unistd.h>

#include <algorithm>

#include "base/nap.hpp"
#include "engine/big_endian.hpp"
#include "wire/impaired_wire.hpp"
#include "wire/shared_memory_wire.hpp"

namespace shoal::emulator {
namespace {

constexpr Time kLongestSleep = std::chrono::milliseconds(5);
constexpr Time kLongestClose = std::chrono::milliseconds(200);
constexpr Time kRegisterPeriod = std::chrono::microseconds(20);
constexpr Time kFirstWatch = std::chrono::microseconds(50);
constexpr Time kLongestWatch = std::chrono::milliseconds(1);
/// Wakes for packets that the client had taken before, after which the thread no longer asks to be
/// woken.
constexpr std::uint32_t kMostMisses = 4;
/// Polls of a client without success after which it lets other threads run: its peer may need the
/// core. Hardware has no such need.
constexpr std::uint32_t kPollsBeforeYield = 16;
/// Polls without success before the thread sleeps. Registers wake no thread that sleeps.
constexpr int kPollsBeforeSleep = 16, kPollsOfRegisters = 1000;
/// Packets of a queue pair in flight: more than hardware has, as a peer may wait for its core.
constexpr std::uint32_t kWindow = 512;
/// Packets that are delivered before the NIC sends again.
constexpr std::size_t kBatch = 64;

/// The wire of this process, and its address on it.
std::unique_ptr<LiveWire> make_wire(const DeviceSettings& settings, std::uint16_t& lid) {
  auto shared = std::make_unique<SharedMemoryWire>(SharedMemoryOptions{
      .file = settings.wire_file, .slots = settings.slots, .ring_bytes = settings.ring_bytes});
  lid = shared->lid();
  Impairments impairments = settings.impairments;
  if (!impairments.any()) return shared;
  impairments.seed += lid;
  return std::make_unique<ImpairedWire>(std::move(shared), impairments);
}

}  // namespace

std::shared_ptr<Runtime> Runtime::acquire() {
  static std::mutex mutex;
  static std::weak_ptr<Runtime> current;
  const std::lock_guard lock(mutex);
  if (auto runtime = current.lock()) return runtime;
  auto runtime = std::make_shared<Runtime>(read_device_settings());
  current = runtime;
  return runtime;
}

NicOptions Runtime::nic_options() {
  NicOptions options = settings_.nic;
  options.lid = lid_;
  options.seed += lid_;
  options.window = kWindow;
  // Differs from that of the last process with this LID, whose peers may still be sending.
  options.first_queue_pair = 0x40 + (static_cast<std::uint32_t>(getpid()) & 0x3fff) * 0x40;
  if (trace_) options.trace = [this](const TraceEvent& event) { trace_->write(event); };
  return options;
}

Runtime::Runtime(const DeviceSettings& settings)
    : settings_(settings),
      trace_(settings.trace_file.empty() ? nullptr : std::make_unique<Trace>(settings.trace_file)),
      wire_(make_wire(settings, lid_)),
      nic_(nic_options(), *wire_),
      deliver_([this](Packet&& packet) { nic_.receive(std::move(packet)); }),
      thread_([this] { run(); }) {}

Runtime::~Runtime() {
  stop_ = true;
  wire_->wake();
  thread_.join();
  // Acknowledgements that peers still wait for.
  for (const Time end = wire_->now() + kLongestClose; wire_->now() < end;)
    if (!progress() && !wire_->busy()) break;
}

bool Runtime::progress() {
  bool worked = wire_->poll(kBatch, deliver_);
  if (any_rung_.load(std::memory_order_relaxed)) serve_doorbells();
  if (any_register_.load(std::memory_order_relaxed)) worked |= serve_registers();
  worked |= nic_.progress();
  const Time::rep timer = std::min(nic_.next_timer(), wire_->next_event()).count();
  next_timer_.store(timer, std::memory_order_relaxed);
  if (timer < asleep_until_.load(std::memory_order_relaxed)) wire_->wake();
  return worked;
}

void Runtime::serve_doorbells() {
  {
    const std::lock_guard lock(rung_mutex_);
    any_rung_.store(false, std::memory_order_seq_cst);
    serving_.swap(rung_);
  }
  for (const std::uint32_t qp_number : serving_) nic_.doorbell(qp_number);
  serving_.clear();
}

bool Runtime::serve_registers() {
  bool worked = false;
  for (const Register& at : registers_) {
    std::atomic_ref word(*at.word);
    if (word.load(std::memory_order_relaxed) == 0) continue;
    // Before doorbell records are read: a later ring is seen in the next round.
    at.on_write(nic_, word.exchange(0, std::memory_order_acq_rel));
    worked = true;
  }
  return worked;
}

void Runtime::release() {
  do {
    if (any_rung_.load(std::memory_order_seq_cst)) progress();
    mutex_.unlock();
  } while (any_rung_.load(std::memory_order_seq_cst) && mutex_.try_lock());
}

void Runtime::ring(std::uint32_t qp_number) {
  if (mutex_.try_lock()) {
    const Hold hold(*this, std::adopt_lock);
    nic_.doorbell(qp_number);
    progress();
    return;
  }
  {
    const std::lock_guard lock(rung_mutex_);
    rung_.push_back(qp_number);
    any_rung_.store(true, std::memory_order_seq_cst);
  }
  // The owner of the lock serves it at the latest when it has released it; or it has just done so.
  if (mutex_.try_lock()) release();
}

void Runtime::poll() {
  thread_local std::uint32_t empty = 0;
  bool worked = false;
  if (mutex_.try_lock()) {
    const Hold hold(*this, std::adopt_lock);
    worked = progress();
  }
  if (worked)
    empty = 0;
  else if (++empty % kPollsBeforeYield == 0)
    std::this_thread::yield();
}

void Runtime::watch(const void* owner, std::uint64_t* word,
                    std::function<void(Nic&, std::uint64_t)> on_write) {
  const Hold hold(*this);
  registers_.push_back({owner, word, std::move(on_write)});
  any_register_ = true;
  wire_->wake();
}

void Runtime::unwatch(const void* owner) {
  const Hold hold(*this);
  std::erase_if(registers_, [&](const Register& at) { return at.owner == owner; });
  any_register_ = !registers_.empty();
}

void Runtime::run() {
  bool woken = false;
  int polls = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    bool worked = false;
    if (mutex_.try_lock()) {
      const Hold hold(*this, std::adopt_lock);
      worked = progress();
    }
    if (worked) {
      misses_ = 0;
      watch_ = Time(0);
      polls = 0;
    } else if (woken) {
      ++misses_;
    }
    woken = false;
    const int most = any_register_ ? kPollsOfRegisters : kPollsBeforeSleep;
    if (++polls < most && watch_.count() == 0) {
      std::this_thread::yield();
      continue;
    }
    polls = 0;
    if (watch_.count() == 0 && misses_ >= kMostMisses) watch_ = kFirstWatch;
    if (any_register_) {
      nap(kRegisterPeriod);
    } else if (watch_.count() != 0) {
      nap(watch_);
      watch_ = std::min(2 * watch_, kLongestWatch);
      misses_ = 0;
    } else {
      const Time now = wire_->now();
      const Time timer(next_timer_.load(std::memory_order_relaxed));
      const Time until = std::min(now + kLongestSleep, timer);
      if (until <= now) continue;
      asleep_until_.store(until.count(), std::memory_order_relaxed);
      woken = wire_->sleep(until - now);
      asleep_until_.store(0, std::memory_order_relaxed);
    }
  }
}

}  // namespace shoal::emulator
