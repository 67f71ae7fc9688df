// SPDX-License-Identifier: Apache-2.0
#include "gpu/nccl.hpp"

#include <dlfcn.h>

#include <cstring>

#include "base/check.hpp"

namespace shoal::bench::gpu {
namespace {

// Types of NCCL's interface.
struct UniqueId {
  char bytes[128];
};
constexpr int kInt8 = 0, kBfloat16 = 9, kSum = 0;
constexpr int kWindowSymmetric = 1;
constexpr int kOldestVersion = 21900;

}  // namespace

struct Nccl::Library {
  void* handle = nullptr;
  int version_number = 0;
  int (*get_version)(int*) = nullptr;
  int (*get_unique_id)(UniqueId*) = nullptr;
  int (*comm_init_rank)(void**, int, UniqueId, int) = nullptr;
  int (*comm_destroy)(void*) = nullptr;
  const char* (*get_error_string)(int) = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int, void*, cudaStream_t) = nullptr;
  int (*reduce_scatter)(const void*, void*, std::size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*broadcast)(const void*, void*, std::size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*send)(const void*, std::size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*recv)(void*, std::size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  // From 2.27 on.
  int (*mem_alloc)(void**, std::size_t) = nullptr;
  int (*mem_free)(void*) = nullptr;
  int (*window_register)(void*, void*, std::size_t, void**, int) = nullptr;
  int (*window_deregister)(void*, void*) = nullptr;

  ~Library() {
    if (handle != nullptr) dlclose(handle);
  }

  /// Empty, or why NCCL cannot be used.
  std::string load() {
    handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return dlerror();
    std::string missing;
    const auto find = [&](auto& function, const char* name, bool needed = true) {
      using Function = std::remove_reference_t<decltype(function)>;
      function = reinterpret_cast<Function>(dlsym(handle, name));
      if (function == nullptr && needed) missing = name;
    };
    find(get_version, "ncclGetVersion");
    find(get_unique_id, "ncclGetUniqueId");
    find(comm_init_rank, "ncclCommInitRank");
    find(comm_destroy, "ncclCommDestroy");
    find(get_error_string, "ncclGetErrorString");
    find(all_reduce, "ncclAllReduce");
    find(all_gather, "ncclAllGather");
    find(reduce_scatter, "ncclReduceScatter");
    find(broadcast, "ncclBroadcast");
    find(send, "ncclSend");
    find(recv, "ncclRecv");
    find(group_start, "ncclGroupStart");
    find(group_end, "ncclGroupEnd");
    find(mem_alloc, "ncclMemAlloc", false);
    find(mem_free, "ncclMemFree", false);
    find(window_register, "ncclCommWindowRegister", false);
    find(window_deregister, "ncclCommWindowDeregister", false);
    if (!missing.empty()) return "libnccl.so.2 has no " + missing;
    if (get_version(&version_number) != 0 || version_number < kOldestVersion)
      return fmt::format("libnccl.so.2 is version {}; needed: {}", version_number, kOldestVersion);
    return {};
  }
};

std::unique_ptr<Nccl> Nccl::open(Peers& peers, int pes_on_device) {
  auto library = std::make_unique<Library>();
  std::string reason =
      pes_on_device > 1 ? fmt::format("{} PEs share a GPU", pes_on_device) : library->load();
  // All PEs or none: the next step is collective.
  UniqueId id{};
  if (reason.empty() && peers.me() == 0 && library->get_unique_id(&id) != 0)
    reason = "ncclGetUniqueId failed";
  std::vector<double> mine(1 + sizeof id / sizeof(double));
  mine[0] = reason.empty() ? 0 : 1;
  std::memcpy(mine.data() + 1, &id, sizeof id);
  const auto all = peers.gather(mine);
  bool usable = true;
  for (const auto& of_pe : all) usable = usable && of_pe[0] == 0;
  if (!usable) {
    if (!reason.empty())
      fmt::print("PE {}: no NCCL to compare with Shoal: {}\n", peers.me(), reason);
    return nullptr;
  }
  std::memcpy(&id, all[0].data() + 1, sizeof id);
  std::unique_ptr<Nccl> nccl(new Nccl(std::move(library), peers));
  nccl->check(nccl->library_->comm_init_rank(&nccl->communicator_, peers.count(), id, peers.me()),
              "ncclCommInitRank");
  return nccl;
}

Nccl::Nccl(std::unique_ptr<Library> library, Peers& peers)
    : library_(std::move(library)), peers_(peers) {}

Nccl::~Nccl() {
  for (const auto& [memory, handle] : windows_) {
    library_->window_deregister(communicator_, handle);
    library_->mem_free(memory);
  }
  if (communicator_ != nullptr) library_->comm_destroy(communicator_);
}

void Nccl::check(int result, const char* what) const {
  require(result == 0, Code::system, "{}: {}", what, library_->get_error_string(result));
}

std::string Nccl::version() const {
  const int number = library_->version_number;
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

void* Nccl::window(std::size_t bytes) {
  if (library_->mem_alloc == nullptr || library_->mem_free == nullptr ||
      library_->window_register == nullptr || library_->window_deregister == nullptr)
    return nullptr;
  void *memory = nullptr, *handle = nullptr;
  check(library_->mem_alloc(&memory, bytes), "ncclMemAlloc");
  check(library_->window_register(communicator_, memory, bytes, &handle, kWindowSymmetric),
        "ncclCommWindowRegister");
  windows_.emplace_back(memory, handle);
  return memory;
}

void Nccl::all_reduce_bf16(const void* source, void* target, std::size_t count,
                           cudaStream_t stream) {
  check(library_->all_reduce(source, target, count, kBfloat16, kSum, communicator_, stream),
        "ncclAllReduce");
}

void Nccl::all_gather(const void* source, void* target, std::size_t bytes, cudaStream_t stream) {
  check(library_->all_gather(source, target, bytes, kInt8, communicator_, stream), "ncclAllGather");
}

void Nccl::reduce_scatter_bf16(const void* source, void* target, std::size_t count,
                               cudaStream_t stream) {
  check(library_->reduce_scatter(source, target, count, kBfloat16, kSum, communicator_, stream),
        "ncclReduceScatter");
}

void Nccl::broadcast(const void* source, void* target, std::size_t bytes, cudaStream_t stream) {
  check(library_->broadcast(source, target, bytes, kInt8, 0, communicator_, stream),
        "ncclBroadcast");
}

void Nccl::all_to_all(const void* source, void* target, std::size_t bytes, cudaStream_t stream) {
  check(library_->group_start(), "ncclGroupStart");
  for (int pe = 0; pe < peers_.count(); ++pe) {
    const std::size_t at = static_cast<std::size_t>(pe) * bytes;
    check(library_->send(static_cast<const std::byte*>(source) + at, bytes, kInt8, pe,
                         communicator_, stream),
          "ncclSend");
    check(library_->recv(static_cast<std::byte*>(target) + at, bytes, kInt8, pe, communicator_,
                         stream),
          "ncclRecv");
  }
  check(library_->group_end(), "ncclGroupEnd");
}

}  // namespace shoal::bench::gpu
