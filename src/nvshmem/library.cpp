// SPDX-License-Identifier: Apache-2.0
// Start, end, queries and modules that are loaded later.
#include <atomic>
#include <cstdio>
#include <cstring>

#include "base/nvshmem_variables.hpp"
#include "nvshmem/define.hpp"
#include "nvshmem/join.hpp"

using namespace shoal::nvshmem;

namespace {

/// PE 0 prints what NVSHMEM_VERSION and NVSHMEM_INFO ask for, when the program first starts.
void print_banner(const shoal::World& world, const shoal::Settings& settings) {
  static std::atomic<bool> printed = false;
  if (world.my_pe() != 0 || printed.exchange(true)) return;
  if (shoal::nvshmem::is_on("NVSHMEM_VERSION"))
    std::printf("Shoal, NVSHMEM %d.%d.%d\n", NVSHMEM_VENDOR_MAJOR_VERSION,
                NVSHMEM_VENDOR_MINOR_VERSION, NVSHMEM_VENDOR_PATCH_VERSION);
  if (shoal::nvshmem::is_on("NVSHMEM_INFO") || shoal::nvshmem::is_on("NVSHMEM_INFO_HIDDEN"))
    std::printf("%sSettings of Shoal: docs/reference/settings.md\n",
                shoal::nvshmem::describe(settings).c_str());
  std::fflush(stdout);
}

/// With what the open world was started.
JoinArguments& opened_with() {
  static JoinArguments& arguments = *new JoinArguments;  // calls may come from functions of atexit
  return arguments;
}

/// A further call of a function without arguments takes any open world.
void initialize_with(unsigned flags, const nvshmemx_init_attr_t* attributes, bool takes_any) {
  const auto open = [&] {
    const shoal::Settings settings = read_settings();
    auto bootstrap = join(flags, attributes, settings);
    shoal::World world = shoal::World::open({settings, std::move(bootstrap)});
    print_banner(world, settings);
    opened_with() = arguments_of(flags, attributes);
    return world;
  };
  initialize(open, [&] {
    if (!takes_any) check_same(opened_with(), arguments_of(flags, attributes));
  });
}

int initialize_by_call(const char* call, unsigned flags,
                       const nvshmemx_init_attr_t* attributes) noexcept {
  starting(call, [&] { initialize_with(flags, attributes, false); });
  return NVSHMEMX_SUCCESS;
}

}  // namespace

NVSHMEM_DEFINE(void, init, ()) {
  starting("nvshmem_init", [] { initialize_with(0, nullptr, true); });
}
NVSHMEM_DEFINE(int, init_thread, (int requested, int* provided)) {
  starting("nvshmem_init_thread", [&] {
    shoal::require(requested >= NVSHMEM_THREAD_SINGLE && requested <= NVSHMEM_THREAD_MULTIPLE,
                   shoal::Code::invalid_argument,
                   "SHOAL-N858: requested is {}; allowed: NVSHMEM_THREAD_SINGLE (0) to "
                   "NVSHMEM_THREAD_MULTIPLE (3)",
                   requested);
    initialize_with(0, nullptr, true);
  });
  if (provided != nullptr) *provided = NVSHMEM_THREAD_SERIALIZED;
  return NVSHMEMX_SUCCESS;
}
NVSHMEMX_DEFINE(int, init_attr, (unsigned flags, nvshmemx_init_attr_t* attributes)) {
  return initialize_by_call("nvshmemx_init_attr", flags, attributes);
}
NVSHMEMX_DEFINE(int, hostlib_init_attr, (unsigned flags, nvshmemx_init_attr_t* attributes)) {
  return initialize_by_call("nvshmemx_hostlib_init_attr", flags, attributes);
}
NVSHMEM_DEFINE(void, finalize, ()) {
  starting("nvshmem_finalize", [] { finalize(); });
}
NVSHMEMX_DEFINE(void, hostlib_finalize, ()) {
  starting("nvshmemx_hostlib_finalize", [] { finalize(); });
}
NVSHMEMX_DEFINE(int, init_status, ()) {
  const Program* const found = find_program();
  if (found == nullptr) return NVSHMEM_STATUS_NOT_INITIALIZED;
  const bool shares = found->core.device_side() != nullptr &&
                      shoal::cuda::launch_context(found->world).pes_on_device > 1;
  return shares ? NVSHMEM_STATUS_FULL_MPG : NVSHMEM_STATUS_IS_INITIALIZED;
}

NVSHMEMX_DEFINE(int, get_uniqueid, (nvshmemx_uniqueid_t * id)) {
  starting("nvshmemx_get_uniqueid", [&] {
    shoal::require(id != nullptr, shoal::Code::invalid_argument,
                   "SHOAL-N855: id is NULL; allowed: an id");
    *id = make_id(read_settings());
  });
  return NVSHMEMX_SUCCESS;
}
NVSHMEMX_DEFINE(int, set_attr_uniqueid_args,
                (int myrank, int nranks, const nvshmemx_uniqueid_t* id,
                 nvshmemx_init_attr_t* attributes)) {
  starting("nvshmemx_set_attr_uniqueid_args", [&] {
    shoal::require(id != nullptr && attributes != nullptr, shoal::Code::invalid_argument,
                   "SHOAL-N855: id or attributes is NULL; allowed: both");
    shoal::require(
        nranks >= 1 && myrank >= 0 && myrank < nranks, shoal::Code::invalid_argument,
        "SHOAL-N859: myrank is {} of nranks {}; allowed: 0 to nranks - 1, at least one rank",
        myrank, nranks);
    *attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    nvshmemx_uniqueid_args_t& args = attributes->args.uid_args;
    args.id = const_cast<nvshmemx_uniqueid_t*>(id);
    args.myrank = myrank;
    args.nranks = nranks;
  });
  return NVSHMEMX_SUCCESS;
}

NVSHMEM_DEFINE(void, query_thread, (int* provided)) {
  *provided = NVSHMEM_THREAD_SERIALIZED;
}
NVSHMEM_DEFINE(void, global_exit, (int status)) {
  if (Program* const found = find_program())
    found->core.health().fail_world(fmt::format("nvshmem_global_exit with status {}", status));
  shoal::shmem::leave_process(status);
}
NVSHMEM_DEFINE(int, my_pe, ()) {
  return starting("nvshmem_my_pe", [] { return program().me; });
}
NVSHMEM_DEFINE(int, n_pes, ()) {
  return starting("nvshmem_n_pes", [] { return program().n_pes; });
}
NVSHMEM_DEFINE(int, pe_accessible, (int pe)) {
  return starting("nvshmem_pe_accessible", [&] { return pe >= 0 && pe < program().n_pes ? 1 : 0; });
}
NVSHMEM_DEFINE(int, addr_accessible, (const void* address, int pe)) {
  return starting("nvshmem_addr_accessible", [&] {
    return pe >= 0 && pe < program().n_pes && program().is_symmetric(address) ? 1 : 0;
  });
}
NVSHMEM_DEFINE(void, info_get_version, (int* major, int* minor)) {
  *major = NVSHMEM_MAJOR_VERSION;
  *minor = NVSHMEM_MINOR_VERSION;
}
NVSHMEM_DEFINE(void, info_get_name, (char* name)) {
  std::strncpy(name, NVSHMEM_VENDOR_STRING, NVSHMEM_MAX_NAME_LEN);
}
NVSHMEMX_DEFINE(void, vendor_get_version_info, (int* major, int* minor, int* patch)) {
  *major = NVSHMEM_VENDOR_MAJOR_VERSION;
  *minor = NVSHMEM_VENDOR_MINOR_VERSION;
  *patch = NVSHMEM_VENDOR_PATCH_VERSION;
}

NVSHMEMX_DEFINE(int, cumodule_init, (CUmod_st * module)) {
  return guarded("nvshmemx_cumodule_init",
                 [&](Program& program) { return fill_module(program, module); });
}
NVSHMEMX_DEFINE(int, cumodule_finalize, (CUmod_st*)) {
  return NVSHMEMX_SUCCESS;
}
NVSHMEMX_DEFINE(int, culibrary_init, (CUlib_st * library)) {
  return guarded("nvshmemx_culibrary_init",
                 [&](Program& program) { return fill_library(program, library); });
}
NVSHMEMX_DEFINE(int, culibrary_finalize, (CUlib_st*)) {
  return NVSHMEMX_SUCCESS;
}

extern "C" void shoal_nvshmem_launch_context(int* device, int* pes_on_device,
                                             cudaStream_t* priority) {
  guarded("nvshmemx_collective_launch", [&](Program& program) {
    const shoal::cuda::LaunchContext context = shoal::cuda::launch_context(program.world);
    *device = context.device;
    *pes_on_device = context.pes_on_device;
    *priority = context.priority;
  });
}
extern "C" void shoal_nvshmem_order(cudaStream_t before, cudaStream_t after) {
  guarded("nvshmemx_collective_launch",
          [&](Program& program) { shoal::cuda::order(program.world, before, after); });
}
