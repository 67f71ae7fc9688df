// SPDX-License-Identifier: Apache-2.0
// Protection domains and memory regions.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "verbs/objects.hpp"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace shoal::emulator {

namespace {

/// True if the kernel can read a byte there. A GPU's driver maps device addresses without the right
/// to read, and the kernel cannot pin such pages.
bool is_readable(const void* address) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return true;  // unknown
  // Not through the C library, whose call sanitizers take for an access of this thread.
  const bool readable = syscall(SYS_write, ends[1], address, 1UL) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

}  // namespace

bool is_memory(const void* address, std::size_t length) {
  if (length == 0) return true;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(address) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(address) + length;
  if (end < first) return false;
  // Asynchronous: only looks up the mappings.
  return msync(reinterpret_cast<void*>(first), end - first, MS_ASYNC) == 0 &&
         is_readable(address) && is_readable(reinterpret_cast<const void*>(end - 1));
}

namespace {

/// 0, or why no memory is registered with these rights.
int check_access(unsigned access) {
  constexpr unsigned kNeedsLocalWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  constexpr unsigned kKnown = IBV_ACCESS_LOCAL_WRITE | kNeedsLocalWrite | IBV_ACCESS_REMOTE_READ |
                              IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB;
  if ((access & ~(kKnown | IBV_ACCESS_OPTIONAL_RANGE)) != 0) return EOPNOTSUPP;
  if ((access & kNeedsLocalWrite) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return EINVAL;
  return 0;
}

ibv_mr* register_memory(ibv_pd* domain, void* address, std::size_t length, std::uint64_t iova,
                        unsigned access) {
  if (const int error = check_access(access); error != 0) return fail_with(error);
  if (!is_memory(address, length)) return fail_with(EFAULT);
  if ((access & IBV_ACCESS_ZERO_BASED) != 0) iova = 0;
  Pd& owner = of(domain);
  auto region = std::make_unique<Mr>();
  const std::uint32_t key = owner.context->runtime->with_nic([&](Nic& nic) {
    return nic.keys().create(
        {.domain = owner.number,
         .address = iova,
         .length = length,
         .memory = static_cast<std::byte*>(address),
         .access = access & (Access::local_write | Access::remote_write | Access::remote_read |
                             Access::remote_atomic | Access::relaxed_ordering)});
  });
  if (key == 0) return fail_with(ENOMEM);
  region->domain = &owner;
  region->base = {.context = owner.context->base(),
                  .pd = domain,
                  .addr = address,
                  .length = length,
                  .handle = key >> 8,
                  .lkey = key,
                  .rkey = key};
  ++owner.users;
  return &region.release()->base;
}

}  // namespace
}  // namespace shoal::emulator

using namespace shoal::emulator;

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto domain = std::make_unique<Pd>();
  domain->context = &of(context);
  domain->number = of(context).next_domain++;
  domain->base = {.context = context, .handle = domain->number};
  ++of(context).objects;
  return &domain.release()->base;
}

int ibv_dealloc_pd(ibv_pd* domain) {
  if (of(domain).users != 0) return EBUSY;
  --of(domain).context->objects;
  delete &of(domain);
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* domain, void* address, std::size_t length, int access) {
  return register_memory(domain, address, length, reinterpret_cast<std::uint64_t>(address),
                         static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* domain, void* address, std::size_t length, std::uint64_t iova,
                        int access) {
  return register_memory(domain, address, length, iova, static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* domain, void* address, std::size_t length, std::uint64_t iova,
                         unsigned access) {
  return register_memory(domain, address, length, iova, access);
}

/// Any file descriptor that processors can map: a dma-buf of udmabuf, or a memfd for tests. Others,
/// such as that of a GPU's memory, are refused with EOPNOTSUPP.
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, std::uint64_t offset, std::size_t length,
                          std::uint64_t iova, int fd, int access) {
  if (const int error = check_access(static_cast<unsigned>(access)); error != 0)
    return fail_with(error);
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t first = offset / page * page;
  const std::size_t bytes = length + (offset - first);
  struct stat info = {};
  if (length == 0 || (iova - offset) % page != 0) return fail_with(EINVAL);
  if (fstat(fd, &info) != 0) return fail_with(EBADF);
  if (info.st_size > 0 && offset + length > static_cast<std::uint64_t>(info.st_size))
    return fail_with(EINVAL);
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(first));
  if (mapped == MAP_FAILED) return fail_with(EOPNOTSUPP);
  ibv_mr* const region = register_memory(domain, static_cast<std::byte*>(mapped) + (offset - first),
                                         length, iova, static_cast<unsigned>(access));
  if (region == nullptr) {
    const int error = errno;
    munmap(mapped, bytes);
    return fail_with(error);
  }
  region->addr = reinterpret_cast<void*>(iova);
  of(region).mapped = mapped;
  of(region).mapped_bytes = bytes;
  return region;
}

int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, std::size_t, int) {
  errno = EOPNOTSUPP;  // the region stays as it is
  return IBV_REREG_MR_ERR_CMD;
}

int ibv_dereg_mr(ibv_mr* region) {
  Pd& owner = *of(region).domain;
  owner.context->runtime->with_nic([&](Nic& nic) { return nic.keys().destroy(region->lkey); });
  --owner.users;
  if (of(region).mapped != nullptr) munmap(of(region).mapped, of(region).mapped_bytes);
  delete &of(region);
  return 0;
}

}  // extern "C"
