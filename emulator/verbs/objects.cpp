// SPDX-License-Identifier: Apache-2.0
#include "verbs/objects.hpp"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <new>
#include <utility>

#include "engine/big_endian.hpp"

namespace shoal::emulator {

Pages::Pages(std::size_t bytes) : size_((bytes + 4095) / 4096 * 4096) {
  void* const at = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(at);
}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, size_);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

template <typename Event>
EventQueue<Event>::EventQueue() : fd_(eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)) {
  if (fd_ < 0) throw std::bad_alloc();
}

template <typename Event>
EventQueue<Event>::~EventQueue() {
  close(fd_);
}

template <typename Event>
void EventQueue<Event>::push(const Event& event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  }
  const std::uint64_t one = 1;
  (void)!write(fd_, &one, sizeof one);
}

template <typename Event>
bool EventQueue<Event>::pop(Event& event) {
  while (true) {
    std::uint64_t one = 0;
    if (read(fd_, &one, sizeof one) != sizeof one) return false;
    const std::lock_guard lock(mutex_);
    if (events_.empty()) continue;  // removed meanwhile
    event = events_.front();
    events_.pop_front();
    return true;
  }
}

template class EventQueue<Cq*>;
template class EventQueue<ibv_async_event>;

int errno_of(Status status) {
  switch (status) {
    case Status::ok:
      return 0;
    case Status::internal:
      return EIO;
    case Status::busy:
    case Status::bad_resource_state:
      return EBUSY;
    case Status::limit_exceeded:
      return ENOMEM;
    case Status::no_resources:
      return EAGAIN;
    default:
      return EINVAL;
  }
}

void report(const char* format, ...) {
  std::array<char, 512> text;
  va_list arguments;
  va_start(arguments, format);
  (void)std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  (void)std::fprintf(stderr, "shoal-emulator: %s\n", text.data());
}

void write_receive(std::byte* to, std::uint32_t most_segments, const ibv_recv_wr& request) {
  std::uint32_t written = 0;
  const auto segment = [&](std::uint32_t length, std::uint32_t key, std::uint64_t address) {
    std::byte* const at = to + std::size_t{written++} * kSegmentBytes;
    store_be(at, length);
    store_be(at + 4, key);
    store_be(at + 8, address);
  };
  for (int i = 0; i < request.num_sge; ++i)
    segment(request.sg_list[i].length, request.sg_list[i].lkey, request.sg_list[i].addr);
  if (written < most_segments) segment(0, kEndOfListKey, 0);
}

}  // namespace shoal::emulator
