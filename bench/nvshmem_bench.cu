// SPDX-License-Identifier: Apache-2.0 nvshmem_bench.cu: times of operations in kernels and on
// streams by nvshmem.h, and of the same operations by Shoal's own names, on the same heap and in
// the same run.
//
//   shoal-run -n 2 shoal-bench-nvshmem
//
// Every PE works on the next one; all end a row together. PE 0 prints a row per operation: bytes,
// microseconds by nvshmem.h and by Shoal's own names (the least of kRounds means of a kernel with
// kRepeats operations, launch included, or of kRepeats calls on a stream), and their ratio. Both
// are measured in turn within a round. Status 77: no GPU.
#include <nvshmem.h>
#include <nvshmemx.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>

namespace {

namespace device = shoal::device;

constexpr int kRounds = 9;
constexpr unsigned kRepeats = 256;
constexpr std::size_t kMostBytes = std::size_t{1} << 20;

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "shoal-bench-nvshmem: %s: %s\n", what, cudaGetErrorString(result));
  std::_Exit(1);
}

enum class Operation {
  p,
  fetch_add,
  put,
  put_warp,
  put_signal,
  put_signal_warp,
  signal_and_wait,
  barrier,
  broadcast,
  gather,
  all_to_all,
  reduce
};

struct Loop {
  std::byte* source;
  std::byte* target;
  std::uint64_t* flag;  ///< signals; behind it a counter
  std::size_t bytes;
  std::uint64_t first;  ///< signals before
  int next;
};

/// Most of those that a launch here has.
constexpr unsigned kMostThreads = 512;

/// The loop by nvshmem.h: the world is in the constant memory of this unit.
template <Operation op>
__global__ void __launch_bounds__(kMostThreads) nvshmem_loop(const __grid_constant__ Loop loop) {
  for (unsigned i = 0; i < kRepeats; ++i) {
    [[maybe_unused]] const std::uint64_t number = loop.first + i + 1;
    if constexpr (op == Operation::p)
      nvshmem_int_p(reinterpret_cast<int*>(loop.target) + threadIdx.x, static_cast<int>(i),
                    loop.next);
    if constexpr (op == Operation::fetch_add)
      nvshmem_uint64_atomic_fetch_add(loop.flag + 1, std::uint64_t{1}, loop.next);
    if constexpr (op == Operation::put_warp)
      nvshmemx_putmem_warp(loop.target, loop.source, loop.bytes, loop.next);
    if constexpr (op == Operation::put_signal_warp)
      nvshmemx_putmem_signal_warp(loop.target, loop.source, loop.bytes, loop.flag, number,
                                  NVSHMEM_SIGNAL_SET, loop.next);
    if constexpr (op == Operation::put)
      nvshmemx_putmem_block(loop.target, loop.source, loop.bytes, loop.next);
    if constexpr (op == Operation::put_signal)
      nvshmemx_putmem_signal_block(loop.target, loop.source, loop.bytes, loop.flag, number,
                                   NVSHMEM_SIGNAL_SET, loop.next);
    if constexpr (op == Operation::signal_and_wait) {
      nvshmemx_signal_op(loop.flag, number, NVSHMEM_SIGNAL_SET, loop.next);
      nvshmem_signal_wait_until(loop.flag, NVSHMEM_CMP_GE, number);
    }
    if constexpr (op == Operation::barrier) nvshmemx_barrier_block(NVSHMEM_TEAM_WORLD);
    [[maybe_unused]] auto* const target = reinterpret_cast<float*>(loop.target);
    [[maybe_unused]] const auto* const source = reinterpret_cast<const float*>(loop.source);
    [[maybe_unused]] const std::size_t count = loop.bytes / sizeof(float);
    if constexpr (op == Operation::broadcast)
      nvshmemx_float_broadcast_block(NVSHMEM_TEAM_WORLD, target, source, count, 0);
    if constexpr (op == Operation::gather)
      nvshmemx_float_fcollect_block(NVSHMEM_TEAM_WORLD, target, source, count);
    if constexpr (op == Operation::all_to_all)
      nvshmemx_float_alltoall_block(NVSHMEM_TEAM_WORLD, target, source, count);
    if constexpr (op == Operation::reduce)
      nvshmemx_float_sum_reduce_block(NVSHMEM_TEAM_WORLD, target, source, count);
  }
}

/// The loop by Shoal's own names: the world is a parameter.
template <Operation op>
__global__ void __launch_bounds__(kMostThreads)
    shoal_loop(const __grid_constant__ Loop loop, const __grid_constant__ device::World world,
               const __grid_constant__ device::Team team) {
  [[maybe_unused]] constexpr device::Block block;
  [[maybe_unused]] constexpr device::Warp warp;
  for (unsigned i = 0; i < kRepeats; ++i) {
    [[maybe_unused]] const std::uint64_t number = loop.first + i + 1;
    if constexpr (op == Operation::p)
      device::put_value(world, reinterpret_cast<int*>(loop.target) + threadIdx.x,
                        static_cast<int>(i), loop.next);
    if constexpr (op == Operation::fetch_add)
      device::atomic_fetch_add(world, loop.flag + 1, std::uint64_t{1}, loop.next);
    if constexpr (op == Operation::put_warp)
      device::put_bytes(warp, world, loop.target, loop.source, loop.bytes, loop.next);
    if constexpr (op == Operation::put_signal_warp)
      device::put_signal(warp, world, loop.target, loop.source, loop.bytes, loop.flag,
                         shoal::SignalOp::set, number, loop.next);
    if constexpr (op == Operation::put)
      device::put_bytes(block, world, loop.target, loop.source, loop.bytes, loop.next);
    if constexpr (op == Operation::put_signal)
      device::put_signal(block, world, loop.target, loop.source, loop.bytes, loop.flag,
                         shoal::SignalOp::set, number, loop.next);
    if constexpr (op == Operation::signal_and_wait) {
      device::signal(device::Thread{}, world, loop.flag, shoal::SignalOp::set, number, loop.next);
      device::wait_until(device::Thread{}, world, loop.flag, shoal::Compare::greater_equal, number);
    }
    if constexpr (op == Operation::barrier) {
      device::quiet(block, world);
      device::barrier(block, world, team);
    }
    [[maybe_unused]] auto* const target = reinterpret_cast<float*>(loop.target);
    [[maybe_unused]] const auto* const source = reinterpret_cast<const float*>(loop.source);
    [[maybe_unused]] const std::size_t count = loop.bytes / sizeof(float);
    if constexpr (op == Operation::broadcast)
      device::broadcast(block, world, team, target, source, count, 0);
    if constexpr (op == Operation::gather)
      device::all_gather(block, world, team, target, source, count);
    if constexpr (op == Operation::all_to_all)
      device::all_to_all(block, world, team, target, source, count);
    if constexpr (op == Operation::reduce)
      device::reduce(block, world, team, device::Sum{}, target, source, count);
  }
}

class Bench {
 public:
  Bench() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    check(cudaEventCreate(&begin_), "an event");
    check(cudaEventCreate(&end_), "an event");
    loop_.source = static_cast<std::byte*>(nvshmem_calloc(1, kMostBytes));
    loop_.target = static_cast<std::byte*>(nvshmem_calloc(1, kMostBytes));
    loop_.flag = static_cast<std::uint64_t*>(nvshmem_calloc(2, sizeof(std::uint64_t)));
    loop_.next = (nvshmem_my_pe() + 1) % nvshmem_n_pes();
    // State of this unit's kernels, for those that get it as a parameter.
    shoal::nvshmem::DeviceState state{};
    shoal::nvshmem::DeviceTeam team{};
    check(cudaMemcpyFromSymbol(&state, shoal_nvshmem_state_d, sizeof state), "the device state");
    check(cudaMemcpy(&team, state.teams + NVSHMEM_TEAM_WORLD, sizeof team, cudaMemcpyDefault),
          "the team of all PEs");
    world_ = state.world;
    team_ = team.team;
  }

  void run() {
    if (nvshmem_my_pe() == 0)
      std::printf("%-28s %8s %10s %10s %6s\n", "operation", "bytes", "nvshmem.h", "Shoal", "ratio");
    in_kernels<Operation::p>("p, thread", sizeof(int), 1);
    in_kernels<Operation::p>("p, 512 threads", sizeof(int), 512);
    in_kernels<Operation::fetch_add>("atomic fetch add, thread", 8, 1);
    for (const std::size_t bytes :
         {std::size_t{8}, std::size_t{4096}, std::size_t{65536}, kMostBytes})
      in_kernels<Operation::put>("put, block", bytes, 512);
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{4096}}) {
      in_kernels<Operation::put_warp>("put, warp", bytes, 32);
      in_kernels<Operation::put_signal>("put_signal, block", bytes, 512);
      in_kernels<Operation::put_signal_warp>("put_signal, warp", bytes, 32);
    }
    in_kernels<Operation::signal_and_wait>("signal and wait, thread", 8, 1);
    in_kernels<Operation::barrier>("barrier, block", 0, 512);
    for (const std::size_t bytes : {std::size_t{1024}, std::size_t{65536}}) {
      if (bytes * static_cast<std::size_t>(nvshmem_n_pes()) > kMostBytes) break;
      in_kernels<Operation::broadcast>("broadcast, block", bytes, 512);
      in_kernels<Operation::gather>("fcollect, block", bytes, 512);
      in_kernels<Operation::all_to_all>("alltoall, block", bytes, 512);
    }
    for (const std::size_t bytes : {std::size_t{1024}, std::size_t{65536}})
      in_kernels<Operation::reduce>("sum of float, block", bytes, 512);
    on_stream("put, stream", 1024, [&] {
      nvshmemx_putmem_on_stream(loop_.target, loop_.source, 1024, loop_.next, stream_);
    });
    on_stream("barrier, stream", 0, [&] { nvshmemx_barrier_all_on_stream(stream_); });
    for (const std::size_t bytes : {std::size_t{1024}, kMostBytes})
      on_stream("sum of float, stream", bytes, [&] {
        nvshmemx_float_sum_reduce_on_stream(
            NVSHMEM_TEAM_WORLD, reinterpret_cast<float*>(loop_.target),
            reinterpret_cast<const float*>(loop_.source), bytes / sizeof(float), stream_);
      });
  }

 private:
  /// Microseconds of one operation of what `queue` queues.
  double time(const std::function<void()>& queue) {
    nvshmem_barrier_all();
    check(cudaEventRecord(begin_, stream_), "an event");
    queue();
    check(cudaGetLastError(), "a launch");
    check(cudaEventRecord(end_, stream_), "an event");
    check(cudaStreamSynchronize(stream_), "waiting for the GPU");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "the time");
    nvshmem_barrier_all();  // throws what kernels report
    return 1000.0 * static_cast<double>(milliseconds) / kRepeats;
  }

  template <Operation op>
  void in_kernels(const char* name, std::size_t bytes, unsigned threads) {
    loop_.bytes = bytes;
    double by_nvshmem = 0, by_shoal = 0;
    for (int round = 0; round <= kRounds; ++round) {
      const double one = time([&] { nvshmem_loop<op><<<1, threads, 0, stream_>>>(loop_); });
      loop_.first += kRepeats;
      const double other =
          time([&] { shoal_loop<op><<<1, threads, 0, stream_>>>(loop_, world_, team_); });
      loop_.first += kRepeats;
      if (round == 0) continue;  // loads the code
      by_nvshmem = round == 1 ? one : std::min(by_nvshmem, one);
      by_shoal = round == 1 ? other : std::min(by_shoal, other);
    }
    if (nvshmem_my_pe() == 0)
      std::printf("%-28s %8zu %10.3f %10.3f %6.2f\n", name, bytes, by_nvshmem, by_shoal,
                  by_shoal / by_nvshmem);
  }

  /// Shoal's own names on streams: shoal-bench-gpu collectives.
  void on_stream(const char* name, std::size_t bytes, const std::function<void()>& call) {
    double least = 0;
    for (int round = 0; round <= kRounds; ++round) {
      const double one = time([&] {
        for (unsigned i = 0; i < kRepeats; ++i) call();
      });
      if (round != 0) least = round == 1 ? one : std::min(least, one);
    }
    if (nvshmem_my_pe() == 0) std::printf("%-28s %8zu %10.3f\n", name, bytes, least);
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  Loop loop_{};
  device::World world_{};
  device::Team team_{};
};

}  // namespace

int main() try {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) return 77;
  nvshmem_init();
  check(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus), "the GPU of this PE");
  Bench().run();
  nvshmem_finalize();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "shoal-bench-nvshmem: %s\n", error.what());
  std::exit(1);  // the other PEs learn why
}
