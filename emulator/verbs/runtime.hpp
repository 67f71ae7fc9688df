// SPDX-License-Identifier: Apache-2.0
// runtime.hpp: an emulated NIC of this process, and the thread that makes it progress.
//
// One lock guards the NIC and the wire. Calls of the client make progress themselves where the lock
// is free, so that latency needs no switch of threads. The thread covers clients that only wait in
// memory, timers, and doorbells that are written as memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/nic.hpp"
#include "verbs/attachment.hpp"
#include "verbs/settings.hpp"
#include "verbs/trace.hpp"
#include "wire/live_wire.hpp"

namespace shoal::emulator {

class Runtime {
 public:
  /// The NIC of this process with this number; the first caller starts it and the last owner stops
  /// it. Throws std::runtime_error where it cannot start.
  static std::shared_ptr<Runtime> acquire(std::uint32_t device);

  explicit Runtime(const DeviceSettings& settings);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const DeviceSettings& settings() const { return settings_; }
  std::uint16_t lid() const { return attachment_.lid(); }
  const Attachment& attachment() const { return attachment_; }
  /// LID of a peer; see Attachment. Takes the lock of the NIC.
  std::optional<std::uint16_t> route(std::uint16_t lid, const Gid* gid, std::uint32_t qp_number) {
    return attachment_.route(lid, gid, qp_number);
  }

  /// use(nic) under the lock.
  template <typename Use>
  auto with_nic(Use use) {
    const Hold hold(*this);
    return use(nic_);
  }
  /// A client has written the doorbell record of a queue pair.
  void ring(std::uint32_t qp_number);
  /// Makes progress if no other thread does.
  void poll();

  /// Watches a doorbell register: a word that clients write instead of a call of ring(). The NIC
  /// takes the word away and calls on_write(nic, word) with its lock held. Rings of several queue
  /// pairs may meet in one register, so that only their doorbell records say what was posted.
  void watch(const void* owner, std::uint64_t* word,
             std::function<void(Nic&, std::uint64_t)> on_write);
  /// Calls on_change(up) from the NIC's thread when the port's link goes down or comes up, until
  /// unwatch_link(). A link inside a host is always up.
  void watch_link(const void* owner, std::function<void(bool)> on_change);
  void unwatch_link(const void* owner);
  /// Ends all watches of `owner`.
  void unwatch(const void* owner);

 private:
  /// Holds the lock; doorbells that other threads ring meanwhile are served at its end.
  class Hold {
   public:
    explicit Hold(Runtime& runtime) : runtime_(runtime) { runtime_.mutex_.lock(); }
    Hold(Runtime& runtime, std::adopt_lock_t) : runtime_(runtime) {}
    ~Hold() { runtime_.release(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Runtime& runtime_;
  };
  struct Register {
    const void* owner;
    std::uint64_t* word;
    std::function<void(Nic&, std::uint64_t)> on_write;
  };

  void release();
  void check_link(Time now);
  void serve_doorbells();
  bool serve_registers();
  bool progress();
  bool clients_poll(Time now);
  void sleep(Time now);
  void run();

  NicOptions nic_options();

  const DeviceSettings settings_;
  std::unique_ptr<Trace> trace_;
  Attachment attachment_;
  LiveWire* const wire_;
  Nic nic_;
  LiveWire::Deliver deliver_;
  std::mutex mutex_;

  std::mutex rung_mutex_;
  std::vector<std::uint32_t> rung_, serving_;
  std::atomic<bool> any_rung_{false};
  std::vector<Register> registers_;
  std::atomic<bool> any_register_{false};

  std::mutex link_mutex_;  ///< of link_watches_; held while they are called
  std::map<const void*, std::function<void(bool)>> link_watches_;
  bool link_was_up_ = true;  ///< of the thread, as the next
  Time next_link_check_{0};

  std::atomic<bool> stop_{false};
  std::atomic<Time::rep> next_timer_{kNever.count()};  ///< of the NIC and the wire
  std::atomic<Time::rep> asleep_until_{0};             ///< the thread, if it sleeps
  std::atomic<std::uint64_t> client_polls_{0};
  Time look_{0};  ///< longest sleep between looks at doorbell registers, of the thread
  std::uint64_t polls_seen_ = 0;  ///< of client_polls_, by the thread
  Time polls_seen_at_{0};
  std::thread thread_;
};

}  // namespace shoal::emulator
