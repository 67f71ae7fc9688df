// SPDX-License-Identifier: Apache-2.0
// nodes.cpp: GPUs on several (emulated) nodes, which do not reach each other's memory: groups whose
// rows are sent by kernels or pass through the host (SHOAL_EP_BETWEEN_NODES), and put, get and
// atomics on heaps, by the host and on a stream.
//
// Times are the host's, between barriers. "pair" waits for its sizes; "pairs in a chain" are queued
// without waiting, which only kernels allow, and are timed together. "copies" is the lower bound of
// any path through the host: the rows of the pair once to pinned host memory and once back.
#include <chrono>
#include <functional>

#include "base/check.hpp"
#include "gpu/bench.hpp"
#include "shoal/cuda.hpp"

namespace shoal::bench::gpu {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

ep::GroupOptions staged_options(const Options& options) {
  ep::GroupOptions group = normal_options(options, options.shape.tokens);
  group.combine_staging = true;  // expert outputs are in GPU memory, out of reach of other nodes
  return group;
}

class NodesBench {
 public:
  NodesBench(World& world, Peers& peers, const Options& options, Results& results)
      : world_(world),
        peers_(peers),
        shape_(options.shape),
        results_(results),
        group_(world.team(), staged_options(options)),
        output_(device_tensor(DataType::bfloat16, {shape_.tokens, shape_.hidden})),
        factors_(expert_factors(group_, peers.me())),
        batch_(make_device_batch(shape_, shape_.tokens, peers, 0, stream_.get())) {}

  void run() {
    const ep::Routing routing = group_.route(batch_.topk_idx, launch());
    double rows = 0;
    const auto pair = [&] {
      ep::DispatchOptions options;
      options.weights = batch_.weights;
      options.launch = launch();
      const ep::Dispatched received = group_.dispatch(batch_.x, routing, options);
      rows = static_cast<double>(*received.rows);
      run_experts(received);
      ep::CombineOptions back;
      back.out = output_;
      back.launch = launch();
      group_.combine(received.x, received.handle, back);
    };
    pair();
    check_output(batch_, output_, batch_.factor, batch_.size,
                 ep::detail::combine_error(ep::detail::normal_mode_levels(
                     peers_.count(), routing.device_counts->tokens_per_node.shape[0])),
                 stream_.get(), "pair between nodes");
    const double bytes = 2 * rows * static_cast<double>(shape_.row_bytes());
    results_.note("rows between nodes", world_.settings().ep_between_nodes);
    time("pair", bytes, shape_.iterations, pair);
    time_chain(routing, bytes);
    time_copies(static_cast<std::size_t>(bytes / 2));
    time_operations();
    group_.close();
  }

 private:
  static constexpr std::size_t kLong = std::size_t{64} << 20;  ///< bytes

  ep::Launch launch() const {
    return {.stream = stream_.get(), .after = nullptr, .done = nullptr, .sms = 0};
  }

  /// Replaces each row by the output of the experts here, in place.
  void run_experts(const ep::Dispatched& received) const {
    NormalExperts experts;
    experts.x = received.x;
    experts.topk_idx = received.topk_idx.value_or(Tensor());
    experts.weights = received.topk_weights.value_or(Tensor());
    experts.row_count = received.device_counts->rows;
    experts.factors = factors_;
    experts.outputs = received.x;
    gpu::run_experts(stream_.get(), experts);
  }

  /// `body` makes `calls` calls; the time of one.
  template <typename Body>
  void time(const char* operation, double bytes, std::int64_t count, Body&& body, int calls = 1) {
    Timing timing;
    peers_.barrier();
    for (std::int64_t i = 0; i < count; ++i) {
      const auto start = Clock::now();
      body();
      timing.samples.push_back(seconds_since(start) / calls);
      timing.mean += timing.samples.back() / static_cast<double>(count);
    }
    peers_.barrier();
    results_.add({{"operation", operation}, {"tokens", shape_.tokens}}, timing, bytes);
  }

  /// Pairs of the largest result, without waiting between them; the time of one.
  void time_chain(const ep::Routing& routing, double bytes) {
    constexpr int kPairs = 8;
    ep::DispatchOptions options;
    options.weights = batch_.weights;
    options.worst_case_rows = shape_.tokens * peers_.count();
    options.launch = launch();
    ep::CombineOptions back;
    back.out = output_;
    back.launch = launch();
    const auto chain = [&] {
      for (int i = 0; i < kPairs; ++i) {
        const ep::Dispatched received = group_.dispatch(batch_.x, routing, options);
        group_.combine(received.x, received.handle, back);
      }
      check(cudaStreamSynchronize(stream_.get()), "a chain of pairs");
    };
    chain();
    time("pairs in a chain", bytes, shape_.iterations, chain, kPairs);
  }

  void time_copies(std::size_t bytes) {
    void* host = nullptr;
    check(cudaMallocHost(&host, bytes), "allocating pinned memory");
    const Tensor gpu = device_tensor(DataType::uint8, {static_cast<std::int64_t>(bytes)});
    time("copies", static_cast<double>(2 * bytes), shape_.iterations, [&] {
      check(cudaMemcpyAsync(host, gpu.data, bytes, cudaMemcpyDeviceToHost, stream_.get()), "copy");
      check(cudaMemcpyAsync(gpu.data, host, bytes, cudaMemcpyHostToDevice, stream_.get()), "copy");
      check(cudaStreamSynchronize(stream_.get()), "copy");
    });
    check(cudaFreeHost(host), "freeing pinned memory");
  }

  void time_operations() {
    const auto heap = world_.heap().allocate<std::byte>(kLong);
    const auto word = world_.heap().allocate<std::uint64_t>(1);
    const Tensor mine = device_tensor(DataType::uint8, {static_cast<std::int64_t>(kLong)});
    const std::span<std::byte> local(mine.as<std::byte>(), kLong);
    const Pe other = (peers_.me() + peers_.count() / 2) % peers_.count();
    results_.note("transport to the other node", world_.describe_transport(other));
    time("put 64 MiB", kLong, 16, [&] {
      world_.put_nbi(heap.on(other), local);
      world_.quiet();
    });
    time("get 64 MiB", kLong, 16, [&] { world_.get(local, heap.on(other)); });
    time("put 8 B", 0, 1000, [&] { world_.put_value(word.on(other)[0], 1); });
    time("atomic fetch_add", 0, 1000, [&] { world_.atomic_fetch_add(word.on(other)[0], 1); });
    time_stream_operations(heap.on(other), word.on(other)[0], mine);
  }

  /// The same on a stream; each time ends when the stream has.
  void time_stream_operations(RemoteSpan<std::byte> heap, RemoteSpan<std::uint64_t> word,
                              const Tensor& mine) {
    const cuda::StreamOperations on(world_, stream_.get());
    const auto measure = [&](const char* name, double bytes, std::int64_t count,
                             const std::function<void()>& body) {
      time(name, bytes, count, [&] {
        body();
        check(cudaStreamSynchronize(stream_.get()), name);
      });
      cuda::check_failures(world_);
    };
    measure("put 64 MiB on a stream", kLong, 16,
            [&] { on.put_bytes(heap.address, mine.data, kLong); });
    measure("get 64 MiB on a stream", kLong, 16,
            [&] { on.get_bytes(mine.data, heap.address, kLong); });
    measure("put 8 B on a stream", 0, 1000, [&] { on.put_value(word, 1); });
    measure("atomic add on a stream", 0, 1000, [&] { on.atomic(AtomicOp::add, word, 1, nullptr); });
    measure("signal on a stream", 0, 1000, [&] { on.signal(word, SignalOp::add, 1); });
    measure("barrier on a stream", 0, 1000, [&] { on.barrier(world_.team()); });
  }

  World& world_;
  Peers& peers_;
  const Shape shape_;
  Results& results_;
  Stream stream_;
  ep::Group group_;
  Tensor output_, factors_;
  DeviceBatch batch_;
};

}  // namespace

void run_nodes(World& world, Peers& peers, const Options& options) {
  require(world.pes_per_node() < world.n_pes(), Code::invalid_argument,
          "all {} PEs are on one node; this part is about several: set SHOAL_NODE_SIZE",
          world.n_pes());
  Results results(peers, options, "nodes");
  NodesBench(world, peers, options, results).run();
}

}  // namespace shoal::bench::gpu
