// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/engine.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/backoff.hpp"
#include "base/check.hpp"
#include "base/log.hpp"
#include "transport/ucx/message.hpp"

namespace shoal::transport::ucx {
namespace {

constexpr unsigned kMessageId = 1;
constexpr int kProgressSteps = 32;  // in a row, before somebody else may have the lock
constexpr std::chrono::microseconds kSleep{50};
constexpr std::chrono::milliseconds kGoodbye{
    1000};  // for what a PE does when it leaves, each of two steps

/// "put of 5000 bytes", "quiet".
std::string describe(const Operation& operation) {
  if (operation.bytes == 0) return operation.name;
  return fmt::format("{} of {} bytes", operation.name, operation.bytes);
}

void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Engine::Engine(const Context& context)
    : context_(context),
      peers_(static_cast<std::size_t>(context.n_pes)),
      depth_(static_cast<std::size_t>(context.settings->network_depth)),
      chunk_(context.settings->network_chunk),
      scratch_(static_cast<std::size_t>(context.n_pes)) {
  std::memcpy(&world_, context.world.data(), sizeof world_);
  for (std::size_t pe = 0; pe < peers_.size(); ++pe) {
    peers_[pe].engine = this;
    peers_[pe].pe = static_cast<Pe>(pe);
    peers_[pe].wanted = context.wanted[pe];
  }
  library_ = std::make_unique<Library>(context);
  segment_memory_ =
      std::make_unique<Memory>(*library_, context.segment->base(), context.segment->size());
  scratch_memory_ =
      std::make_unique<Memory>(*library_, scratch_.data(), scratch_.size() * sizeof scratch_[0]);
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &Callbacks::on_message;
  handler.arg = this;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(library_->worker(), &handler);
  require(status == UCS_OK, Code::unsupported, "UCX has no active messages: {}. Settings: {}",
          text_of(status), library_->selection());
  start_thread();
}

Engine::~Engine() {
  say_goodbye();
  stop_.store(true, std::memory_order_release);
  thread_.join();
  close_endpoints();
}

void Engine::Lock::acquire() {
  if (engine_.mutex_.try_lock()) return;
  engine_.callers_.fetch_add(1, std::memory_order_relaxed);
  const std::int64_t spin = engine_.context_.settings->spin;
  Backoff backoff;
  for (std::int64_t tries = 0; !engine_.mutex_.try_lock(); ++tries) {
    if (tries < spin) {
      pause_core();
    } else {
      backoff();
    }
  }
  engine_.callers_.fetch_sub(1, std::memory_order_relaxed);
}

void Engine::let_others(Lock& lock, std::int64_t polls, Backoff& backoff) {
  lock.release();
  if (polls < context_.settings->spin) {
    pause_core();
  } else {
    backoff();
  }
  lock.acquire();
}

void Engine::ask_world(Lock& lock, Peer& peer) {
  if (!context_.failure) return;
  lock.release();
  const std::string failure = context_.failure(peer.pe);
  lock.acquire();
  if (!failure.empty()) end_peer(peer, failure);
}

bool Engine::progress() {
  bool any = false;
  for (int step = 0; step < kProgressSteps && ucp_worker_progress(library_->worker()) != 0; ++step)
    any = true;
  return any;
}

bool Engine::drive() noexcept {
  driven_.fetch_add(1, std::memory_order_relaxed);
  if (!mutex_.try_lock()) return false;
  const bool any = progress();
  mutex_.unlock();
  return any;
}

void Engine::start_thread() {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "shoal-ucx");
    bind_thread();
    run();
  });
}

void Engine::bind_thread() {
  if (context_.settings->progress_core < 0) return;
  const auto me = static_cast<std::size_t>(context_.my_pe);
  const auto before_me = std::count(
      context_.host_of.begin(), context_.host_of.begin() + context_.my_pe, context_.host_of[me]);
  const std::int64_t core = context_.settings->progress_core + before_me;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const bool known = core < CPU_SETSIZE;
  if (known) CPU_SET(static_cast<std::size_t>(core), &cores);
  if (!known || pthread_setaffinity_np(pthread_self(), sizeof cores, &cores) != 0)
    log::warn(
        "PE {}: the progress thread of ucx cannot be bound to core {}. Setting: SHOAL_PROGRESS_CORE",
        context_.my_pe, core);
}

void Engine::run() {
  const Settings& settings = *context_.settings;
  const bool sleeps = settings.progress_wait == "sleep", spins = settings.progress_wait == "spin";
  std::uint32_t driven = 0;
  Backoff backoff;
  for (std::int64_t idle = 0; !stop_.load(std::memory_order_acquire); ++idle) {
    if (callers_.load(std::memory_order_relaxed) == 0 && mutex_.try_lock()) {
      if (progress()) {
        idle = 0;
        backoff.reset();
      }
      mutex_.unlock();
    }
    const std::uint32_t now = driven_.load(std::memory_order_relaxed);
    const bool relieved = waiting_.load(std::memory_order_relaxed) != 0 || now != driven;
    driven = now;
    if (spins || (idle < settings.spin && !relieved)) {
      pause_core();
    } else if (sleeps || relieved) {
      std::this_thread::sleep_for(kSleep);
    } else {
      backoff();
    }
  }
}

Peer& Engine::open_peer(Pe pe, const Operation& operation) {
  Peer& peer = peers_[static_cast<std::size_t>(pe)];
  if (peer.connected && !peer.ended) [[likely]]
    return peer;
  if (peer.connected) throw_ended(peer, operation);
  fail(Code::unsupported, "{} to PE {}: transport ucx does not reach it ({})", operation.name, pe,
       peer.reason);
}

void Engine::throw_ended(const Peer& peer, const Operation& operation) const {
  fail(Code::peer_failed, "{} failed on PE {}: transport ucx has lost PE {}: {}",
       describe(operation), context_.my_pe, peer.pe, peer.reason);
}

void Engine::throw_timeout(const Peer& peer, const Operation& operation) const {
  fail(
      Code::timeout,
      "{} timed out after {} ms on PE {}: PE {} has not acknowledged {} messages, {} wait for a flush, {} "
      "transfers and {} answers are under way (transport ucx). Setting: SHOAL_TIMEOUT_MS",
      describe(operation), context_.settings->timeout.count(), context_.my_pe, peer.pe,
      peer.unacknowledged(), peer.held.size(), peer.in_flight, peer.requests.size());
}

void Engine::end_peer(Peer& peer, std::string reason) {
  if (peer.ended) return;
  peer.lost = peer.connected && !peer.idle();
  peer.ended = true;
  peer.reason = std::move(reason);
  for (const Peer::Held& held : peer.held) give_slot(*held.slot);
  peer.held.clear();
  peer.early.clear();
  std::erase_if(peer.requests, [](const auto& entry) { return !entry.second.awaited; });
  if (!peer.connected) return;
  ended_.push_back({peer.pe, fmt::format("its connection (ucx) ended: {}", peer.reason)});
  n_ended_.store(ended_.size(), std::memory_order_release);
}

std::span<const Transport::Ended> Engine::ended() noexcept {
  if (n_ended_.load(std::memory_order_acquire) == ended_reported_.size()) return ended_reported_;
  const Lock lock(*this);
  ended_reported_ = ended_;
  return ended_reported_;
}

void Callbacks::on_error(void* user_data, ucp_ep_h, ucs_status_t status) {
  Peer& peer = *static_cast<Peer*>(user_data);
  peer.engine->end_peer(peer, text_of(status));
}

template <typename Done>
void Engine::progress_until(Clock::time_point deadline, Done&& done) {
  Lock lock(*this);
  Backoff backoff;
  for (std::int64_t polls = 0; !done(); ++polls) {
    if (progress()) backoff.reset();
    if (Clock::now() > deadline) return;
    let_others(lock, polls, backoff);
  }
}

/// Lets peers have what was sent to them, and tells them that nothing more will come.
void Engine::say_goodbye() {
  const auto open = [](const Peer& peer) { return peer.connected && !peer.ended; };
  {
    const Lock lock(*this);
    for (Peer& peer : peers_)
      if (open(peer)) ask_for_acknowledgement(peer);
  }
  progress_until(Clock::now() + kGoodbye, [&] {
    return std::all_of(peers_.begin(), peers_.end(), [&](Peer& peer) {
      if (!open(peer) || peer.idle()) return true;
      flush(peer);
      return false;
    });
  });
  const Lock lock(*this);
  for (Peer& peer : peers_) {
    if (!open(peer)) continue;
    transmit(take_slot(peer, Kind::goodbye));
    ++peer.issued;  // so that there is something to flush
    flush(peer);
  }
}

void Engine::close_endpoints() {
  const auto deadline = Clock::now() + kGoodbye;
  progress_until(deadline, [&] {
    return std::none_of(peers_.begin(), peers_.end(),
                        [](const Peer& peer) { return peer.flushing && !peer.ended; });
  });
  std::vector<void*> closing;
  for (Peer& peer : peers_) {
    if (peer.endpoint == nullptr) continue;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* const status = ucp_ep_close_nbx(peer.endpoint, &param);
    if (UCS_PTR_IS_PTR(status)) closing.push_back(status);
  }
  progress_until(deadline, [&] {
    std::erase_if(closing, [](void* request) {
      if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
      ucp_request_free(request);
      return true;
    });
    return closing.empty();
  });
  greetings_.clear();
  for (const Peer& peer : peers_)
    if (peer.key != nullptr) ucp_rkey_destroy(peer.key);
}

}  // namespace shoal::transport::ucx
