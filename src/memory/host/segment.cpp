// SPDX-License-Identifier: Apache-2.0
#include "memory/host/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <mutex>

#include "base/check.hpp"
#include "base/files.hpp"

namespace shoal::memory {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// The segments that this process created, so that its PEs share one mapping.
struct Registry {
  std::mutex mutex;
  std::map<Token, std::weak_ptr<Segment>> segments;

  static Registry& instance() {
    static auto* registry = new Registry;  // never destroyed: worlds may outlive static objects
    return *registry;
  }
};

/// Maps `bytes` bytes of `fd` at a multiple of Segment::kAlignment: reserves more address space
/// than needed, then trims.
std::byte* map_aligned(int fd, std::size_t bytes) {
  const std::size_t reserved = bytes + Segment::kAlignment;
  void* const raw =
      mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED)
    fail_errno(
        "SHOAL-N740: cannot reserve {} bytes of address space (SHOAL_SYMMETRIC_SIZE sets the size)",
        reserved);
  auto* const start = static_cast<std::byte*>(raw);
  const auto address = reinterpret_cast<std::uintptr_t>(raw);
  const std::size_t lead =
      (Segment::kAlignment - address % Segment::kAlignment) % Segment::kAlignment;
  std::byte* const base = start + lead;
  if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0) ==
      MAP_FAILED) {
    const int error = errno;
    munmap(raw, reserved);
    errno = error;
    fail_errno(
        "SHOAL-N740: cannot map {} bytes of symmetric memory (SHOAL_SYMMETRIC_SIZE sets the size)",
        bytes);
  }
  if (lead != 0) munmap(start, lead);
  munmap(base + bytes, reserved - lead - bytes);
  return base;
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

Token make_token() {
  Token token;
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size()))
    fail_errno("SHOAL-N736: cannot read random bytes");
  return token;
}

Segment::Segment(int fd, std::size_t bytes) : base_(map_aligned(fd, bytes)), size_(bytes) {}

Segment::~Segment() {
  if (token_ != Token{}) {
    auto& registry = Registry::instance();
    const std::lock_guard lock(registry.mutex);
    registry.segments.erase(token_);
  }
  munmap(base_, size_);
}

std::shared_ptr<Segment> Segment::create(std::size_t bytes) {
  FileDescriptor fd(memfd_create("shoal-heap", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) fail_errno("SHOAL-N735: cannot create symmetric memory (memfd_create)");
  const FileSizeSignalBlocked guard;
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    fail_errno(
        "SHOAL-N741: cannot give {} bytes to the symmetric memory (SHOAL_SYMMETRIC_SIZE sets the "
        "size)",
        bytes);
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    fail_errno("SHOAL-N736: cannot fix the size of the symmetric memory (F_ADD_SEALS)");
  std::shared_ptr<Segment> segment(new Segment(fd.get(), bytes));
  segment->fd_ = std::move(fd);
  segment->token_ = make_token();
  auto& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  registry.segments.emplace(segment->token_, segment);
  return segment;
}

std::shared_ptr<Segment> Segment::map(const FileDescriptor& fd, std::size_t bytes) {
  struct stat info{};
  if (fstat(fd.get(), &info) != 0)
    fail_errno("SHOAL-N736: cannot examine a peer's symmetric memory");
  require(static_cast<std::size_t>(info.st_size) == bytes, Code::mismatch,
          "SHOAL-N742: a peer's symmetric memory has {} bytes, expected {}", info.st_size, bytes);
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  require(seals >= 0 && (seals & F_SEAL_SHRINK) != 0, Code::mismatch,
          "SHOAL-N742: a peer's symmetric memory is not of fixed size (seals {})", seals);
  return std::shared_ptr<Segment>(new Segment(fd.get(), bytes));
}

std::shared_ptr<Segment> Segment::find(const Token& token) {
  auto& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  const auto entry = registry.segments.find(token);
  return entry == registry.segments.end() ? nullptr : entry->second.lock();
}

}  // namespace shoal::memory
