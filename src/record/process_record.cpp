// SPDX-License-Identifier: Apache-2.0
#include "record/process_record.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <new>

#include "base/align.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/system_error.hpp"
#include "memory/host/segment.hpp"
#include "shoal/error.hpp"

namespace shoal::detail::record {

namespace {

constexpr std::size_t kBytes = kRecordBytes;
constexpr std::size_t kPage = 4096;  ///< bytes

template <typename Clock>
std::int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

}  // namespace

class ProcessRecord : public std::enable_shared_from_this<ProcessRecord> {
 public:
  /// Record of this process, which a child of fork does not share. nullptr: it cannot be created.
  static std::shared_ptr<ProcessRecord> instance() noexcept {
    static std::mutex mutex;
    // Outlives static objects.
    static auto* const kept = new (std::nothrow) std::shared_ptr<ProcessRecord>;
    static pid_t failed_in = 0;
    if (kept == nullptr) return nullptr;
    const std::lock_guard lock(mutex);
    const pid_t pid = getpid();
    if (*kept && (*kept)->pid_ == pid) return *kept;
    if (failed_in == pid) return nullptr;
    try {
      *kept = std::make_shared<ProcessRecord>(pid);
      return *kept;
    } catch (const std::exception& error) {
      failed_in = pid;
      log::info("no flight record and no metrics: {}", error.what());
      return nullptr;
    }
  }

  explicit ProcessRecord(pid_t pid)
      : pid_(pid), fd_(memfd_create(kMemfdName, MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    const auto check = [](bool good, const char* what) {
      if (!good) throw Error(Code::system, fmt::format("{}: {}", what, errno_text(errno)));
    };
    check(static_cast<bool>(fd_), "memfd_create of the record");
    const FileSizeSignalBlocked guard;
    check(ftruncate(fd_.get(), kBytes) == 0, "size of the record");
    check(fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) == 0,
          "sealing of the record");
    void* const at =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(), 0);
    check(at != MAP_FAILED, "mapping of the record");
    madvise(at, kBytes, MADV_DONTDUMP);
    base_ = static_cast<std::byte*>(at);
    header().version.store(kVersion);
    header().pid.store(static_cast<std::uint64_t>(pid));
    header().clock.store(static_cast<std::uint64_t>(nanoseconds<std::chrono::system_clock>() -
                                                    nanoseconds<std::chrono::steady_clock>()));
    header().magic.store(kMagic);
  }
  ~ProcessRecord() {
    if (base_ != nullptr) munmap(base_, kBytes);
  }
  ProcessRecord(const ProcessRecord&) = delete;
  ProcessRecord& operator=(const ProcessRecord&) = delete;

  ProcessBlock& header() noexcept { return *reinterpret_cast<ProcessBlock*>(base_); }

  /// A free section of at least `bytes` bytes; nullptr: none.
  Section* take(std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    bytes = align_up(bytes, kPage);
    for (Section& section : header().sections) {
      if (taken(section)) continue;
      if (section.bytes.load() == 0) {  // never used, nor are those after it
        if (end_ + bytes > kBytes) return nullptr;
        section.offset.store(end_);
        section.bytes.store(bytes);
        end_ += bytes;
      } else if (section.bytes.load() < bytes) {
        continue;
      }
      taken_[&section - header().sections] = true;
      return &section;
    }
    return nullptr;
  }
  void give_back(Section& section) noexcept {
    section.kind.store(static_cast<std::uint64_t>(Kind::unused));
    fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(section.offset.load()), static_cast<off_t>(section.bytes.load()));
    const std::lock_guard lock(mutex_);
    taken_[&section - header().sections] = false;
  }
  std::byte* at(const Section& section) noexcept { return base_ + section.offset.load(); }

 private:
  bool taken(const Section& section) noexcept { return taken_[&section - header().sections]; }

  const pid_t pid_;
  memory::FileDescriptor fd_;
  std::byte* base_ = nullptr;
  std::mutex mutex_;
  std::size_t end_ = align_up(sizeof(ProcessBlock), kPage);
  bool taken_[kSections] = {};
};

Block::~Block() {
  if (owner_) owner_->give_back(*section_);
}

void Block::publish(Kind kind) noexcept {
  if (section_ == nullptr) return;
  section_->kind.store(static_cast<std::uint64_t>(kind));
}

Block allocate(std::size_t bytes) noexcept {
  Block block;
  auto record = ProcessRecord::instance();
  if (!record) return block;
  Section* const section = record->take(bytes);
  if (section == nullptr) {
    log::info("the record of this process has no room for {} bytes more", bytes);
    return block;
  }
  block.section_ = section;
  block.data_ = record->at(*section);
  block.owner_ = std::move(record);
  return block;
}

const ProcessBlock* own_record() noexcept {
  const auto record = ProcessRecord::instance();
  return record ? &record->header() : nullptr;
}

}  // namespace shoal::detail::record
