// SPDX-License-Identifier: Apache-2.0
// Each PE has a NIC of its own, which reads and writes the memory of the peers itself. So each
// queue pair is connected with itself: what it needs of a peer is a key for its heap.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <stdexcept>

#include "base/check.hpp"
#include "base/log.hpp"
#include "engine/memory_keys.hpp"
#include "gpu/environment.hpp"
#include "gpu/nic.hpp"
#include "gpu/queue_memory.hpp"
#include "transport/emulated_nic.hpp"
#include "transport/kernel_queue_pairs.hpp"

namespace shoal::transport {
namespace {

namespace emu = emulator::gpu;

constexpr std::uint32_t kLargestMessage = 1U << 30;
constexpr std::uint32_t kAccess = emulator::Access::local_write | emulator::Access::remote_write |
                                  emulator::Access::remote_read | emulator::Access::remote_atomic;
constexpr auto kStopTime = std::chrono::seconds(5);
constexpr auto kLifetime = std::chrono::hours(12);
/// What waits for the whole GPU, such as the creation of a group, waits twice as long; the pause
/// between two slices is a thousandth of it.
constexpr auto kSlice = std::chrono::milliseconds(5);

/// The NICs of this process that run, by GPU: memory of a GPU is freed when all have stopped, since
/// that waits for kernels.
class Running {
 public:
  static Running& instance() {
    static auto* const running = new Running;
    return *running;
  }
  void add(int device) {
    const std::lock_guard lock(mutex_);
    ++count_[device];
  }
  void remove(int device) {
    const std::lock_guard lock(mutex_);
    --count_[device];
    changed_.notify_all();
  }
  bool wait_for_none(int device) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kStopTime, [&] { return count_[device] == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, int> count_;
};

class GpuNic final : public DeviceQueues {
 public:
  explicit GpuNic(const EmulatedNicContext& context);
  ~GpuNic() override;

  std::vector<Range> memory() const override { return {}; }
  Route route(Pe pe) const override;
  std::string describe(Pe pe) const override;

 private:
  struct Line {
    std::unique_ptr<emu::QueueMemory> memory;
    std::uint32_t number = 0;
  };
  struct Peer {
    std::uint64_t heap = 0;
    std::uint32_t key = 0;
    std::vector<Line> lines;
  };

  void add_line(Peer& peer, emulator::Ordering ordering);

  const Pe my_pe_;
  const int device_;
  const std::size_t heap_bytes_;
  const std::uint32_t blocks_;
  std::string text_;  ///< of its options
  emulator::Ordering ordering_{};
  std::unique_ptr<emu::Nic> nic_;
  std::uint32_t local_key_ = 0;
  mlx5::Memory sink_;
  std::vector<Peer> peers_;  ///< by PE
};

/// SHOAL_VERBS_DEPTH, as a size that rings have.
std::uint32_t blocks_of(const Settings& settings) {
  constexpr std::int64_t kLeast = 4, kMost = 32768;
  return std::bit_ceil(static_cast<std::uint32_t>(std::clamp(settings.verbs_depth, kLeast, kMost)));
}

GpuNic::GpuNic(const EmulatedNicContext& context)
    : my_pe_(context.my_pe),
      device_(context.device),
      heap_bytes_(context.heap_bytes),
      blocks_(blocks_of(context.settings)),
      peers_(context.heaps.size()) {
  const auto me = static_cast<std::size_t>(my_pe_);
  const auto others = static_cast<std::int64_t>(context.heaps.size()) -
                      std::ranges::count(context.heaps, nullptr) -
                      (context.heaps[me] != nullptr ? 1 : 0);
  const std::int64_t each = queue_pairs_for_kernels(
      context.settings, emu::kMostPairs / std::max<std::int64_t>(others, 1));
  require(
      others <= emu::kMostPairs, Code::invalid_argument,
      "{} PEs are on other nodes; the NIC of SHOAL_GDA=emulated has {} queue pairs; allowed: as "
      "many PEs",
      others, emu::kMostPairs);
  require(others * each <= emu::kMostPairs, Code::invalid_argument,
          "SHOAL_GDA_QUEUE_PAIRS is {} for {} PEs on other nodes; the NIC of SHOAL_GDA=emulated "
          "has {} queue pairs; allowed: 0 to {}",
          each, others, emu::kMostPairs, emu::kMostPairs / std::max<std::int64_t>(others, 1));
  emu::Environment environment = emu::read_environment();
  environment.nic.device = device_;
  environment.nic.lifetime = kLifetime;
  environment.nic.slice = kSlice;
  text_ = emu::describe(environment);
  ordering_ = environment.ordering;
  nic_ = std::make_unique<emu::Nic>(environment.nic);
  local_key_ =
      nic_->add_key({.memory = context.heaps[me], .length = heap_bytes_, .access = kAccess});
  for (std::size_t pe = 0; pe < peers_.size(); ++pe) {
    std::byte* const heap = context.heaps[pe];
    if (pe == me || heap == nullptr) continue;
    Peer& peer = peers_[pe];
    peer.heap = reinterpret_cast<std::uint64_t>(heap);
    peer.key = nic_->add_key({.memory = heap, .length = heap_bytes_, .access = kAccess});
    for (std::int64_t i = 0; i < each; ++i) add_line(peer, environment.ordering);
  }
  Running::instance().add(device_);
  try {
    nic_->start();
  } catch (...) {
    Running::instance().remove(device_);
    throw;
  }
}

void GpuNic::add_line(Peer& peer, emulator::Ordering ordering) {
  Line line;
  line.memory = std::make_unique<emu::QueueMemory>(device_, blocks_, false);
  if (sink_.address == 0) {
    std::byte* const word = line.memory->shared();
    sink_ = {reinterpret_cast<std::uint64_t>(word),
             nic_->add_key({.memory = word, .length = 8, .access = kAccess})};
  }
  line.number =
      nic_->add_queue_pair({.ring = line.memory->ring_bytes(),
                            .blocks = blocks_,
                            .record = line.memory->sends(),
                            .completions = nic_->add_completion_queue(
                                line.memory->entry_bytes(), line.memory->log_entries(), false),
                            .access = kAccess});
  emu::connect(*nic_, line.number, *nic_, line.number, ordering);
  peer.lines.push_back(std::move(line));
}

GpuNic::~GpuNic() {
  const bool stopped = nic_->stop();
  Running::instance().remove(device_);
  if (stopped && Running::instance().wait_for_none(device_)) return;
  log::warn("PE {}: emulated NICs of GPU {} have not stopped within 5 s; their memory is kept",
            my_pe_, device_);
  [[maybe_unused]] const auto* const kept_nic = nic_.release();
  for (Peer& peer : peers_)
    for (Line& line : peer.lines) {
      [[maybe_unused]] const auto* const kept_memory = line.memory.release();
    }
}

DeviceQueues::Route GpuNic::route(Pe pe) const {
  const Peer& peer = peers_[static_cast<std::size_t>(pe)];
  Route route;
  if (peer.lines.empty()) {
    route.obstacle = "the PE is out of reach of the NIC of SHOAL_GDA=emulated";
    return route;
  }
  route.on_gpu = true;
  route.strict = ordering_ == emulator::Ordering::strict;
  for (const Line& line : peer.lines) {
    const emu::QueueMemory& memory = *line.memory;
    route.queues.push_back(
        {.sends = {memory.ring(), blocks_, line.number, memory.sends(), memory.doorbell()},
         .completions = {memory.entries(), memory.log_entries(), nullptr}});
  }
  route.heap = {peer.heap, peer.key};
  route.local_key = local_key_;
  route.heap_bytes = heap_bytes_;
  route.sink = sink_;
  route.largest_message = kLargestMessage;
  return route;
}

std::string GpuNic::describe(Pe pe) const {
  const std::size_t count = peers_[static_cast<std::size_t>(pe)].lines.size();
  return fmt::format("{} queue pair{} for kernels on an emulated NIC of GPU {} ({})", count,
                     count == 1 ? "" : "s", device_, text_);
}

std::unique_ptr<DeviceQueues> make(const EmulatedNicContext& context) {
  try {
    return std::make_unique<GpuNic>(context);
  } catch (const std::invalid_argument& error) {
    fail(Code::invalid_argument, "SHOAL_GDA is emulated, but {}", error.what());
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& error) {
    fail(Code::system, "SHOAL_GDA is emulated, but {}", error.what());
  }
}

}  // namespace
}  // namespace shoal::transport

extern "C" __attribute__((visibility("default")))
const shoal::transport::EmulatedNicModule shoal_emulated_nic_module = {
    shoal::transport::kEmulatedNicVersion, shoal::transport::make};
