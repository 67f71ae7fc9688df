// SPDX-License-Identifier: Apache-2.0
#include "gpu/nic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gpu/cuda.hpp"
#include "gpu/kernel.hpp"
#include "shoal/device/detail/mlx5/format.hpp"

namespace shoal::emulator::gpu {
namespace {

constexpr std::uint32_t kJobs = 1024;
constexpr std::uint32_t kFirstPair = 0x100;
constexpr auto kHeartbeat = std::chrono::milliseconds(20);
constexpr auto kSlicePoll = std::chrono::microseconds(500);
constexpr auto kStopTime = std::chrono::seconds(5);
constexpr std::size_t kMostPeers = kMostPairs;

template <typename T>
void check_range(const char* what, T value, T least, T most) {
  if (value < least || value > most)
    throw std::invalid_argument(fmt::format("emulated NIC on a GPU: {} is {}; allowed: {} to {}",
                                            what, value, least, most));
}

/// Zeroed memory of the current GPU. Kept where a kernel may still use it.
template <typename T>
class DeviceArray {
 public:
  void allocate(std::size_t count) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), "allocating its state");
    check(cudaMemset(data_, 0, count * sizeof(T)), "clearing its state");
    check(cudaStreamSynchronize(nullptr), "clearing its state");
  }
  void upload(const std::vector<T>& values, cudaStream_t stream) {
    check(cudaMemcpyAsync(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice,
                          stream),
          "writing its state");
    check(cudaStreamSynchronize(stream), "writing its state");
  }
  void free() {
    cudaFree(data_);
    data_ = nullptr;
  }
  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
};

const NicOptions& validated(const NicOptions& options) {
  check_range("the number of blocks", options.blocks, 1, 4);
  check_range("the number of warps of a block", options.warps, 2, kMostWarps);
  check_range("the rate in bytes per nanosecond", options.bytes_per_ns, 0.0, 1e4);
  check_range<std::uint32_t>("the number of keys", options.keys, 1, 1U << 20);
  check_range<std::uint32_t>("the room for queue pairs", options.pairs, 0, kMostPairs);
  for (const auto& [name, value] :
       {std::pair("the delay", options.delay), std::pair("the reordering", options.reorder),
        std::pair("the retry time", options.retry),
        std::pair("the owner's timeout", options.owner_timeout),
        std::pair("the lifetime", options.lifetime), std::pair("the slice", options.slice)})
    check_range<std::int64_t>(name, value.count(), 0, 24 * 3600 * std::int64_t{1'000'000'000});
  return options;
}

Timing timing_of(const NicOptions& options) {
  const auto ns = [](Nanoseconds time) { return static_cast<std::uint64_t>(time.count()); };
  Timing timing;
  timing.byte_cost =
      options.bytes_per_ns > 0
          ? std::max<std::uint64_t>(1, static_cast<std::uint64_t>(65536 / options.bytes_per_ns))
          : 0;
  timing.delay = ns(options.delay);
  timing.reorder = ns(options.reorder);
  timing.retry = ns(options.retry);
  timing.owner_timeout = ns(options.owner_timeout);
  timing.lifetime = ns(options.lifetime);
  timing.slice = ns(options.slice);
  timing.seed = options.seed;
  return timing;
}

}  // namespace

struct Nic::Implementation {
  explicit Implementation(const NicOptions& its_options)
      : options(validated(its_options)),
        stream(options.device),
        updates(options.device),
        shape{options.blocks, options.warps} {
    const OnDevice on(options.device);
    check(cudaHostAlloc(reinterpret_cast<void**>(&control), sizeof *control,
                        cudaHostAllocMapped | cudaHostAllocPortable),
          "allocating its control words");
    *control = {};
    state.allocate(1);
    configs.allocate(kMostPairs);
    queues.allocate(kMostPairs);
    tables.allocate(kMostPeers + 1);
    counters.allocate(std::size_t{kMostPairs} * kWindow);
    reports.allocate(kMostPairs);
    ended.allocate(kMostPairs);
    jobs.allocate(kJobs);
    done.allocate(kJobs);
    saved.allocate(saved_bytes(kMostPairs));
    (void)add_table();
  }

  ~Implementation() {
    const bool ended_in_time = stop();
    for (auto& [peer, table] : reached) std::erase(peer->observers, this);
    for (Implementation* observer : observers) observer->reached.erase(this);
    if (!ended_in_time) {  // the kernel still uses the memory
      stream.abandon();
      return;
    }
    for (auto& table : regions) table.free();
    state.free();
    configs.free();
    queues.free();
    tables.free();
    counters.free();
    reports.free();
    ended.free();
    jobs.free();
    done.free();
    saved.free();
    cudaFreeHost(control);
  }

  void require_not_started(const char* call) const {
    if (started)
      throw std::invalid_argument(
          fmt::format("emulated NIC on a GPU: {}() after start(); allowed: once", call));
  }
  /// The NIC reads a configuration once.
  void require_unknown(std::uint32_t index) const {
    if (index < known)
      throw std::invalid_argument(fmt::format(
          "emulated NIC on a GPU: queue pair {} is in use; allowed: before start() or update()",
          index + kFirstPair));
  }
  std::uint32_t index_of(std::uint32_t pair) const {
    check_range<std::uint32_t>("the number of a queue pair", pair, kFirstPair,
                               kFirstPair + static_cast<std::uint32_t>(pairs.size()) - 1);
    return pair - kFirstPair;
  }

  std::uint32_t add_table() {
    DeviceArray<Region> table;
    table.allocate(options.keys);
    regions.push_back(table);
    return static_cast<std::uint32_t>(regions.size() - 1);
  }

  /// Fields first, then the key; to remove it, the key alone.
  void write_region(std::uint32_t table, std::uint32_t index, const Region& region) {
    const OnDevice on(options.device);
    Region* const at = regions[table].get() + index;
    static_assert(offsetof(Region, key) == 0);
    const auto write = [&](const Region& from, std::size_t bytes) {
      check(cudaMemcpyAsync(at, &from, bytes, cudaMemcpyHostToDevice, updates.get()),
            "writing a memory key");
      check(cudaStreamSynchronize(updates.get()), "writing a memory key");
    };
    // A look-up under way may still have the key: the other fields stay until the next region.
    if (region.key != 0) {
      Region unnamed = region;
      unnamed.key = 0;
      write(unnamed, sizeof unnamed);
    }
    write(region, sizeof region.key);
    ++key_changes;
    if (!started) return;
    check(cudaMemcpyAsync(&state.get()->key_changes, &key_changes, sizeof key_changes,
                          cudaMemcpyHostToDevice, updates.get()),
          "announcing a memory key");
    check(cudaStreamSynchronize(updates.get()), "announcing a memory key");
  }
  void publish_region(std::uint32_t index) {
    write_region(0, index, own[index]);
    for (Implementation* const observer : observers)
      observer->write_region(observer->reached.at(this), index, own[index]);
  }

  /// The table of `peer`'s keys.
  std::uint32_t reach(Implementation& peer) {
    if (&peer == this) return 0;
    if (const auto at = reached.find(&peer); at != reached.end()) return at->second;
    if (peer.options.device != options.device) {
      const OnDevice on(options.device);
      const cudaError_t result = cudaDeviceEnablePeerAccess(peer.options.device, 0);
      if (result != cudaErrorPeerAccessAlreadyEnabled) check(result, "reaching the peer's GPU");
      (void)cudaGetLastError();
    }
    check_range<std::uint32_t>("the size of the peer's key table", peer.options.keys, 1,
                               options.keys);
    const OnDevice on(options.device);
    const std::uint32_t table = add_table();
    reached[&peer] = table;
    peer.observers.push_back(this);
    for (std::uint32_t i = 0; i < peer.own.size(); ++i) write_region(table, i, peer.own[i]);
    return table;
  }

  /// Writes the queue pairs to the GPU. Returns how many are connected.
  std::uint32_t upload_pairs() {
    std::vector<KeyTable> all;
    for (const auto& table : regions)
      all.push_back({table.get(), options.keys, static_cast<std::uint32_t>(all.size())});
    configs.upload(pairs, updates.get());
    queues.upload(completions, updates.get());
    tables.upload(all, updates.get());
    const auto last = std::ranges::find(pairs, 0U, &QueuePairConfig::peer_number);
    return static_cast<std::uint32_t>(last - pairs.begin());
  }

  void update() {
    if (!started)
      throw std::invalid_argument(
          "emulated NIC on a GPU: update() before start(); allowed: after start()");
    check_range<std::size_t>("the number of queue pairs", pairs.size(), 0, room);
    const OnDevice on(options.device);
    const std::uint64_t count = upload_pairs();
    check(cudaMemcpyAsync(&state.get()->n_pairs, &count, sizeof count, cudaMemcpyHostToDevice,
                          updates.get()),
          "announcing queue pairs");
    check(cudaStreamSynchronize(updates.get()), "announcing queue pairs");
    known = static_cast<std::uint32_t>(count);
  }

  void start() {
    require_not_started("start");
    const OnDevice on(options.device);
    room = std::max(options.pairs, static_cast<std::uint32_t>(pairs.size()));
    NicState value;
    value.timing = timing_of(options);
    value.n_pairs = known = upload_pairs();
    value.pairs = configs.get();
    value.completions = queues.get();
    value.tables = tables.get();
    value.key_changes = key_changes;
    value.counters = counters.get();
    value.reports = reports.get();
    check(cudaHostGetDevicePointer(reinterpret_cast<void**>(&value.control), control, 0),
          "mapping its control words");
    value.saved = saved.get();
    value.ring.jobs = jobs.get();
    value.ring.done = done.get();
    value.ring.size = kJobs;
    check(cudaMemcpy(state.get(), &value, sizeof value, cudaMemcpyHostToDevice),
          "writing its state");
    check(prepare_nic(room, shape), "loading its kernel");
    started = true;
    check(launch_nic(state.get(), room, shape, stream.get(), false), "starting its kernel");
    heart = std::thread([this] { beat(); });
  }

  /// Heartbeats; with slices, also keeps one more kernel queued than runs.
  void beat() {
    const bool has_slices = options.slice.count() != 0;
    if (has_slices && cudaSetDevice(options.device) != cudaSuccess) return;
    std::uint64_t launched = 1;
    while (!heart_stops.load()) {
      std::atomic_ref(control->heartbeat).fetch_add(1);
      if (!has_slices) {
        std::this_thread::sleep_for(kHeartbeat);
        continue;
      }
      if (launched - std::atomic_ref(control->slices).load() < 2) {
        if (launch_nic(state.get(), room, shape, stream.get(), true) != cudaSuccess) return;
        ++launched;
      }
      std::this_thread::sleep_for(kSlicePoll);
    }
  }

  bool stop() {
    if (!started) return true;
    std::atomic_ref(control->stop).store(1);
    const auto end = std::chrono::steady_clock::now() + kStopTime;
    if (options.slice.count() != 0) {  // no further kernel; those that are queued stop at once
      heart_stops = true;
      if (heart.joinable()) heart.join();
    }
    while (cudaStreamQuery(stream.get()) == cudaErrorNotReady &&
           std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    heart_stops = true;
    if (heart.joinable()) heart.join();
    return cudaStreamQuery(stream.get()) != cudaErrorNotReady;
  }

  const NicOptions options;
  Control* control = nullptr;
  KeptStream stream, updates;
  DeviceArray<NicState> state;
  DeviceArray<QueuePairConfig> configs;
  DeviceArray<CompletionQueueConfig> queues;
  DeviceArray<KeyTable> tables;
  std::vector<DeviceArray<Region>> regions;  ///< by table; 0 is its own
  DeviceArray<std::uint64_t> counters, ended, done;
  DeviceArray<QueuePairReport> reports;
  DeviceArray<Job> jobs;
  DeviceArray<std::byte> saved;

  std::vector<QueuePairConfig> pairs;
  std::vector<std::uint32_t> granted;  ///< Access bits, by queue pair
  std::vector<CompletionQueueConfig> completions;
  std::vector<Region> own;
  std::map<Implementation*, std::uint32_t> reached;  ///< tables of peers
  std::vector<Implementation*> observers;            ///< NICs that have a table of this one
  std::uint64_t key_changes = 0;
  bool started = false;
  NicShape shape;
  std::uint32_t room = 0;   ///< for queue pairs
  std::uint32_t known = 0;  ///< queue pairs that the NIC has read
  std::atomic<bool> heart_stops{false};
  std::thread heart;
};

Nic::Nic(const NicOptions& options) : self_(std::make_unique<Implementation>(options)) {}
Nic::~Nic() = default;

std::uint32_t Nic::add_key(const KeyOptions& options) {
  Implementation& self = *self_;
  const auto index = static_cast<std::uint32_t>(self.own.size());
  check_range<std::uint32_t>("the number of keys", index + 1, 1, self.options.keys);
  const auto memory = reinterpret_cast<std::uint64_t>(options.memory);
  self.own.push_back({.key = std::uint64_t{index + kFirstKey} << 8,
                      .domain = options.domain,
                      .access = options.access,
                      .address = options.address != 0 ? options.address : memory,
                      .length = options.length,
                      .memory = memory});
  self.publish_region(index);
  return (index + kFirstKey) << 8;
}

void Nic::remove_key(std::uint32_t key) {
  const std::uint32_t index = (key >> 8) - kFirstKey;
  if (index >= self_->own.size() || self_->own[index].key != key)
    throw std::invalid_argument(
        fmt::format("emulated NIC on a GPU: the key is {:#x}; allowed: a key of add_key()", key));
  self_->own[index] = {};
  self_->publish_region(index);
}

std::uint32_t Nic::add_completion_queue(std::byte* entries, std::uint32_t log_size,
                                        bool collapsed) {
  check_range<std::uint32_t>("the logarithm of the entries", log_size, 0, 22);
  check_range<std::size_t>("the number of completion queues", self_->completions.size() + 1, 1,
                           kMostPairs);
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, entries), "finding a completion queue");
  const bool is_near =
      attributes.type == cudaMemoryTypeDevice && attributes.device == self_->options.device;
  self_->completions.push_back({entries, log_size, collapsed, is_near});
  return static_cast<std::uint32_t>(self_->completions.size() - 1);
}

std::uint32_t Nic::add_queue_pair(const QueuePairOptions& options) {
  Implementation& self = *self_;
  check_range<std::size_t>("the number of queue pairs", self.pairs.size() + 1, 1, kMostPairs);
  if (options.record != nullptr) {
    if (!std::has_single_bit(options.blocks) || options.blocks > mlx5::kMostBlocks)
      throw std::invalid_argument(fmt::format(
          "emulated NIC on a GPU: a ring has {} blocks; allowed: powers of two up to {}",
          options.blocks, mlx5::kMostBlocks));
    if (options.completions >= self.completions.size())
      throw std::invalid_argument(
          fmt::format("emulated NIC on a GPU: the completion queue is {}; allowed: less than {}",
                      options.completions, self.completions.size()));
  }
  const auto index = static_cast<std::uint32_t>(self.pairs.size());
  self.pairs.push_back({.number = kFirstPair + index,
                        .blocks = options.blocks,
                        .ring = options.ring,
                        .record = options.record,
                        .completions = options.completions,
                        .domain = options.domain,
                        .user_index = options.user_index,
                        .ended = self.ended.get() + index});
  self.granted.push_back(options.access);
  return kFirstPair + index;
}

void Nic::start() {
  self_->start();
}
void Nic::update() {
  self_->update();
}
bool Nic::stop() {
  return self_->stop();
}
bool Nic::is_running() const {
  return self_->started && cudaStreamQuery(self_->stream.get()) == cudaErrorNotReady;
}
Stopped Nic::stopped() const {
  return static_cast<Stopped>(std::atomic_ref(self_->control->stopped).load());
}

QueuePairReport Nic::report(std::uint32_t pair) const {
  const OnDevice on(self_->options.device);
  QueuePairReport report;
  check(cudaMemcpyAsync(&report, self_->reports.get() + self_->index_of(pair), sizeof report,
                        cudaMemcpyDeviceToHost, self_->updates.get()),
        "reading a report");
  check(cudaStreamSynchronize(self_->updates.get()), "reading a report");
  return report;
}

void Nic::end(std::uint32_t pair, Ended ended) {
  const OnDevice on(self_->options.device);
  const auto word = static_cast<std::uint64_t>(ended);
  check(cudaMemcpyAsync(self_->ended.get() + self_->index_of(pair), &word, sizeof word,
                        cudaMemcpyHostToDevice, self_->updates.get()),
        "ending a queue pair");
  check(cudaStreamSynchronize(self_->updates.get()), "ending a queue pair");
}

void connect(Nic& a, std::uint32_t pair_of_a, Nic& b, std::uint32_t pair_of_b, Ordering ordering) {
  const auto one_way = [ordering](Nic::Implementation& from, std::uint32_t pair,
                                  Nic::Implementation& to, std::uint32_t peer) {
    from.require_unknown(from.index_of(pair));
    QueuePairConfig& config = from.pairs[from.index_of(pair)];
    const std::uint32_t index = to.index_of(peer);
    config.ordering = ordering;
    config.table = from.reach(to);
    config.peer_number = peer;
    config.peer_domain = to.pairs[index].domain;
    config.peer_access = to.granted[index];
    config.peer_ended = to.ended.get() + index;
  };
  one_way(*a.self_, pair_of_a, *b.self_, pair_of_b);
  one_way(*b.self_, pair_of_b, *a.self_, pair_of_a);
}

}  // namespace shoal::emulator::gpu
