// SPDX-License-Identifier: Apache-2.0
// shared_buffers.hpp: GPU memory of any allocator that PEs of a world map from each other, for code
// that knows no CUDA header.
//
// A range is the whole allocation, or series of mapped pieces, around the caller's buffer: sharing
// another part of it later needs no new mapping. Pieces are exported and imported in order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory/device_heap.hpp"

namespace shoal::memory {

/// Handle by which a piece is passed to another process.
enum class PieceKind : std::uint32_t { none, fd, fabric, ipc };

/// One piece of a range, in the owner's addresses.
struct BufferPiece {
  std::byte* base = nullptr;
  std::size_t bytes = 0;
};

struct BufferRange {
  std::byte* base = nullptr;
  std::size_t bytes = 0;
  /// The driver's name for it: another one lies there when this has changed.
  std::uint64_t allocation = 0;
  std::vector<BufferPiece> pieces;
};

/// Data with which another process maps a piece. Sent as bytes; the file descriptor is sent
/// separately.
struct ExportedPiece {
  PieceKind kind = PieceKind::none;
  std::uint32_t first = 1;  ///< it starts the range
  std::uint64_t bytes = 0;
  std::uint64_t range_bytes = 0;
  std::array<std::byte, 64> handle{};
};

class SharedBuffers {
 public:
  virtual ~SharedBuffers() = default;
  SharedBuffers(const SharedBuffers&) = delete;
  SharedBuffers& operator=(const SharedBuffers&) = delete;

  /// The range around [pointer, pointer + bytes). Throws Error{invalid_argument} if that is not
  /// memory of this PE's GPU.
  virtual BufferRange locate(const void* pointer, std::size_t bytes) const = 0;
  /// True if the range still belongs to the same allocation.
  virtual bool is_current(const BufferRange& range) const = 0;
  /// Throws Error{unsupported} with a remedy if the memory cannot be shared with other processes.
  virtual ExportedPiece export_piece(const BufferRange& range, std::size_t piece,
                                     FileDescriptor& fd) const = 0;

  /// Maps the next piece of range `id` of `pe`, a PE of another process; `fd` is empty unless the
  /// kind is fd. Throws Error{system}; drop releases what was mapped before.
  virtual void import_piece(Pe pe, std::uint64_t id, const ExportedPiece& piece,
                            const FileDescriptor& fd) = 0;
  /// Gives this PE's GPU access to range `id` of `pe`, a thread of this process.
  virtual void adopt(Pe pe, std::uint64_t id, std::byte* base, std::size_t bytes) = 0;
  /// Start of that range in this process; nullptr if it is not mapped.
  virtual std::byte* base(Pe pe, std::uint64_t id) const noexcept = 0;
  virtual void drop(Pe pe, std::uint64_t id) noexcept = 0;

 protected:
  SharedBuffers() = default;
};

/// Throws Error{unsupported} in a build without CUDA.
std::unique_ptr<SharedBuffers> make_shared_buffers(std::shared_ptr<Device> device);

}  // namespace shoal::memory
