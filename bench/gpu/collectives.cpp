// SPDX-License-Identifier: Apache-2.0 collectives.cpp: collectives on streams, plain and in CUDA
// graphs, those of NCCL in the same run, and those of the host on the same memory. `bytes` are
// those of a PE's source: the elements of a reduction, the block of an all-gather, all blocks of an
// all-to-all and of a reduce-scatter.
#include <chrono>

#include "gpu/bench.hpp"
#include "gpu/nccl.hpp"
#include "shoal/collective.hpp"
#include "shoal/cuda_collective.hpp"

namespace shoal::bench::gpu {
namespace {

constexpr std::size_t kMostBytes = kMostCollectiveBytes;
/// The PEs of one all-gather and one all-to-all write so many bytes at most.
constexpr std::size_t kMostGathered = std::size_t{256} << 20;
constexpr std::size_t kLarge = std::size_t{16} << 20;  ///< bytes

class CollectivesBench {
 public:
  CollectivesBench(World& world, Peers& peers, const Options& options)
      : world_(world),
        peers_(peers),
        shape_(options.shape),
        sizes_(options.bytes),
        with_peer_(options.peer),
        on_(world.team(), stream_.get()),
        source_(world.heap().allocate<std::byte>(kMostBytes)),
        target_(world.heap().allocate<std::byte>(kMostBytes)),
        results_(peers, options, "collectives") {}

  void run() {
    if (with_peer_) nccl_ = Nccl::open(peers_, cuda::launch_context(world_).pes_on_device);
    if (nccl_ != nullptr) {
      results_.note("NCCL", nccl_->version());
      window_source_ = nccl_->window(kMostBytes);
      window_target_ = nccl_->window(kMostBytes);
    }
    measure("barrier", "Shoal", 0, [&] { on_.barrier(); });
    measure_host("barrier", 0, [&] { barrier(world_.team()); });
    if (sizes_.empty())
      for (std::size_t bytes = 256; bytes <= kMostBytes; bytes *= 4) sizes_.push_back(bytes);
    for (const std::size_t bytes : sizes_) {
      // Large ones take a millisecond each: a tenth of the chain is as steady.
      shape_.iterations = bytes > kLarge ? std::max<std::int64_t>(iterations_ / 8, 1) : iterations_;
      reduce(bytes);
      move(bytes);
    }
    nccl_.reset();
  }

 private:
  void finish() {
    if (cudaStreamSynchronize(stream_.get()) != cudaSuccess)
      throw Error(Code::system, "waiting for a chain of collectives");
    cuda::check_failures(world_);
  }

  void measure(const char* operation, const char* library, std::size_t bytes,
               const std::function<void()>& call) {
    const Operation repeated = [&](std::int64_t) { call(); };
    const auto labels = [&](const char* launch) {
      return Labels{
          {"operation", operation}, {"library", library}, {"launch", launch}, {"bytes", bytes}};
    };
    results_.add(labels("plain"),
                 time_chain(peers_, stream_.get(), shape_, repeated, [&] { finish(); }),
                 static_cast<double>(bytes));
    results_.add(labels("graph"),
                 time_graph(peers_, stream_.get(), shape_, repeated, [&] { finish(); }),
                 static_cast<double>(bytes));
  }

  /// A collective of the host, which returns when it is complete.
  void measure_host(const char* operation, std::size_t bytes, const std::function<void()>& call) {
    using Clock = std::chrono::steady_clock;
    for (std::int64_t i = 0; i < shape_.dropped; ++i) call();
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < shape_.iterations; ++i) call();
    Timing timing;
    timing.mean = std::chrono::duration<double>(Clock::now() - start).count() /
                  static_cast<double>(shape_.iterations);
    results_.add(
        {{"operation", operation}, {"library", "Shoal"}, {"launch", "host"}, {"bytes", bytes}},
        timing, static_cast<double>(bytes));
  }

  void reduce(std::size_t bytes) {
    using cuda::ElementType;
    const std::size_t count = bytes / 2;
    const auto n = static_cast<std::size_t>(peers_.count());
    void* const to = target_.data();
    const void* const from = source_.data();
    const cudaStream_t stream = stream_.get();
    measure("all-reduce", "Shoal", bytes,
            [&] { on_.reduce(ElementType::bfloat16, ReduceOp::sum, to, from, count); });
    measure("all-reduce, in place", "Shoal", bytes,
            [&] { on_.reduce(ElementType::bfloat16, ReduceOp::sum, to, to, count); });
    measure_host("all-reduce", bytes, [&] {
      shoal::reduce(world_.team(), DataType::bfloat16, ReduceOp::sum, to, from, count);
    });
    if (count % n == 0)
      measure("reduce-scatter", "Shoal", bytes, [&] {
        on_.reduce_scatter(ElementType::bfloat16, ReduceOp::sum, to, from, count / n);
      });
    if (nccl_ == nullptr) return;
    measure("all-reduce", "NCCL", bytes, [&] { nccl_->all_reduce_bf16(from, to, count, stream); });
    if (window_source_ != nullptr && window_target_ != nullptr)
      measure("all-reduce", "NCCL, window", bytes,
              [&] { nccl_->all_reduce_bf16(window_source_, window_target_, count, stream); });
    if (count % n == 0)
      measure("reduce-scatter", "NCCL", bytes,
              [&] { nccl_->reduce_scatter_bf16(from, to, count / n, stream); });
  }

  void move(std::size_t bytes) {
    const auto n = static_cast<std::size_t>(peers_.count());
    void* const to = target_.data();
    const void* const from = source_.data();
    const cudaStream_t stream = stream_.get();
    measure("broadcast", "Shoal", bytes, [&] { on_.broadcast_bytes(to, from, bytes, 0); });
    measure_host("broadcast", bytes, [&] { broadcast_bytes(world_.team(), to, from, bytes, 0); });
    if (nccl_ != nullptr)
      measure("broadcast", "NCCL", bytes, [&] { nccl_->broadcast(from, to, bytes, stream); });
    if (bytes * n <= kMostGathered) {
      measure("all-gather", "Shoal", bytes, [&] { on_.all_gather_bytes(to, from, bytes); });
      measure_host("all-gather", bytes, [&] { all_gather_bytes(world_.team(), to, from, bytes); });
      if (nccl_ != nullptr)
        measure("all-gather", "NCCL", bytes, [&] { nccl_->all_gather(from, to, bytes, stream); });
    }
    if (bytes % n != 0) return;
    measure("all-to-all", "Shoal", bytes, [&] { on_.all_to_all_bytes(to, from, bytes / n); });
    measure_host("all-to-all", bytes,
                 [&] { all_to_all_bytes(world_.team(), to, from, bytes / n); });
    if (nccl_ != nullptr)
      measure("all-to-all", "NCCL", bytes, [&] { nccl_->all_to_all(from, to, bytes / n, stream); });
  }

  World& world_;
  Peers& peers_;
  Shape shape_;
  const std::int64_t iterations_ = shape_.iterations;
  std::vector<std::size_t> sizes_;
  const bool with_peer_;
  const Stream stream_;
  const cuda::StreamCollectives on_;
  const SymmetricArray<std::byte> source_, target_;
  std::unique_ptr<Nccl> nccl_;
  void *window_source_ = nullptr, *window_target_ = nullptr;
  Results results_;
};

}  // namespace

void run_collectives(World& world, Peers& peers, const Options& options) {
  CollectivesBench(world, peers, options).run();
}

}  // namespace shoal::bench::gpu
