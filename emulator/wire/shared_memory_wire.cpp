// SPDX-License-Identifier: Apache-2.0
#include "wire/shared_memory_wire.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <utility>

#include "wire/packet_format.hpp"

namespace shoal::emulator {
namespace {

constexpr std::uint32_t kMostSlots = WireFile::kMostSlots;
/// A target that takes nothing for so long does not hold up the others.
constexpr Time kStall = std::chrono::milliseconds(20);
constexpr Time kCheckAlive = std::chrono::milliseconds(100);
/// Packets that wait for a stalled target before more are dropped.
constexpr std::size_t kMostBacklog = 4096;

// A record is a word with its size, a word of padding, and a packet; sizes are multiples of 16. The
// word kSkip says that the next record is at the start of the ring.
constexpr std::uint32_t kRecordHead = 16, kSkip = 0xffffffff;
constexpr std::uint32_t kMostRecord = kRecordHead + kPacketHeaderBytes + kMostPayloadBytes;

/// Steps in which a ring gets memory: the smallest ring.
constexpr std::uint64_t kStep = 1 << 15;
/// A ring grows beyond its first step while so much of the file system is free, or a quarter of it.
constexpr std::uint64_t kSpareBytes = 1 << 30;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) / to * to;
}

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout,
                 nullptr, 0);
}

}  // namespace

struct SharedMemoryWire::Header {
  std::uint64_t magic;
  std::uint32_t version, slots, ring_bytes;
  std::atomic<std::uint32_t> next_slot;  ///< where the search for a free slot starts
};

/// State of the process that reads the rings of this target.
struct alignas(64) SharedMemoryWire::Slot {
  std::array<std::atomic<std::uint64_t>, kMostSlots / 64> pending;  ///< sources with new packets
  std::atomic<std::uint32_t> sleeping;                              ///< futex: 1 while it sleeps

  bool any_pending(std::memory_order order) const {
    return std::ranges::any_of(pending, [&](const auto& word) { return word.load(order) != 0; });
  }
};

struct alignas(64) SharedMemoryWire::Ring {
  std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
};

Time LiveWire::now() const {
  return std::chrono::steady_clock::now().time_since_epoch();
}

SharedMemoryWire::SharedMemoryWire(const SharedMemoryOptions& options)
    : first_lid_(options.first_lid) {
  if (options.slots == 0 || options.slots > kMostSlots)
    throw std::runtime_error("a wire has 1 to " + std::to_string(kMostSlots) + " slots, not " +
                             std::to_string(options.slots));
  static_assert(kStep >= 4 * kMostRecord);
  if (!std::has_single_bit(options.ring_bytes) || options.ring_bytes < kStep)
    throw std::runtime_error("a ring of a wire has a power of two of at least 32768 bytes, not " +
                             std::to_string(options.ring_bytes));
  file_.emplace(options.file);
  map_file(options);
  take_slot();
  file_->finish_joining();
  targets_.resize(slots_);
}

/// Gives bytes of the file memory, where the file system can say that it has some.
bool SharedMemoryWire::reserve(const void* from, std::uint64_t bytes) const {
  const auto at = static_cast<const std::byte*>(from) - base_.get();
  int result = 0;
  do {
    result = fallocate(file_->descriptor(), 0, at, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0 || errno == EOPNOTSUPP;
}

bool SharedMemoryWire::has_spare_memory() const {
  struct statvfs info = {};
  if (fstatvfs(file_->descriptor(), &info) != 0) return false;
  const std::uint64_t free = std::uint64_t{info.f_bavail} * info.f_frsize;
  return free >= kSpareBytes || info.f_bavail >= info.f_blocks / 4;
}

SharedMemoryWire::~SharedMemoryWire() = default;

void SharedMemoryWire::Unmap::operator()(std::byte* base) const {
  munmap(base, bytes);
}

void SharedMemoryWire::create(const SharedMemoryOptions& options, std::uint64_t size) {
  rlimit most = {};
  if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < size) {  // else a signal
    errno = EFBIG;
    file_->fail(
        "the limit of file sizes (ulimit -f) is below " + std::to_string(size) +
        " bytes, which fewer SHOAL_EMULATOR_PROCESSES or SHOAL_EMULATOR_RING_BYTES reduce:");
  }
  if (ftruncate(file_->descriptor(), static_cast<off_t>(size)) != 0) file_->fail("cannot size");
  const Header header{WireFile::kMagic, kWireVersion, options.slots, options.ring_bytes, 0};
  const auto put = pwrite(file_->descriptor(), &header, sizeof header, 0);
  if (put != static_cast<ssize_t>(sizeof header)) fail_full();
}

void SharedMemoryWire::map_file(const SharedMemoryOptions& options) {
  const auto bytes_for = [](std::uint64_t slots, std::uint64_t ring_bytes) {
    return round_up(sizeof(Header), 64) + slots * sizeof(Slot) +
           slots * slots * (sizeof(Ring) + ring_bytes);
  };
  if (file_->is_new()) create(options, bytes_for(options.slots, options.ring_bytes));
  Header header{};
  const ssize_t got = pread(file_->descriptor(), &header, sizeof header, 0);
  if (got != static_cast<ssize_t>(sizeof header) || header.magic != WireFile::kMagic ||
      header.version != kWireVersion || header.slots == 0 || header.slots > kMostSlots ||
      !std::has_single_bit(header.ring_bytes) || header.ring_bytes < kStep)
    throw std::runtime_error(options.file +
                             " is no wire of this version of the emulator; remove the file");
  slots_ = header.slots;
  ring_bytes_ = header.ring_bytes;
  const std::uint64_t bytes = bytes_for(slots_, ring_bytes_);
  struct stat info = {};
  if (fstat(file_->descriptor(), &info) != 0) file_->fail("cannot stat");
  if (static_cast<std::uint64_t>(info.st_size) < bytes)
    throw std::runtime_error(options.file + " has " + std::to_string(info.st_size) +
                             " bytes where its header says " + std::to_string(bytes) +
                             "; remove the file");
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        file_->descriptor(), 0);
  if (at == MAP_FAILED) file_->fail("cannot map");
  base_ = {static_cast<std::byte*>(at), Unmap{bytes}};
  const auto* const rings = reinterpret_cast<const std::byte*>(&ring(0, 0));
  if (!reserve(base_.get(), static_cast<std::uint64_t>(rings - base_.get()))) fail_full();
}

void SharedMemoryWire::fail_full() const {
  file_->fail("no memory for packets; SHOAL_EMULATOR_DIRECTORY names a folder with more room than");
}

void SharedMemoryWire::take_slot() {
  // The slot after the last one taken, so that a new process rarely gets the LID of one that has
  // just ended.
  auto& next = reinterpret_cast<Header*>(base_.get())->next_slot;
  const std::uint32_t start = next.load();
  for (std::uint32_t i = 0; i < slots_; ++i) {
    slot_ = (start + i) % slots_;
    if (!file_->take(slot_)) continue;
    if (!reserve(&ring(slot_, 0), slots_ * sizeof(Ring))) fail_full();
    next.store((slot_ + 1) % slots_);
    // Discards the packets that were sent to the last owner.
    for (std::uint32_t source = 0; source < slots_; ++source)
      ring(slot_, source).read.store(ring(slot_, source).written.load());
    for (auto& word : slot(slot_).pending) word.store(0);
    slot(slot_).sleeping.store(0);
    return;
  }
  throw std::runtime_error("all " + std::to_string(slots_) + " slots of the wire " + file_->path() +
                           " are in use by other processes");
}

bool SharedMemoryWire::is_alive(std::uint32_t index) const {
  return index == slot_ || file_->is_taken_by_another(index);
}

SharedMemoryWire::Slot& SharedMemoryWire::slot(std::uint32_t index) const {
  return reinterpret_cast<Slot*>(base_.get() + round_up(sizeof(Header), 64))[index];
}

SharedMemoryWire::Ring& SharedMemoryWire::ring(std::uint32_t target, std::uint32_t source) const {
  std::byte* const first = base_.get() + round_up(sizeof(Header), 64) + slots_ * sizeof(Slot);
  return reinterpret_cast<Ring*>(first)[std::uint64_t{target} * slots_ + source];
}

std::byte* SharedMemoryWire::data(std::uint32_t target, std::uint32_t source) const {
  auto* const first = reinterpret_cast<std::byte*>(&ring(slots_, 0));  // one after the last
  return first + (std::uint64_t{target} * slots_ + source) * ring_bytes_;
}

bool SharedMemoryWire::prepare(std::uint16_t lid) {
  return !reaches(lid) || prepare_ring(lid - std::uint32_t{first_lid_});
}

bool SharedMemoryWire::prepare_ring(std::uint32_t index) {
  Target& target = targets_[index];
  if (target.reserved != 0) return true;
  Ring& to = ring(index, slot_);
  if (!reserve(&to, sizeof to)) return false;
  // The position at which the last process of this slot has ended is included.
  const std::uint64_t bytes = round_up((to.written.load() & (ring_bytes_ - 1)) + 1, kStep);
  if (!reserve(data(index, slot_), bytes)) return false;
  target.reserved = bytes;
  return true;
}

/// Highest position at which records that end at `wanted` may end. In a ring that is not whole
/// there is room for kSkip behind the last one.
std::uint64_t SharedMemoryWire::end_of_ring(std::uint32_t index, std::uint64_t wanted) {
  Target& target = targets_[index];
  while (target.reserved < ring_bytes_ && wanted + kRecordHead > target.reserved) {
    if (!has_spare_memory() || !reserve(data(index, slot_) + target.reserved, kStep)) break;
    target.reserved += kStep;
  }
  return target.reserved == ring_bytes_ ? ring_bytes_ : target.reserved - kRecordHead;
}

bool SharedMemoryWire::reaches(std::uint16_t lid) const {
  return lid >= first_lid_ && lid < first_lid_ + slots_;
}

bool SharedMemoryWire::push(std::uint32_t target, const Packet& packet) {
  Ring& to = ring(target, slot_);
  std::uint64_t written = to.written.load(std::memory_order_relaxed);
  const std::uint64_t free = ring_bytes_ - (written - to.read.load(std::memory_order_acquire));
  const std::uint64_t bytes =
      round_up(kRecordHead + kPacketHeaderBytes + packet.payload.size(), 16);
  if (free < bytes) return false;
  const std::uint64_t begin = written & (ring_bytes_ - 1);
  const std::uint64_t skipped =
      begin + bytes > end_of_ring(target, begin + bytes) ? ring_bytes_ - begin : 0;
  if (free < bytes + skipped) return false;
  std::byte* at = data(target, slot_) + begin;
  if (skipped != 0) {
    std::memcpy(at, &kSkip, sizeof kSkip);
    at = data(target, slot_);
    written += skipped;
  }
  const auto size =
      static_cast<std::uint32_t>(kRecordHead + kPacketHeaderBytes + packet.payload.size());
  std::memcpy(at, &size, sizeof size);
  encode_header(packet, at + kRecordHead);
  if (!packet.payload.empty())
    std::memcpy(at + kRecordHead + kPacketHeaderBytes, packet.payload.data(),
                packet.payload.size());
  to.written.store(written + bytes, std::memory_order_release);
  return true;
}

void SharedMemoryWire::announce(std::uint32_t target) {
  // Either the reader takes the bit after this, and sees the packet, or the bit stays for its next
  // look.
  Slot& reader = slot(target);
  reader.pending[slot_ / 64].fetch_or(std::uint64_t{1} << slot_ % 64, std::memory_order_seq_cst);
  if (reader.sleeping.load(std::memory_order_seq_cst) != 0 && reader.sleeping.exchange(0) != 0)
    futex(reader.sleeping, FUTEX_WAKE, 1, nullptr);
}

void SharedMemoryWire::send(Packet&& packet) {
  if (!reaches(packet.target) || packet.payload.size() > kMostPayloadBytes) {
    ++dropped_;
    return;
  }
  const std::uint32_t index = packet.target - first_lid_;
  if (!prepare_ring(index)) {
    ++dropped_;
    return;
  }
  Target& target = targets_[index];
  if (target.backlog.empty()) {
    if (push(index, packet)) return announce(index);
    target.since = target.checked = now();
    target.stalled = false;
    backlogs_.push_back(index);
    ++waiting_;
  } else if (target.backlog.size() >= kMostBacklog) {
    ++dropped_;
    return;
  }
  target.backlog.push_back(std::move(packet));
}

bool SharedMemoryWire::flush() {
  bool worked = false;
  for (std::size_t i = 0; i < backlogs_.size();) {
    const std::uint32_t index = backlogs_[i];
    Target& target = targets_[index];
    bool sent = false;
    while (!target.backlog.empty() && push(index, target.backlog.front())) {
      target.backlog.pop_front();
      sent = true;
    }
    const Time time = now();
    if (sent) {
      announce(index);
      target.since = time;
    } else if (target.stalled && time - target.checked > kCheckAlive) {
      target.checked = time;
      if (!is_alive(index)) {
        dropped_ += target.backlog.size();
        target.backlog.clear();
      }
    }
    const bool stalled = !sent && (target.stalled || time - target.since > kStall);
    const bool empty = target.backlog.empty();
    waiting_ += static_cast<std::uint32_t>(!stalled && !empty) -
                static_cast<std::uint32_t>(!target.stalled);
    target.stalled = stalled;
    worked |= sent;
    if (empty) {
      backlogs_[i] = backlogs_.back();
      backlogs_.pop_back();
    } else {
      ++i;
    }
  }
  return worked;
}

std::size_t SharedMemoryWire::drain(std::uint32_t source, std::size_t most,
                                    const Deliver& deliver) {
  Ring& from = ring(slot_, source);
  std::uint64_t read = from.read.load(std::memory_order_relaxed);
  const std::uint64_t written = from.written.load(std::memory_order_acquire);
  std::size_t count = 0;
  while (read != written && count < most) {
    const std::byte* const at = data(slot_, source) + (read & (ring_bytes_ - 1));
    const std::uint64_t to_end = ring_bytes_ - (read & (ring_bytes_ - 1));
    std::uint32_t size;
    std::memcpy(&size, at, sizeof size);
    if (size == kSkip) {
      read += to_end;
      continue;
    }
    Packet packet;
    if (size < kRecordHead || size > to_end || size > kMostRecord ||
        !decode_packet({at + kRecordHead, size - kRecordHead}, packet)) {
      ++dropped_;  // not written by an emulator: what follows cannot be trusted either
      read = written;
      break;
    }
    read += round_up(size, 16);
    from.read.store(read, std::memory_order_release);
    ++count;
    deliver(std::move(packet));
  }
  from.read.store(read, std::memory_order_release);
  return count;
}

bool SharedMemoryWire::poll(std::size_t most, const Deliver& deliver) {
  bool worked = flush();
  Slot& own = slot(slot_);
  for (std::uint32_t first = 0; first < slots_; first += 64) {
    std::atomic<std::uint64_t>& pending = own.pending[first / 64];
    if (pending.load(std::memory_order_relaxed) == 0) continue;
    std::uint64_t sources = pending.exchange(0, std::memory_order_seq_cst);
    for (; sources != 0; sources &= sources - 1) {
      if (most == 0) {  // for the next call
        pending.fetch_or(sources, std::memory_order_seq_cst);
        break;
      }
      const auto source = first + static_cast<std::uint32_t>(std::countr_zero(sources));
      const std::size_t count = drain(source, most, deliver);
      most -= count;
      worked |= count != 0;
      // It may have more, and announces only what comes after it was found empty.
      if (most == 0) pending.fetch_or(sources & -sources, std::memory_order_seq_cst);
    }
  }
  return worked;
}

bool SharedMemoryWire::sleep(Time longest) {
  Slot& own = slot(slot_);
  own.sleeping.store(1, std::memory_order_seq_cst);
  if (!own.any_pending(std::memory_order_seq_cst)) {
    const auto count = longest.count();
    const timespec timeout{.tv_sec = count / 1'000'000'000, .tv_nsec = count % 1'000'000'000};
    futex(own.sleeping, FUTEX_WAIT, 1, &timeout);
  }
  return own.sleeping.exchange(0, std::memory_order_relaxed) == 0;
}

void SharedMemoryWire::wake() {
  Slot& own = slot(slot_);
  if (own.sleeping.load(std::memory_order_seq_cst) != 0 && own.sleeping.exchange(0) != 0)
    futex(own.sleeping, FUTEX_WAKE, 1, nullptr);
}

}  // namespace shoal::emulator
