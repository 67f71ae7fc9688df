// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/staged/host_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/log.hpp"
#include "ep/cuda/group/relaxed_capture.hpp"
#include "ep/cuda/group/resources.hpp"

namespace shoal::ep::cuda {
namespace {

/// Unit of pinning: large enough that the call of the driver costs little compared with the copies.
constexpr std::size_t kPiece = std::size_t{64} << 20;

/// Rounds sizes up, so that calls of slightly different sizes share memory.
std::size_t rounded(std::size_t bytes) {
  const std::size_t step =
      bytes < (std::size_t{1} << 20) ? std::size_t{1} << 12 : std::size_t{1} << 20;
  return std::max((bytes + step - 1) / step, std::size_t{1}) * step;
}

}  // namespace

PinnedPool::~PinnedPool() {
  const RelaxedCapture relaxed;
  for (const auto& [bytes, memory] : free_) (void)cudaFreeHost(memory);
}

std::shared_ptr<void> PinnedPool::take(std::size_t bytes) {
  std::size_t size = rounded(bytes);
  void* memory = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = free_.lower_bound(size);
        found != free_.end() && found->first <= 2 * size) {
      size = found->first;
      memory = found->second;
      free_.erase(found);
    }
  }
  if (memory == nullptr)
    check(cudaHostAlloc(&memory, size, cudaHostAllocPortable), "host memory of an ep::Group");
  return {memory, [pool = shared_from_this(), size](void* pointer) {
            const std::lock_guard lock(pool->mutex_);
            pool->free_.emplace(size, pointer);
          }};
}

PinnedMemory::PinnedMemory(std::byte* start, std::size_t bytes)
    : start_(start), bytes_(bytes), pinned_((bytes + kPiece - 1) / kPiece, 0) {}

/// Pins the piece that contains `host`. Returns the bytes from there to the end of the piece: the
/// driver does not accept a copy that runs from one registered range into another.
std::size_t PinnedMemory::pin(const std::byte* host) {
  const auto at = static_cast<std::size_t>(host - start_);
  const std::size_t piece = at / kPiece, first = piece * kPiece,
                    size = std::min(kPiece, bytes_ - first);
  if (possible_ && pinned_[piece] == 0) {
    const cudaError_t status = cudaHostRegister(start_ + first, size, cudaHostRegisterPortable);
    pinned_[piece] = possible_ = status == cudaSuccess;
    if (!possible_) {
      (void)cudaGetLastError();
      log::info("memory of an ep::Group on the host is not pinned, copies will be slower: {}",
                cudaGetErrorString(status));
    }
  }
  return first + size - at;
}

void PinnedMemory::copy(StridedRows target, StridedRows source, std::size_t bytes,
                        std::size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0 || count == 0) return;
  if (target.pitch == bytes && source.pitch == bytes) bytes *= std::exchange(count, 1);
  const StridedRows host = kind == cudaMemcpyDeviceToHost ? target : source;
  const bool inside = host.start >= start_ && host.start < start_ + bytes_;
  const auto start = [&](std::size_t row, std::size_t byte, std::size_t width, std::size_t rows) {
    std::byte* const to = target.start + row * target.pitch + byte;
    const std::byte* const from = source.start + row * source.pitch + byte;
    // The driver bounds pitches but not lengths.
    check(rows == 1
              ? cudaMemcpyAsync(to, from, width, kind, stream)
              : cudaMemcpy2DAsync(to, target.pitch, from, source.pitch, width, rows, kind, stream),
          "copy between GPU and host");
  };
  for (std::size_t row = 0; row < count;) {
    const std::size_t room = inside ? pin(host.start + row * host.pitch) : SIZE_MAX;
    if (room >= bytes) {
      const std::size_t rows = std::min(count - row, (room - bytes) / host.pitch + 1);
      start(row, 0, bytes, rows);
      row += rows;
      continue;
    }
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t part = std::min(pin(host.start + row * host.pitch + done), bytes - done);
      start(row, done, part, 1);
      done += part;
    }
    ++row;
  }
}

void PinnedMemory::unpin() noexcept {
  const RelaxedCapture relaxed;
  for (std::size_t piece = 0; piece < pinned_.size(); ++piece)
    if (std::exchange(pinned_[piece], 0) != 0) (void)cudaHostUnregister(start_ + piece * kPiece);
  (void)cudaGetLastError();
}

}  // namespace shoal::ep::cuda
