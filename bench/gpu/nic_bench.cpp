// SPDX-License-Identifier: Apache-2.0
// shoal-bench-gpu nic: kernels that write through the emulated NIC that is a kernel, on one GPU or
// from the first to the second.
#include "gpu/nic_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>

#include "base/check.hpp"
#include "engine/memory_keys.hpp"
#include "gpu/bench.hpp"
#include "gpu/cuda.hpp"
#include "gpu/nic.hpp"
#include "gpu/nic_kernels.hpp"
#include "gpu/queue_memory.hpp"
#include "gpu/state.hpp"

namespace shoal::bench::gpu {
namespace {

namespace gda = device::gda;
namespace emu = emulator::gpu;

constexpr std::uint32_t kBlocks = 256;
constexpr int kLanes = 32, kLaps = 1000;
constexpr std::uint64_t kLargest = 1 << 20;
constexpr std::uint64_t kBytesOfAQueue = kLanes * kLargest;

/// Zeroed memory of a GPU, or of the host where `device` is negative.
class Memory {
 public:
  Memory(int device, std::size_t bytes) : device_(device) {
    if (device < 0) {
      check(cudaHostAlloc(reinterpret_cast<void**>(&data_), bytes,
                          cudaHostAllocMapped | cudaHostAllocPortable),
            "pinned memory");
      std::memset(data_, 0, bytes);
      return;
    }
    const emu::OnDevice on(device);
    check(cudaMalloc(reinterpret_cast<void**>(&data_), bytes), "memory of a GPU");
    check(cudaMemset(data_, 0, bytes), "memory of a GPU");
    check(cudaStreamSynchronize(nullptr), "memory of a GPU");
  }
  ~Memory() { device_ < 0 ? cudaFreeHost(data_) : cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* at(std::size_t offset = 0) const { return data_ + offset; }

 private:
  static void check(cudaError_t result, const char* what) { emu::check(result, what); }
  int device_;
  std::byte* data_ = nullptr;
};

struct End {
  End(int on, int queues, std::uint64_t bytes, const emu::NicOptions& options)
      : device(on), memory(on, bytes), stream(on), nic(options) {
    constexpr std::uint32_t kAll = emulator::Access::local_write | emulator::Access::remote_write |
                                   emulator::Access::remote_read | emulator::Access::remote_atomic;
    key = nic.add_key({.memory = memory.at(), .length = bytes, .access = kAll});
    for (int i = 0; i < queues; ++i) {
      rings.push_back(std::make_unique<emu::QueueMemory>(on, kBlocks, true));
      const std::uint32_t completions =
          nic.add_completion_queue(rings.back()->entry_bytes(), 0, true);
      pairs.push_back(nic.add_queue_pair({.ring = rings.back()->ring_bytes(),
                                          .blocks = kBlocks,
                                          .record = rings.back()->sends(),
                                          .completions = completions,
                                          .access = kAll}));
    }
    const emu::OnDevice current(on);
    emu::check(load_nic_kernels(), "loading kernels");
  }

  /// The words at the begin of `memory` are for ping and pong.
  NicClient client(std::size_t i, const End& peer, emulator::Ordering ordering) const {
    NicClient client;
    gda::Queue& queue = client.queue;
    queue.sends = {rings[i]->ring(), kBlocks, pairs[i], rings[i]->sends(), rings[i]->doorbell()};
    queue.completions = {rings[i]->entries(), 0, nullptr};
    queue.shared = reinterpret_cast<gda::Shared*>(rings[i]->shared());
    queue.ordering = static_cast<gda::Ordering>(ordering);
    const std::uint64_t offset = i * kBytesOfAQueue;
    client.source = memory.at(offset);
    client.local = {reinterpret_cast<std::uint64_t>(memory.at(offset)), key};
    client.remote = {reinterpret_cast<std::uint64_t>(peer.memory.at(offset)), peer.key};
    queue.sink = {client.local.address + 2048, key};
    return client;
  }
  void wait(const char* what) const {
    const emu::OnDevice on(device);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    cudaError_t state = cudaStreamQuery(stream.get());
    while (state == cudaErrorNotReady && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      state = cudaStreamQuery(stream.get());
    }
    emu::check(state, what);
  }

  int device;
  Memory memory;
  std::vector<std::unique_ptr<emu::QueueMemory>> rings;
  std::vector<std::uint32_t> pairs;
  std::uint32_t key = 0;
  emu::KeptStream stream;
  emu::Nic nic;  // last: stopped before its memory is freed
};

/// Two NICs that run until this object ends.
struct Rig {
  Rig(const NicBenchOptions& options, double rate, emulator::Ordering its_ordering, int queues)
      : ordering(its_ordering),
        a(options.here, queues, kBytesOfAQueue * static_cast<std::uint64_t>(queues),
          nic_options(options, options.here, rate)),
        b(options.there, queues, kBytesOfAQueue * static_cast<std::uint64_t>(queues),
          nic_options(options, options.there, rate)),
        shared(-1, kShared) {
    for (std::size_t i = 0; i < a.pairs.size(); ++i)
      emu::connect(a.nic, a.pairs[i], b.nic, b.pairs[i], ordering);
    a.nic.start();
    b.nic.start();
  }
  ~Rig() {
    a.nic.stop();
    b.nic.stop();
  }
  static emu::NicOptions nic_options(const NicBenchOptions& options, int device, double rate) {
    emu::NicOptions made;
    made.device = device;
    made.blocks = options.sms;
    made.bytes_per_ns = rate;
    made.delay = std::chrono::nanoseconds(options.delay_ns);
    made.lifetime = std::chrono::minutes(2);
    return made;
  }
  NicTimes* times() const { return reinterpret_cast<NicTimes*>(shared.at(0)); }
  NicClient* clients() const { return reinterpret_cast<NicClient*>(shared.at(4096)); }
  std::uint64_t* laps() const { return reinterpret_cast<std::uint64_t*>(shared.at(32768)); }

  static constexpr std::size_t kShared = 1 << 16;
  emulator::Ordering ordering;
  End a, b;
  Memory shared;  ///< pinned: read by kernels, written by them
};

void check_times(const NicTimes& times, const char* what) {
  constexpr const char* kReasons[] = {"", "an operation failed", "the answer did not come"};
  require(times.failed == 0, Code::system, "nic: {}: {}", what, kReasons[times.failed]);
}

class Report {
 public:
  explicit Report(std::string path) : path_(std::move(path)) {}
  void add(nlohmann::ordered_json line) {
    for (const auto& [name, value] : line.items())
      fmt::print("{} {}  ", name, value.is_string() ? value.get<std::string>() : value.dump());
    fmt::print("\n");
    std::fflush(stdout);
    lines_.push_back(std::move(line));
    if (path_.empty()) return;
    std::ofstream file(path_);
    file << nlohmann::ordered_json{{"benchmark", "nic"}, {"lines", lines_}}.dump(1) << "\n";
  }

 private:
  std::string path_;
  std::vector<nlohmann::ordered_json> lines_;
};

constexpr const char* kTiers[] = {"strict", "adaptive", "unordered"};

emulator::Ordering ordering_of(const std::string& name) {
  const auto* const at = std::ranges::find(kTiers, name);
  require(at != std::end(kTiers), Code::invalid_argument,
          "nic: order \"{}\"; allowed: strict, adaptive, unordered", name);
  return static_cast<emulator::Ordering>(at - std::begin(kTiers));
}

double rounded(double value) {
  return static_cast<double>(static_cast<std::int64_t>(value * 1000 + 0.5)) / 1000;
}

void measure_rate(const Rig& rig, double rate, std::uint32_t bytes, Report& report) {
  constexpr std::uint64_t kTotal = std::uint64_t{256} << 20;
  const auto queues = static_cast<int>(rig.a.pairs.size());
  const std::uint64_t per_lap = std::uint64_t{bytes} * kLanes * static_cast<std::uint64_t>(queues);
  const int laps = static_cast<int>(std::clamp<std::uint64_t>(kTotal / per_lap, 4, 300));
  for (int i = 0; i < queues; ++i) {
    rig.clients()[i] = rig.a.client(static_cast<std::size_t>(i), rig.b, rig.ordering);
    rig.clients()[i].stride = std::max<std::uint64_t>(bytes, 64);
  }
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    {
      const emu::OnDevice on(rig.a.device);
      launch_puts(rig.clients(), queues, bytes, laps, rig.times(), rig.a.stream.get());
    }
    rig.a.wait("puts");
    std::uint64_t start = ~std::uint64_t{0}, end = 0;
    for (int i = 0; i < queues; ++i) {
      check_times(rig.times()[i], "puts");
      start = std::min(start, rig.times()[i].start);
      end = std::max(end, rig.times()[i].end);
    }
    best = std::max(best, static_cast<double>(per_lap) * laps / static_cast<double>(end - start));
  }
  nlohmann::ordered_json line{{"operation", "put"},
                              {"order", kTiers[static_cast<int>(rig.ordering)]},
                              {"throttle_GB_s", rate},
                              {"queue_pairs", queues},
                              {"bytes", bytes},
                              {"GB_s", rounded(best)},
                              {"M_messages_s", rounded(best / bytes * 1000)}};
  if (rate > 0) line["share_of_throttle"] = rounded(best / rate);
  report.add(line);
}

void add_times(const Rig& rig, const char* what, std::uint32_t bytes, double part, Report& report) {
  std::vector<std::uint64_t> times(rig.laps() + kLaps / 10, rig.laps() + kLaps);
  std::ranges::sort(times);
  const auto at = [&](double share) {
    return rounded(
        part * 1e-3 *
        static_cast<double>(
            times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))]));
  };
  report.add({{"operation", what},
              {"order", kTiers[static_cast<int>(rig.ordering)]},
              {"bytes", bytes},
              {"p50_us", at(0.5)},
              {"p99_us", at(0.99)}});
}

/// Half a round trip; both ends use their NICs.
void measure_visible(const NicBenchOptions& options, double rate, emulator::Ordering ordering,
                     std::uint32_t with_data, Report& report) {
  const Rig rig(options, rate, ordering, 1);
  const auto* const answer = reinterpret_cast<const std::uint64_t*>(rig.a.memory.at());
  const auto* const question = reinterpret_cast<const std::uint64_t*>(rig.b.memory.at());
  {
    const emu::OnDevice on(rig.b.device);
    launch_pong(rig.b.client(0, rig.a, ordering), with_data, question, kLaps, rig.times() + 1,
                rig.b.stream.get());
  }
  {
    const emu::OnDevice on(rig.a.device);
    launch_ping(rig.a.client(0, rig.b, ordering), with_data, answer, kLaps, rig.laps(), rig.times(),
                rig.a.stream.get());
  }
  rig.a.wait("ping");
  rig.b.wait("pong");
  check_times(rig.times()[0], "ping");
  check_times(rig.times()[1], "pong");
  add_times(rig, with_data == 0 ? "put until visible" : "put and signal until visible",
            with_data == 0 ? 8 : with_data, 0.5, report);
}

void measure_completed(const NicBenchOptions& options, double rate, emulator::Ordering ordering,
                       Report& report) {
  const Rig rig(options, rate, ordering, 1);
  {
    const emu::OnDevice on(rig.a.device);
    launch_completed_puts(rig.a.client(0, rig.b, ordering), kLaps, rig.laps(), rig.times(),
                          rig.a.stream.get());
  }
  rig.a.wait("completed puts");
  check_times(rig.times()[0], "completed puts");
  add_times(rig, "put until complete", 8, 1, report);
}

}  // namespace

void run_nic(const NicBenchOptions& options) {
  // Before CUDA starts: a kernel must not be loaded behind that of a NIC.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  int count = 0;
  require(cudaGetDeviceCount(&count) == cudaSuccess && count > 0, Code::unsupported,
          "nic: {} GPUs; allowed: 1 or more", count);
  for (const int device : {options.here, options.there})
    require(device >= 0 && device < count, Code::invalid_argument, "nic: GPU {}; allowed: 0 to {}",
            device, count - 1);
  Report report(options.json_path);
  std::vector<emulator::Ordering> orderings;
  for (const std::string& name : options.orders) orderings.push_back(ordering_of(name));
  for (const std::uint32_t bytes : options.bytes)
    require(bytes >= 1 && bytes <= kLargest, Code::invalid_argument,
            "nic: {} bytes; allowed: 1 to {}", bytes, kLargest);
  for (const emulator::Ordering ordering : orderings) {
    measure_visible(options, options.rate, ordering, 0, report);
    measure_visible(options, options.rate, ordering, 8192, report);
    measure_completed(options, options.rate, ordering, report);
  }
  std::vector<double> rates = {options.rate};
  if (options.unthrottled) rates.push_back(0);
  for (const double rate : rates)
    for (const emulator::Ordering ordering : orderings)
      for (const int queues : options.queue_pairs) {
        const Rig rig(options, rate, ordering, queues);
        for (const std::uint32_t bytes : options.bytes) measure_rate(rig, rate, bytes, report);
      }
}

}  // namespace shoal::bench::gpu
