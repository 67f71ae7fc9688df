// SPDX-License-Identifier: Apache-2.0
// segment.hpp: anonymous memory that PEs of one host map together: a memfd, never a file.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

namespace shoal::memory {

/// A file descriptor that closes itself.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// A random, unique name.
using Token = std::array<std::byte, 16>;
Token make_token();

/// Memory mapped shared into this process, 2 MiB aligned. Pages are allocated on first touch.
class Segment {
 public:
  static constexpr std::size_t kAlignment = std::size_t{2} << 20;  ///< bytes: a huge page

  /// New memory of `bytes` bytes (a multiple of the page size), zero, of fixed size. Threads of
  /// this process find it by `token()`. Throws Error{system} naming SHOAL_SYMMETRIC_SIZE.
  static std::shared_ptr<Segment> create(std::size_t bytes);

  /// Maps the memory behind a descriptor of another process. Throws Error{mismatch} if it is not
  /// sealed or not of `bytes` bytes: a peer could otherwise truncate it while it is in use.
  static std::shared_ptr<Segment> map(const FileDescriptor& fd, std::size_t bytes);

  /// The segment that a thread of this process created with this token; nullptr if there is none.
  static std::shared_ptr<Segment> find(const Token& token);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* base() const noexcept { return base_; }
  std::size_t size() const noexcept { return size_; }
  const Token& token() const noexcept { return token_; }
  const FileDescriptor& descriptor() const noexcept { return fd_; }

 private:
  Segment(int fd, std::size_t bytes);

  std::byte* base_;
  std::size_t size_;
  FileDescriptor fd_;  // empty for segments of other processes
  Token token_{};
};

}  // namespace shoal::memory
