// SPDX-License-Identifier: Apache-2.0
#include "shmem/statics.hpp"

#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/align.hpp"
#include "base/check.hpp"
#include "base/log.hpp"
#include "pe/memory.hpp"
#include "shoal/collective.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal::shmem {
namespace {

/// The library that an executable names as needed when it calls routines of OpenSHMEM. A program
/// that loads the library later, such as an interpreter, does not use its variables with it.
constexpr std::string_view kLibrary = "libshoal_shmem.so";

/// Properties that must be equal on all PEs. No padding: it is sent and compared as bytes.
struct Identity {
  std::uint64_t bytes = 0;
  std::uint64_t page_offset = 0;
  std::uint64_t usable = 0;
  std::array<std::byte, 40> build_id{};
};

struct Executable {
  ElfW(Addr) base = 0;
  const ElfW(Phdr) * headers = nullptr;
  std::size_t count = 0;
};

Executable find_executable() {
  Executable executable;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        *static_cast<Executable*>(out) = {info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum};
        return 1;  // the executable comes first
      },
      &executable);
  return executable;
}

/// True if the executable's dynamic section names the library.
bool needs_library(const Executable& executable) {
  const ElfW(Dyn)* dynamic = nullptr;
  for (std::size_t i = 0; i < executable.count; ++i)
    if (executable.headers[i].p_type == PT_DYNAMIC)
      dynamic = reinterpret_cast<const ElfW(Dyn)*>(executable.base + executable.headers[i].p_vaddr);
  if (dynamic == nullptr) return false;
  const char* strings = nullptr;
  for (const ElfW(Dyn)* entry = dynamic; entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
  if (strings == nullptr) return false;
  for (const ElfW(Dyn)* entry = dynamic; entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_NEEDED &&
        std::string_view(strings + entry->d_un.d_val).starts_with(kLibrary))
      return true;
  return false;
}

std::array<std::byte, 40> build_id(const Executable& executable) {
  std::array<std::byte, 40> id{};
  for (std::size_t i = 0; i < executable.count; ++i) {
    const ElfW(Phdr)& header = executable.headers[i];
    if (header.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const std::byte*>(executable.base + header.p_vaddr);
    const std::byte* const end = at + header.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const std::byte* const description = at + sizeof note + align_up(note.n_namesz, 4);
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
          std::memcmp(at + sizeof note, "GNU", 4) == 0) {
        std::memcpy(id.data(), description, std::min<std::size_t>(note.n_descsz, id.size()));
        return id;
      }
      at = description + align_up(note.n_descsz, 4);
    }
  }
  return id;
}

std::size_t page_size() {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// The shared pages of the parent would be those of a forked child too. Raw system calls: UCX
/// replaces the functions, and its state is that of the parent.
StaticRange mapped;  // NOLINT: known to the handler below
void make_private_in_child() noexcept {
  if (mapped.bytes == 0) return;
  const long copy = syscall(SYS_mmap, nullptr, mapped.bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy < 0 && copy > -4096) return;
  std::memcpy(reinterpret_cast<void*>(copy), reinterpret_cast<void*>(mapped.start), mapped.bytes);
  syscall(SYS_mremap, copy, mapped.bytes, mapped.bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
          mapped.start);
}

/// Copies the pages that are not zero: .bss takes no memory before it is used. No library function:
/// a sanitizer would see accesses between variables.
__attribute__((no_sanitize("address", "thread"))) void copy_pages(std::uint64_t* to,
                                                                  const std::uint64_t* from,
                                                                  std::size_t bytes) {
  const std::size_t words = page_size() / sizeof *from;
  for (std::size_t page = 0; page < bytes / sizeof *from; page += words) {
    std::uint64_t any = 0;
    for (std::size_t i = 0; i < words; ++i) any |= from[page + i];
    if (any == 0) continue;
    for (std::size_t i = 0; i < words; ++i) {
      to[page + i] = from[page + i];
      asm volatile("" ::: "memory");  // keeps the loop a loop
    }
  }
}

}  // namespace

std::set<std::string> list_threads() {
  std::error_code error;
  std::set<std::string> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error))
    threads.insert(entry.path().filename());
  return threads;
}

StaticRange find_static_range(std::size_t threads) {
  const Executable executable = find_executable();
  StaticRange range;
  const std::uintptr_t page = page_size();
  std::uintptr_t start = 0, end = 0, relro = 0;
  for (std::size_t i = 0; i < executable.count; ++i) {
    const ElfW(Phdr)& header = executable.headers[i];
    const std::uintptr_t at = executable.base + header.p_vaddr;
    if (header.p_type == PT_LOAD && (header.p_flags & PF_W) != 0) {
      start = at / page * page;
      end = align_up(at + header.p_memsz, page);
    }
    if (header.p_type == PT_GNU_RELRO) relro = (at + header.p_memsz) / page * page;
  }
  start = std::max(start, std::min(relro, end));
  if (!needs_library(executable)) {
    range.obstacle = "its executable does not link with libshoal_shmem";
  } else if (threads > 1) {
    range.obstacle = fmt::format("it had {} threads when it called shmem_init", threads);
  } else if (end > start) {
    range.start = start;
    range.bytes = end - start;
  }
  return range;
}

void Statics::map(const World& world, const StaticRange& range) {
  Identity mine{range.bytes, range.start % memory::Segment::kAlignment % page_size(),
                range.obstacle.empty() ? 1U : 0U, build_id(find_executable())};
  const auto all = exchange_bytes(world.team(), std::as_bytes(std::span(&mine, 1)));
  for (Pe pe = 0; pe < world.n_pes(); ++pe) {
    Identity theirs;
    std::memcpy(&theirs, all.data() + static_cast<std::size_t>(pe) * sizeof theirs, sizeof theirs);
    if (range.obstacle.empty() && std::memcmp(&theirs, &mine, sizeof mine) != 0)
      obstacle_ = theirs.usable == 0 ? fmt::format("PE {} cannot share its own", pe)
                                     : fmt::format("PE {} runs another executable", pe);
  }
  if (!range.obstacle.empty()) obstacle_ = range.obstacle;
  if (!obstacle_.empty() || range.bytes == 0) return;

  auto* const block = static_cast<std::byte*>(world.heap().align(page_size(), range.bytes));
  offset_ = world.heap().offset_of(block);
  detail::WorldState& core = state_of(world);
  const int fd = core.memory().segment()->descriptor().get();
  const auto place = static_cast<off_t>(core.memory().host_offset(offset_));
  auto* const at = reinterpret_cast<void*>(range.start);
  copy_pages(reinterpret_cast<std::uint64_t*>(block), static_cast<const std::uint64_t*>(at),
             range.bytes);
  if (mmap(at, range.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, place) ==
      MAP_FAILED)
    fail_errno("SHOAL-N839: cannot map {} bytes of symmetric memory over the program's variables",
               range.bytes);
  start_ = range.start;
  bytes_ = range.bytes;
  static const int registered = pthread_atfork(nullptr, nullptr, make_private_in_child);
  (void)registered;
  mapped = range;
  sync(world.team());  // the copies of the other PEs are complete
}

}  // namespace shoal::shmem
