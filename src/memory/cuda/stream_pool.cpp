// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/stream_pool.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <mutex>
#include <thread>

#include "base/check.hpp"
#include "memory/cuda/driver.hpp"

namespace shoal::memory::cuda {
namespace {

/// The properties that interchangeable streams share. A stream dies with its context. The contexts
/// here live as long as the process (primary_context retains and never releases them), so the
/// streams may too. Only a reset of the device ends them earlier, with all other memory of Shoal
/// there.
struct Kind {
  const Driver* driver;  // tests have their own
  CUcontext context;
  int priority;
  bool operator==(const Kind&) const = default;
};

struct Entry {
  Entry(const Kind& of, CUstream made, CUdeviceptr byte) : kind(of), stream(made), written(byte) {}
  const Kind kind;
  CUstream_st* const stream;
  const CUdeviceptr written;  // by the stream's first work
  std::atomic<bool> taken{true};
};

struct Pool {
  std::mutex mutex;
  std::list<Entry> entries;  // in order of creation; element addresses are stable
  static Pool& instance() {
    static auto* pool = new Pool;  // never destroyed: worlds and groups may outlive static objects
    return *pool;
  }
};

Entry* take_free(const Kind& kind) {
  Pool& pool = Pool::instance();
  const std::lock_guard lock(pool.mutex);
  const auto found =
      std::find_if(pool.entries.begin(), pool.entries.end(), [&](const Entry& entry) {
        return entry.kind == kind && !entry.taken &&
               kind.driver->stream_query(entry.stream) == CUDA_SUCCESS;
      });
  if (found == pool.entries.end()) return nullptr;
  found->taken = true;
  return &*found;
}

/// Gives a new stream its first work and waits for it, because the driver gives a stream its
/// hardware queue with that work: were it a kernel for which a peer on the same GPU waits, it could
/// be stuck behind that peer's kernel. The wait is short for the same reason.
void set_up_queue(const Driver& table, CUstream stream, CUdeviceptr byte) {
  constexpr std::chrono::milliseconds kLongest{100};
  check(table, table.set_bytes(byte, 0, 1, stream), "SHOAL-N700: cannot use a new stream");
  const auto end = std::chrono::steady_clock::now() + kLongest;
  while (table.stream_query(stream) == CUDA_ERROR_NOT_READY &&
         std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
}

/// Called outside the lock: the driver may be slow while kernels run.
Entry* make(const Kind& kind, int device) {
  const Driver& table = *kind.driver;
  CUdeviceptr byte = 0;
  CUstream stream = nullptr;
  check(table, table.mem_alloc(&byte, 1), "SHOAL-N700: cannot allocate a byte for a new stream");
  try {
    // Non-blocking: another PE's kernel on the null stream may wait for this stream's work.
    check(table, table.stream_create(&stream, CU_STREAM_NON_BLOCKING, kind.priority),
          [&] { return fmt::format("SHOAL-N700: cannot create a stream on GPU {}", device); });
    set_up_queue(table, stream, byte);
  } catch (...) {
    if (stream != nullptr) (void)table.stream_destroy(stream);
    (void)table.mem_free(byte);
    throw;
  }
  Pool& pool = Pool::instance();
  const std::lock_guard lock(pool.mutex);
  return &pool.entries.emplace_back(kind, stream, byte);
}

}  // namespace

std::shared_ptr<CUstream_st> take_stream(const Device& device, StreamPriority priority) {
  const Driver& table = driver();
  device.activate();
  int least = 0, greatest = 0;
  check(table, table.priority_range(&least, &greatest),
        "SHOAL-N700: cannot read the range of stream priorities");
  const Kind kind{&table, device.context, priority == StreamPriority::highest ? greatest : least};
  Entry* entry = take_free(kind);
  if (entry == nullptr) entry = make(kind, device.device);
  return {entry->stream, [entry](CUstream) { entry->taken = false; }};
}

void destroy_free_streams(const Driver& driver) {
  Pool& pool = Pool::instance();
  const std::lock_guard lock(pool.mutex);
  pool.entries.remove_if([&](const Entry& entry) {
    return entry.kind.driver == &driver && !entry.taken &&
           driver.stream_destroy(entry.stream) == CUDA_SUCCESS &&
           driver.set_current(entry.kind.context) == CUDA_SUCCESS &&
           driver.mem_free(entry.written) == CUDA_SUCCESS;
  });
}

}  // namespace shoal::memory::cuda
