// SPDX-License-Identifier: Apache-2.0
#include "nvshmem/join.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "base/check.hpp"

namespace shoal::nvshmem {
namespace {

/// Text of an id, with its end.
constexpr std::size_t kRoom = 256;

/// A function of a library that the program has loaded. Throws Error{unsupported}.
template <typename Function>
Function* find(const char* library, const char* name) {
  void* const found = dlsym(RTLD_DEFAULT, name);
  require(found != nullptr, Code::unsupported,
          "SHOAL-N850: {} is not in this process: there is no {}; link the program with {}",
          library, name, library);
  return reinterpret_cast<Function*>(found);
}

/// The MPI of the program. MPIs have no common ABI: handles are pointers in Open MPI, and numbers
/// in MPICH and the libraries that share its ABI.
template <typename Handle>
struct Mpi {
  Handle character;  ///< MPI_CHAR
  void* no_status;   ///< MPI_STATUS_IGNORE
  int (*rank)(Handle, int*) = find<int(Handle, int*)>("MPI", "MPI_Comm_rank");
  int (*size)(Handle, int*) = find<int(Handle, int*)>("MPI", "MPI_Comm_size");
  int (*broadcast)(void*, int, Handle, int, Handle,
                   Handle*) = find<int(void*, int, Handle, int, Handle, Handle*)>("MPI",
                                                                                  "MPI_Ibcast");
  int (*test)(Handle*, int*, void*) = find<int(Handle*, int*, void*)>("MPI", "MPI_Test");
};

template <typename Handle>
std::unique_ptr<Bootstrap> join_mpi(const Mpi<Handle>& mpi, const void* communicator,
                                    const Settings& settings) {
  Handle comm{};
  std::memcpy(static_cast<void*>(&comm), communicator, sizeof comm);
  int rank = 0, size = 0;
  require(
      mpi.rank(comm, &rank) == 0 && mpi.size(comm, &size) == 0, Code::invalid_argument,
      "SHOAL-N851: attributes->mpi_comm points to no communicator of this process's MPI; allowed: "
      "the address of an MPI_Comm");
  const auto broadcast = [&](const std::string& mine) {
    auto text = std::make_unique<char[]>(kRoom);
    mine.copy(text.get(), kRoom - 1);
    const auto deadline = std::chrono::steady_clock::now() + settings.bootstrap_timeout;
    Handle request{};
    mpi.broadcast(text.get(), static_cast<int>(kRoom), mpi.character, 0, comm, &request);
    for (int done = 0; done == 0; usleep(20)) {
      mpi.test(&request, &done, mpi.no_status);
      if (done != 0 || std::chrono::steady_clock::now() < deadline) continue;
      static_cast<void>(text.release());  // MPI may still write there
      fail(Code::timeout,
           "SHOAL-N852: rank {} of {} waited {} ms for the others. Setting: "
           "SHOAL_BOOTSTRAP_TIMEOUT_MS",
           rank, size, settings.bootstrap_timeout.count());
    }
    return std::string(text.get());
  };
  return connect_by_broadcast(rank, size, broadcast, settings);
}

const void* communicator_of(const nvshmemx_init_attr_t* attributes) {
  require(attributes != nullptr && attributes->mpi_comm != nullptr, Code::invalid_argument,
          "SHOAL-N851: NVSHMEMX_INIT_WITH_MPI_COMM without a communicator; allowed: "
          "attributes->mpi_comm points to an MPI_Comm");
  return attributes->mpi_comm;
}

/// MPI_CHAR of Open MPI; nullptr where the MPI is another one.
void* open_mpi_character() {
  return dlsym(RTLD_DEFAULT, "ompi_mpi_char");
}

std::unique_ptr<Bootstrap> join_mpi(const nvshmemx_init_attr_t* attributes,
                                    const Settings& settings) {
  const void* const communicator = communicator_of(attributes);
  int (*const initialized)(int*) = find<int(int*)>("MPI", "MPI_Initialized");
  int started = 0;
  initialized(&started);
  require(started != 0, Code::invalid_argument,
          "SHOAL-N853: MPI is not initialized; call MPI_Init first");
  if (void* const character = open_mpi_character())
    return join_mpi(Mpi<void*>{character, nullptr}, communicator, settings);
  // The values of the ABI that MPICH, Intel MPI and others share.
  constexpr int kChar = 0x4c000101;
  return join_mpi(Mpi<int>{kChar, reinterpret_cast<void*>(std::uintptr_t{1})}, communicator,
                  settings);
}

/// Joins by the OpenSHMEM of the program, Shoal's or another one, which it has initialized.
std::unique_ptr<Bootstrap> join_shmem(const Settings& settings) {
  const char* const library = "OpenSHMEM";
  auto* const my_pe = find<int()>(library, "shmem_my_pe");
  auto* const n_pes = find<int()>(library, "shmem_n_pes");
  auto* const allocate = find<void*(std::size_t)>(library, "shmem_malloc");
  auto* const release = find<void(void*)>(library, "shmem_free");
  auto* const get = find<void(void*, const void*, std::size_t, int)>(library, "shmem_getmem");
  auto* const barrier = find<void()>(library, "shmem_barrier_all");
  const auto broadcast = [&](const std::string& mine) {
    auto* const shared = static_cast<char*>(allocate(kRoom));
    require(shared != nullptr, Code::exhausted,
            "SHOAL-N854: shmem_malloc of {} bytes returned NULL", kRoom);
    std::memset(shared, 0, kRoom);
    mine.copy(shared, kRoom - 1);
    barrier();
    std::vector<char> text(kRoom);
    get(text.data(), shared, kRoom, 0);
    barrier();
    release(shared);
    return std::string(text.data());
  };
  return connect_by_broadcast(my_pe(), n_pes(), broadcast, settings);
}

const nvshmemx_uniqueid_args_t& id_arguments_of(const nvshmemx_init_attr_t* attributes) {
  require(
      attributes != nullptr && attributes->args.uid_args.id != nullptr, Code::invalid_argument,
      "SHOAL-N855: NVSHMEMX_INIT_WITH_UNIQUEID without an id; call nvshmemx_set_attr_uniqueid_args "
      "first");
  return attributes->args.uid_args;
}

std::unique_ptr<Bootstrap> join_id(const nvshmemx_init_attr_t* attributes,
                                   const Settings& settings) {
  const nvshmemx_uniqueid_args_t& args = id_arguments_of(attributes);
  return connect_unique_id(id_of(*args.id), args.myrank, args.nranks, settings);
}

}  // namespace

UniqueId id_of(const nvshmemx_uniqueid_t& id) {
  const std::size_t length = strnlen(id.internal, sizeof id.internal);
  require(
      length != 0 && length < sizeof id.internal, Code::invalid_argument,
      "SHOAL-N855: the id is empty or has no end; allowed: what nvshmemx_get_uniqueid has made");
  return UniqueId::parse({id.internal, length});
}

nvshmemx_uniqueid_t make_id(const Settings& settings) {
  static std::mutex mutex;
  static std::vector<UniqueId>& made = *new std::vector<UniqueId>;  // roots until the process ends
  UniqueId created = UniqueId::create(settings);
  const std::string text = created.to_string();
  nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
  require(
      text.size() < sizeof id.internal, Code::unsupported,
      "SHOAL-N856: the address {} is too long for an nvshmemx_uniqueid_t; SHOAL_SOCKET_INTERFACE "
      "selects another interface",
      created.host);
  text.copy(id.internal, text.size());
  const std::lock_guard lock(mutex);
  made.push_back(std::move(created));
  return id;
}

JoinArguments arguments_of(unsigned flags, const nvshmemx_init_attr_t* attributes) {
  JoinArguments arguments;
  arguments.flags = flags;
  if (flags == NVSHMEMX_INIT_WITH_MPI_COMM) {
    std::memcpy(&arguments.mpi_comm, communicator_of(attributes),
                open_mpi_character() != nullptr ? sizeof(void*) : sizeof(int));
  } else if (flags == NVSHMEMX_INIT_WITH_UNIQUEID) {
    const nvshmemx_uniqueid_args_t& args = id_arguments_of(attributes);
    arguments.id = id_of(*args.id).to_string();
    arguments.myrank = args.myrank;
    arguments.nranks = args.nranks;
  }
  return arguments;
}

void check_same(const JoinArguments& open, const JoinArguments& further) {
  const auto check = [](const char* name, const auto& there, const auto& here) {
    require(
        there == here, Code::invalid_argument,
        "SHOAL-N857: {} is {}, but the open world has {}; allowed: the same, or nvshmem_finalize "
        "first",
        name, here, there);
  };
  check("flags", open.flags, further.flags);
  check("attributes->mpi_comm", open.mpi_comm, further.mpi_comm);
  require(
      open.id == further.id, Code::invalid_argument,
      "SHOAL-N857: attributes->args.uid_args.id is not that of the open world; allowed: the same, "
      "or nvshmem_finalize first");  // an id is a secret
  check("attributes->args.uid_args.myrank", open.myrank, further.myrank);
  check("attributes->args.uid_args.nranks", open.nranks, further.nranks);
}

std::unique_ptr<Bootstrap> join(unsigned flags, const nvshmemx_init_attr_t* attributes,
                                const Settings& settings) {
  switch (flags) {
    case 0:
      return make_bootstrap(settings);
    case NVSHMEMX_INIT_WITH_MPI_COMM:
      return join_mpi(attributes, settings);
    case NVSHMEMX_INIT_WITH_SHMEM:
      return join_shmem(settings);
    case NVSHMEMX_INIT_WITH_UNIQUEID:
      return join_id(attributes, settings);
    default:
      fail(Code::invalid_argument,
           "SHOAL-N858: flags is {:#x}; allowed: 0, NVSHMEMX_INIT_WITH_MPI_COMM (2), "
           "NVSHMEMX_INIT_WITH_SHMEM (4) or NVSHMEMX_INIT_WITH_UNIQUEID (8)",
           flags);
  }
}

}  // namespace shoal::nvshmem
