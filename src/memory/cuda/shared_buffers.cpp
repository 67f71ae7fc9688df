// SPDX-License-Identifier: Apache-2.0
// Maps memory of other allocators: virtual memory by the handles of its pieces, cudaMalloc by CUDA
// IPC, memory of PEs in this process by its address.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/check.hpp"
#include "memory/cuda/copies.hpp"
#include "memory/cuda/peers.hpp"
#include "memory/cuda/window.hpp"
#include "memory/cuda_backend.hpp"

namespace shoal::memory::cuda {
namespace {

/// A range of another PE.
struct Mapped {
  std::byte* base = nullptr;
  std::size_t bytes = 0;   ///< reserved; 0: by CUDA IPC, or a range of this process
  std::size_t filled = 0;  ///< mapped so far
  CUdeviceptr opened = 0;  ///< by CUDA IPC
  std::vector<BufferPiece> pieces;
};

class CudaSharedBuffers final : public SharedBuffers {
 public:
  explicit CudaSharedBuffers(std::shared_ptr<Device> device)
      : driver_(driver()), device_(std::move(device)) {}
  ~CudaSharedBuffers() override {
    while (!mapped_.empty()) drop(mapped_.begin()->first.first, mapped_.begin()->first.second);
  }

  BufferRange locate(const void* pointer, std::size_t bytes) const override;
  bool is_current(const BufferRange& range) const override {
    return allocation_id(range.base) == range.allocation;
  }
  ExportedPiece export_piece(const BufferRange& range, std::size_t number,
                             FileDescriptor& fd) const override;
  void import_piece(Pe pe, std::uint64_t id, const ExportedPiece& piece,
                    const FileDescriptor& fd) override;
  void adopt(Pe pe, std::uint64_t id, std::byte* base, std::size_t bytes) override;
  std::byte* base(Pe pe, std::uint64_t id) const noexcept override {
    const auto entry = mapped_.find({pe, id});
    return entry == mapped_.end() ? nullptr : entry->second.base;
  }
  void drop(Pe pe, std::uint64_t id) noexcept override;

 private:
  std::uint64_t allocation_id(const void* pointer) const {
    unsigned long long id = 0;
    return driver_.pointer_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address(pointer)) ==
                   CUDA_SUCCESS
               ? id
               : 0;
  }
  CUresult piece_at(CUdeviceptr pointer, CUdeviceptr& base, std::size_t& bytes) const;
  void map_piece(Mapped& range, Pe pe, const ExportedPiece& piece, const FileDescriptor& fd);
  void grant(const void* base, std::size_t bytes, Pe pe) const;

  const Driver& driver_;
  std::shared_ptr<Device> device_;
  std::map<std::pair<Pe, std::uint64_t>, Mapped> mapped_;
};

/// The allocation, or the piece of mapped memory, that contains `pointer`. Drivers were observed to
/// find no range of mapped pieces while other threads map memory; they do find the mapping itself.
CUresult CudaSharedBuffers::piece_at(CUdeviceptr pointer, CUdeviceptr& base,
                                     std::size_t& bytes) const {
  const CUresult result = driver_.address_range(&base, &bytes, pointer);
  if (result == CUDA_SUCCESS) return result;
  CUmemGenericAllocationHandle memory{};
  if (driver_.mem_retain(&memory, reinterpret_cast<void*>(pointer)) != CUDA_SUCCESS)
    return result;  // NOLINT
  driver_.mem_release(memory);
  const bool known =
      driver_.pointer_attribute(&base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, pointer) ==
          CUDA_SUCCESS &&
      driver_.pointer_attribute(&bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, pointer) == CUDA_SUCCESS;
  return known ? CUDA_SUCCESS : result;
}

BufferRange CudaSharedBuffers::locate(const void* pointer, std::size_t bytes) const {
  device_->activate();
  BufferRange range;
  require(on_gpu(driver_, pointer), Code::invalid_argument,
          "SHOAL-N722: {} is not GPU memory; allowed: memory of GPU {}", pointer, device_->device);
  const CUdeviceptr end = address(pointer) + bytes;
  for (CUdeviceptr next = address(pointer); next < end;) {
    CUdeviceptr base{};
    std::size_t size = 0;
    const CUresult result = piece_at(next, base, size);
    require(result == CUDA_SUCCESS && size != 0 && base + size > next, Code::invalid_argument,
            "SHOAL-N722: [{}, {}) is not entirely GPU memory: no allocation contains {} ({})",
            pointer, reinterpret_cast<const void*>(end), reinterpret_cast<const void*>(next),
            describe(driver_, result));
    range.pieces.push_back({reinterpret_cast<std::byte*>(base), size});
    next = base + size;
  }
  range.base = range.pieces.front().base;
  for (const BufferPiece& piece : range.pieces) range.bytes += piece.bytes;
  range.allocation = allocation_id(range.base);
  return range;
}

ExportedPiece CudaSharedBuffers::export_piece(const BufferRange& range, std::size_t number,
                                              FileDescriptor& fd) const {
  device_->activate();
  const BufferPiece& piece = range.pieces[number];
  ExportedPiece exported;
  exported.first = number == 0;
  exported.bytes = piece.bytes;
  exported.range_bytes = range.bytes;
  CUmemGenericAllocationHandle memory{};
  // Other allocators than virtual-memory management have no handle.
  if (driver_.mem_retain(&memory, piece.base) != CUDA_SUCCESS) {
    CUipcMemHandle handle{};
    const CUresult result = driver_.ipc_get(&handle, address(piece.base));
    require(result == CUDA_SUCCESS && range.pieces.size() == 1, Code::unsupported,
            "SHOAL-N723: cannot export {} bytes at {} to other processes: {}; allowed: memory of "
            "cudaMalloc, or mapped memory created with an exportable handle type",
            piece.bytes, static_cast<const void*>(piece.base), describe(driver_, result));
    static_assert(sizeof handle == sizeof exported.handle);
    std::memcpy(exported.handle.data(), &handle, sizeof handle);
    exported.kind = PieceKind::ipc;
    return exported;
  }
  CUmemAllocationProp properties{};
  CUresult result = driver_.mem_properties(&properties, memory);
  const auto offers = [&](CUmemAllocationHandleType type) {
    return (properties.requestedHandleTypes & type) != 0;
  };
  if (result == CUDA_SUCCESS && offers(CU_MEM_HANDLE_TYPE_FABRIC)) {
    CUmemFabricHandle handle{};
    result = driver_.mem_export(&handle, memory, CU_MEM_HANDLE_TYPE_FABRIC, 0);
    static_assert(sizeof handle == sizeof exported.handle);
    std::memcpy(exported.handle.data(), &handle, sizeof handle);
    if (result == CUDA_SUCCESS) exported.kind = PieceKind::fabric;
  }
  if (exported.kind == PieceKind::none && offers(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
    int number_of_fd = -1;
    result = driver_.mem_export(&number_of_fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == CUDA_SUCCESS) {
      fd = FileDescriptor(number_of_fd);
      exported.kind = PieceKind::fd;
    }
  }
  driver_.mem_release(memory);
  require(exported.kind != PieceKind::none, Code::unsupported,
          "SHOAL-N723: cannot export {} bytes at {} to other processes: the allocator created them "
          "without an exportable handle type ({})",
          piece.bytes, static_cast<const void*>(piece.base), describe(driver_, result));
  return exported;
}

void CudaSharedBuffers::grant(const void* base, std::size_t bytes, Pe pe) const {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_->device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  // Serializes the PEs of this process. If two ask for the same GPU at once, the driver was
  // observed to refuse one with CUDA_ERROR_ALREADY_MAPPED, without granting access.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  check(driver_, driver_.mem_set_access(address(base), bytes, &access, 1), [&] {
    return fmt::format("SHOAL-N724: cannot grant GPU {} access to the buffer of PE {}",
                       device_->device, pe);
  });
}

void CudaSharedBuffers::import_piece(Pe pe, std::uint64_t id, const ExportedPiece& piece,
                                     const FileDescriptor& fd) {
  device_->activate();
  Mapped& range = mapped_[{pe, id}];
  if (piece.kind != PieceKind::ipc) return map_piece(range, pe, piece, fd);
  CUipcMemHandle handle{};
  std::memcpy(&handle, piece.handle.data(), sizeof handle);
  check(driver_, driver_.ipc_open(&range.opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
        fmt::format("SHOAL-N724: cannot open the buffer of PE {} by CUDA IPC", pe));
  range.base = reinterpret_cast<std::byte*>(range.opened);
}

void CudaSharedBuffers::map_piece(Mapped& range, Pe pe, const ExportedPiece& piece,
                                  const FileDescriptor& fd) {
  if (range.base == nullptr) {
    CUdeviceptr base{};
    check(
        driver_, driver_.address_reserve(&base, piece.range_bytes, Segment::kAlignment, 0, 0),
        fmt::format("SHOAL-N725: cannot reserve {} bytes of GPU addresses for the buffer of PE {}",
                    piece.range_bytes, pe));
    range.base = reinterpret_cast<std::byte*>(base);
    range.bytes = piece.range_bytes;
  }
  require(piece.bytes <= range.bytes - range.filled, Code::mismatch,
          "SHOAL-N726: PE {} passes a piece of {} bytes of a buffer of {} bytes, of which {} are "
          "mapped; allowed: up to {}",
          pe, piece.bytes, range.bytes, range.filled, range.bytes - range.filled);
  CUmemGenericAllocationHandle memory{};
  CUmemFabricHandle fabric{};
  std::memcpy(&fabric, piece.handle.data(), sizeof fabric);
  const auto descriptor = static_cast<std::intptr_t>(fd.get());
  const CUresult imported =
      piece.kind == PieceKind::fabric
          ? driver_.mem_import(&memory, &fabric, CU_MEM_HANDLE_TYPE_FABRIC)
          : driver_.mem_import(&memory, reinterpret_cast<void*>(descriptor),  // NOLINT
                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  check(driver_, imported, fmt::format("SHOAL-N724: cannot import the buffer of PE {}", pe));
  std::byte* const at = range.base + range.filled;
  const CUresult result = driver_.mem_map(address(at), piece.bytes, 0, memory, 0);
  driver_.mem_release(memory);
  check(driver_, result,
        fmt::format("SHOAL-N724: cannot map {} bytes of the buffer of PE {}", piece.bytes, pe));
  range.pieces.push_back({at, piece.bytes});
  range.filled += piece.bytes;
  grant(at, piece.bytes, pe);
}

void CudaSharedBuffers::adopt(Pe pe, std::uint64_t id, std::byte* base, std::size_t bytes) {
  int owner = 0;
  device_->activate();
  check(driver_,
        driver_.pointer_attribute(&owner, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address(base)),
        fmt::format("SHOAL-N724: cannot determine the GPU of the buffer of PE {}", pe));
  if (owner != device_->device) {
    CUmemGenericAllocationHandle memory{};
    if (driver_.mem_retain(&memory, base) == CUDA_SUCCESS) {
      driver_.mem_release(memory);
      for (const BufferPiece& piece : locate(base, bytes).pieces)
        grant(piece.base, piece.bytes, pe);
    } else {
      CUmemoryPool pool = nullptr;
      const bool pooled =
          driver_.pointer_attribute(static_cast<void*>(&pool), CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                    address(base)) == CUDA_SUCCESS &&
          pool != nullptr;
      require(
          !pooled, Code::unsupported,
          "SHOAL-N723: the buffer of PE {} is from a stream-ordered pool, which GPU {} cannot use; "
          "allowed: memory of cudaMalloc, or mapped memory",
          pe, device_->device);
      const std::string reason = enable_peer_access(driver_, *device_, owner);
      require(reason.empty(), Code::unsupported,
              "SHOAL-N727: the buffer of PE {} is out of reach: {}", pe, reason);
    }
  }
  mapped_[{pe, id}].base = base;
}

void CudaSharedBuffers::drop(Pe pe, std::uint64_t id) noexcept {
  const auto entry = mapped_.find({pe, id});
  if (entry == mapped_.end()) return;
  const Mapped& range = entry->second;
  driver_.set_current(device_->context);
  for (const BufferPiece& piece : range.pieces) driver_.mem_unmap(address(piece.base), piece.bytes);
  if (range.bytes != 0) driver_.address_free(address(range.base), range.bytes);
  if (range.opened != 0) driver_.ipc_close(range.opened);
  mapped_.erase(entry);
}

}  // namespace

std::unique_ptr<SharedBuffers> make_shared_buffers(std::shared_ptr<Device> device) {
  return std::make_unique<CudaSharedBuffers>(std::move(device));
}

}  // namespace shoal::memory::cuda
