// SPDX-License-Identifier: Apache-2.0
#include "verbs/runtime.hpp"

#include <algorithm>
#include <array>

#include "base/nap.hpp"
#include "engine/big_endian.hpp"

namespace shoal::emulator {
namespace {

constexpr Time kLongestSleep = std::chrono::milliseconds(5);
constexpr Time kLongestClose = std::chrono::milliseconds(200);
constexpr Time kLinkPeriod = std::chrono::milliseconds(50);
/// Longest sleeps of the thread between two looks at doorbell registers, which do not wake it: at
/// first, and after a while without any.
constexpr Time kFirstLook = std::chrono::microseconds(20);
constexpr Time kLastLook = std::chrono::microseconds(160);
/// The thread keeps away, for these times, while clients poll at least every kOften.
constexpr Time kFirstWatch = std::chrono::microseconds(50);
constexpr Time kLongestWatch = std::chrono::microseconds(500);
constexpr Time kOften = std::chrono::microseconds(10);
/// Time for which the thread polls without success before it sleeps: requests of peers often follow
/// each other, and a NIC would not have to be woken.
constexpr Time kPollTime = std::chrono::microseconds(50);
/// The same where clients write doorbell registers: their next ring does not wake it.
constexpr Time kRegisterPollTime = std::chrono::milliseconds(1);
/// Polls of a client without success after which it lets other threads run: its peer may need the
/// core. Hardware has no such need.
constexpr std::uint32_t kPollsBeforeYield = 16;
/// Packets of a queue pair in flight: more than hardware has, as a peer may wait for its core.
constexpr std::uint32_t kWindow = 512;
/// Packets that are delivered before the NIC sends again.
constexpr std::size_t kBatch = 64;

}  // namespace

std::shared_ptr<Runtime> Runtime::acquire(std::uint32_t device) {
  static std::mutex mutex;
  static std::array<std::weak_ptr<Runtime>, kMostDevices> current;
  const std::lock_guard lock(mutex);
  if (auto runtime = current.at(device).lock()) return runtime;
  auto runtime = std::make_shared<Runtime>(read_device_settings(device));
  current[device] = runtime;
  return runtime;
}

NicOptions Runtime::nic_options() {
  NicOptions options = settings_.nic;
  options.lid = lid();
  options.seed += lid();
  options.window = kWindow;
  attachment_.set_numbers(options);
  if (trace_) options.trace = [this](const TraceEvent& event) { trace_->write(event); };
  return options;
}

Runtime::Runtime(const DeviceSettings& settings)
    : settings_(settings),
      trace_(settings.trace_file.empty() ? nullptr : std::make_unique<Trace>(settings)),
      attachment_(settings),
      wire_(&attachment_.wire()),
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
  wire_->flush();
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
  const std::uint64_t polls = client_polls_.fetch_add(1, std::memory_order_relaxed);
  bool worked = false;
  if (mutex_.try_lock()) {
    const Hold hold(*this, std::adopt_lock);
    worked = progress();
  }
  // No thread_local counter: the leak search of GCC 12's address sanitizer crashes at times on
  // thread-local memory of libraries that are loaded later.
  if (!worked && polls % kPollsBeforeYield == 0) std::this_thread::yield();
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

void Runtime::watch_link(const void* owner, std::function<void(bool)> on_change) {
  const std::lock_guard lock(link_mutex_);
  link_watches_[owner] = std::move(on_change);
}

void Runtime::unwatch_link(const void* owner) {
  const std::lock_guard lock(link_mutex_);
  link_watches_.erase(owner);
}

void Runtime::check_link(Time now) {
  if (now < next_link_check_) return;
  next_link_check_ = now + kLinkPeriod;
  const bool up = attachment_.link_up();
  if (up == link_was_up_) return;
  link_was_up_ = up;
  const std::lock_guard lock(link_mutex_);
  for (const auto& [owner, on_change] : link_watches_) on_change(up);
}

/// True if clients have polled so often since the last call that they need no thread.
bool Runtime::clients_poll(Time now) {
  const std::uint64_t polls = client_polls_.load(std::memory_order_relaxed);
  const bool often = (polls - polls_seen_) * kOften >= now - polls_seen_at_;
  polls_seen_ = polls;
  polls_seen_at_ = now;
  return often;
}

/// Sleeps until a packet, a timer or a doorbell; where there are doorbell registers at most until
/// the next look at them.
void Runtime::sleep(Time now) {
  const Time timer(next_timer_.load(std::memory_order_relaxed));
  const Time longest = any_register_ ? look_ : kLongestSleep;
  const Time until = std::min(now + longest, timer);
  look_ = std::min(2 * look_, kLastLook);
  if (until <= now) return;
  asleep_until_.store(until.count(), std::memory_order_relaxed);
  wire_->sleep(until - now);
  asleep_until_.store(0, std::memory_order_relaxed);
}

void Runtime::run() {
  Time worked_at = wire_->now();
  Time watch = kFirstWatch;
  link_was_up_ = attachment_.link_up();
  while (!stop_.load(std::memory_order_relaxed)) {
    const Time now = wire_->now();
    check_link(now);
    if (now - polls_seen_at_ >= kFirstWatch) {
      if (clients_poll(now)) {
        nap(watch);
        watch = std::min(2 * watch, kLongestWatch);
        continue;
      }
      watch = kFirstWatch;
    }
    bool worked = false;
    if (mutex_.try_lock()) {
      const Hold hold(*this, std::adopt_lock);
      worked = progress();
    }
    if (worked) {
      worked_at = now;
      look_ = kFirstLook;
    }
    if (now - worked_at < (any_register_ ? kRegisterPollTime : kPollTime))
      std::this_thread::yield();
    else
      sleep(now);
  }
}

}  // namespace shoal::emulator

/// True if a client serves requests of its peers when it polls. No other libibverbs has this
/// function.
extern "C" __attribute__((visibility("default"))) int shoal_emulator_progresses_in_polls() {
  return 1;
}
