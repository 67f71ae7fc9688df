// SPDX-License-Identifier: Apache-2.0
// device.cuh: what the kernels of expert parallelism share: the group as a kernel parameter,
// signals between members, waits with deadlines and their report, and the order in which the blocks
// of a launch take their parts.
//
// Memory order. What is published lies before a release at system scope, what is read behind an
// acquire at system scope. Bulk copies (TMA) go through the async proxy: a writer waits for their
// completion before it publishes, a reader that continues with bulk copies fences the proxy first
// (DESIGN.md, protocol obligations).
//
// Progress. The blocks of a launch wait for other members, never for a block of their own launch
// that may not be resident yet: parts are handed out by tickets in the order in which blocks start,
// and only the last block to finish waits at the end.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "ep/cuda/layout.hpp"

namespace shoal::ep::cuda {

using detail::kLine;
using detail::kMaxDeviceRanks;

/// Where in an operation a kernel was; names in group.cpp.
enum class Phase : std::uint32_t {
  none,
  notify,
  receive,       // dispatch: rows
  answers,       // combine: notice of the answers
  fetched,       // combine: word that rows have been fetched
  slot_grant,    // low latency: word that slots have been read
  slots,         // low-latency dispatch: rows
  weights,       // low-latency combine: weights
  answer_grant,  // low-latency combine: word that answers have been read
  answer_rows,   // low-latency combine: answers
};

enum class Fault : std::uint32_t {
  none,
  timeout,
  peer_failed,
  mismatch,
  no_room,
  too_many_rows,
  too_many_expert_major,  // rows of an expert-major result
  bad_index,
  two_experts,
  no_dispatch,  // the handle is of a dispatch that was refused
};

/// What went wrong on the GPU; in host memory that the device writes, one for each group. `fault`
/// is written last.
struct Report {
  volatile std::uint32_t fault;
  volatile Phase phase;
  volatile std::int32_t member;
  volatile std::uint32_t operation;  ///< Operation of the wait
  volatile std::uint64_t epoch, seen;
  volatile std::int64_t token, value, allowed;
  volatile std::uint32_t
      masked[kMaxDeviceRanks];  ///< low latency: members that timed out and are left out
};

/// Tickets and completions of the blocks of one kind of kernel. On a line of its own: all blocks
/// add to it at the same time, and what they read beside would have to wait.
struct alignas(128) Counters {
  std::uint32_t ticket, done;
  std::uint32_t work;  ///< items handed out, see take_work
};

enum class Kernel : std::uint32_t {
  normal,
  slots_send,
  slots_receive,
  answers_send,
  answers_receive,
  count
};

/// What the kernels of a group remember between launches; in device memory. Epochs advance on the
/// device, so that a captured graph can be replayed.
struct Memory {
  std::uint64_t epoch;                           ///< of the last normal operation
  std::uint64_t slots_sent, slots_received;      ///< low-latency dispatches
  std::uint64_t answers_sent, answers_received;  ///< low-latency combines
  std::uint64_t finished[kMaxDeviceRanks];       ///< blocks of each member that earlier normal
                                                 ///< operations have waited for
  std::uint32_t aborted;                         ///< the group has failed: kernels end at once
  /// Low latency, by parity: the operation whose half may hold what nobody took, because members
  /// did not agree; 0: none.
  std::uint64_t dirty_slots[2], dirty_answers[2];
  Counters counters[static_cast<std::uint32_t>(Kernel::count)];
  std::uint32_t masked[kMaxDeviceRanks];  ///< left out of low-latency operations
};

/// A group as its kernels see it; passed by value.
struct DeviceGroup {
  detail::DeviceLayout layout;
  std::byte* block[kMaxDeviceRanks];  ///< every member's block of the heap, as mapped here
  Memory* memory;
  Report* report;
  std::uint64_t timeout_ns;
  std::int32_t ranks, me;
  std::int32_t experts, local_experts, top_k;
  std::uint32_t mask_failed;
};

#ifdef __CUDACC__

// Memory at system scope; of global addresses, where shoal/device/ptx.cuh takes generic ones.

__device__ inline void store_release(std::uint64_t* at, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ inline void add_release(std::uint64_t* at, std::uint64_t value) {
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ inline std::uint64_t load_acquire(const std::uint64_t* at) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline std::uint64_t load_relaxed(const std::uint64_t* at) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
/// Not through the first-level cache, which keeps no track of what other GPUs write.
__device__ inline std::int32_t load_fresh(const std::int32_t* at) {
  std::int32_t value;
  asm volatile("ld.relaxed.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline std::uint32_t load_fresh(const std::uint32_t* at) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline std::uint64_t load_fresh(const std::uint64_t* at) {
  return load_relaxed(at);
}
/// Four words, each of which is what it was at some time by itself.
__device__ inline uint4 load_fresh(const uint4* at) {
  uint4 data;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(data.x), "=r"(data.y), "=r"(data.z), "=r"(data.w)
               : "l"(at)
               : "memory");
  return data;
}
__device__ inline float load_fresh(const float* at) {
  float value;
  asm volatile("ld.relaxed.sys.global.f32 %0, [%1];" : "=f"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline std::uint64_t clock_ns() {
  std::uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}
__device__ inline std::uint32_t lane_id() {
  return threadIdx.x % 32;
}

/// Lets the next kernel of the stream be set up while this one ends; it waits in
/// await_previous_kernel.
__device__ inline void release_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Until what came before on the stream is complete. Before any access to global memory.
__device__ inline void await_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Orders generic accesses before later bulk copies of the same bytes, and the other way round.
__device__ inline void fence_proxy_async() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

// Faults.

/// Writes the report. Of faults that leave the group usable the first stays until the host has read
/// it, but of bad indices the one of the lowest token; after a fatal one nothing else is reported.
/// Any thread.
__device__ inline void report_fault(const DeviceGroup& group, Fault fault, Phase phase,
                                    std::uint32_t operation, std::int32_t member,
                                    std::uint64_t epoch, std::uint64_t seen, std::int64_t token = 0,
                                    std::int64_t value = 0, std::int64_t allowed = 0,
                                    bool fatal = true) {
  constexpr std::uint32_t kFatal = 1, kWriting = 2;
  for (;;) {
    const std::uint32_t held = atomicCAS(&group.memory->aborted, 0u, fatal ? kFatal : kWriting);
    if (held == 0u) break;
    if (held == kFatal) return;
  }
  Report& report = *group.report;
  const bool indices = fault == Fault::bad_index || fault == Fault::two_experts;
  const auto told = static_cast<Fault>(report.fault);
  const bool told_indices = told == Fault::bad_index || told == Fault::two_experts;
  // Somebody may be waiting for word of a refusal.
  const bool earlier =
      told_indices && (!indices || (report.phase == phase && token < report.token));
  if (fatal || report.fault == static_cast<std::uint32_t>(Fault::none) || earlier) {
    report.phase = phase;
    report.operation = operation;
    report.member = member;
    report.epoch = epoch;
    report.seen = seen;
    report.token = token;
    report.value = value;
    report.allowed = allowed;
    __threadfence_system();
    report.fault = static_cast<std::uint32_t>(fault);
    __threadfence_system();
  }
  if (!fatal) atomicExch(&group.memory->aborted, 0u);
}
/// Why an operation does not take place, on all members alike; the group stays usable.
__device__ inline void report_refused(const DeviceGroup& group, Fault fault, Phase phase,
                                      std::int32_t member, std::uint64_t epoch,
                                      std::int64_t token = 0, std::int64_t value = 0,
                                      std::int64_t allowed = 0) {
  report_fault(group, fault, phase, 0, member, epoch, 0, token, value, allowed, false);
}
__device__ inline bool aborted(const DeviceGroup& group) {
  return *static_cast<volatile std::uint32_t*>(&group.memory->aborted) == 1u;
}

// Signals: words that hold the epoch of the last operation for which a member did something.

__device__ inline std::uint64_t* signal_at(const DeviceGroup& group, std::int32_t of,
                                           std::size_t signals, std::int32_t owner) {
  return reinterpret_cast<std::uint64_t*>(group.block[of] + signals + owner * kLine);
}
/// Sets the signal that this member owns at member `to`. What this thread has written or seen
/// before is visible to who sees the signal.
__device__ inline void raise_signal(const DeviceGroup& group, std::size_t signals, std::int32_t to,
                                    std::uint64_t epoch) {
  store_release(signal_at(group, to, signals, group.me), epoch);
}

/// Between polls: many threads may be waiting, and what they read they take from those that move
/// rows.
inline constexpr std::uint32_t kPollNs = 40;

/// How long a wait for a member may take.
class Deadline {
 public:
  __device__ Deadline(const DeviceGroup& group, std::int32_t)
      : at_(clock_ns() + group.timeout_ns) {}
  __device__ bool is_over(std::uint32_t) const { return clock_ns() > at_; }

 private:
  const std::uint64_t at_;
};

/// Polls until `ready` is true; false when the group is aborted, `member` gave its group up, or the
/// time is over, of which Limit is asked now and then. A wait that ends in time never reads the
/// clock more than once.
template <typename Limit = Deadline, typename Ready>
__device__ bool poll(const DeviceGroup& group, std::int32_t member, Ready&& ready, Fault& fault) {
  if (ready()) return true;
  Limit limit(group, member);
  for (std::uint32_t polls = 1;; ++polls) {
    __nanosleep(kPollNs);
    if (ready()) return true;
    if (polls % 64 != 0) continue;
    fault = Fault::none;
    if (aborted(group)) return false;
    fault = Fault::peer_failed;
    if (load_relaxed(signal_at(group, group.me, group.layout.failed, member)) != 0) return ready();
    fault = Fault::timeout;
    if (limit.is_over(polls)) return false;
  }
}

/// Waits until the signal that member `from` owns here has reached `epoch`. On failure reports and
/// returns false.
__device__ inline bool wait_signal(const DeviceGroup& group, std::size_t signals, std::int32_t from,
                                   std::uint64_t epoch, Phase phase, std::uint32_t operation) {
  const std::uint64_t* const word = signal_at(group, group.me, signals, from);
  Fault fault;
  if (poll(group, from, [&] { return load_acquire(word) >= epoch; }, fault)) return true;
  if (fault != Fault::none)
    report_fault(group, fault, phase, operation, from, epoch, load_relaxed(word));
  return false;
}

// The blocks of a launch.

/// The order in which this block started among those of its launch, from 0. All threads of the
/// block call.
__device__ inline std::uint32_t take_ticket(const DeviceGroup& group, Kernel kernel) {
  __shared__ std::uint32_t ticket;
  if (threadIdx.x == 0)
    ticket = atomicAdd(&group.memory->counters[static_cast<std::uint32_t>(kernel)].ticket, 1u);
  __syncthreads();
  return ticket;
}

/// The next item of a launch, handed out one by one: SMs are not equally fast, because those of one
/// GPC share its way out. The calling thread alone gets it.
__device__ inline std::uint32_t take_work(const DeviceGroup& group, Kernel kernel) {
  return atomicAdd(&group.memory->counters[static_cast<std::uint32_t>(kernel)].work, 1u);
}

/// True in all threads of the block that ends last: it sees what the others wrote before. All
/// threads call, once all of the block's writes are done.
__device__ inline bool finish_block(const DeviceGroup& group, Kernel kernel) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    Counters& counters = group.memory->counters[static_cast<std::uint32_t>(kernel)];
    __threadfence();
    last = atomicAdd(&counters.done, 1u) == gridDim.x - 1;
    __threadfence();
    if (last) counters = {};
  }
  __syncthreads();
  return last;
}

// Bulk copies (TMA), sm_90 and later.

#if __CUDA_ARCH__ >= 900
/// An address in the shared window (PTX .shared), which is what shared-memory instructions take: a
/// loop that keeps it need not derive it from a pointer.
using SharedAddress = std::uint32_t;

__device__ inline SharedAddress shared_address(const void* pointer) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(pointer));
}
/// Not computed anew at each use, as compilers like to do with what is cheap once.
__device__ inline SharedAddress kept(SharedAddress address) {
  asm volatile("" : "+r"(address));
  return address;
}
__device__ inline uint4 load_shared(SharedAddress from) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}
__device__ inline void store_shared(SharedAddress to, const uint4& value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}
__device__ inline void barrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
/// To be called by the thread that made barriers, before anybody uses them.
__device__ inline void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_expect(SharedAddress barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void barrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  barrier_expect(shared_address(barrier), bytes);
}
__device__ inline void barrier_wait(SharedAddress barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\n"
      "bra again;\n"
      "ready:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ inline void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  barrier_wait(shared_address(barrier), parity);
}
/// `bytes` is a multiple of 16, as are both addresses.
__device__ inline void bulk_load(SharedAddress shared, const void* global, std::uint32_t bytes,
                                 SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ inline void bulk_load(void* shared, const void* global, std::uint32_t bytes,
                                 std::uint64_t* barrier) {
  bulk_load(shared_address(shared), global, bytes, shared_address(barrier));
}
__device__ inline void bulk_store(void* global, const void* shared, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Until at most `pending` groups of this thread's stores still read shared memory.
template <int pending>
__device__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
/// Until all stores of this thread are complete and visible to it.
__device__ inline void bulk_wait_all() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
#endif

#endif  // __CUDACC__

}  // namespace shoal::ep::cuda
