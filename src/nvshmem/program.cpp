// SPDX-License-Identifier: Apache-2.0
#include "nvshmem/program.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>

#include "memory/cuda/driver.hpp"
#include "nvshmem/define.hpp"
#include "pe/forks.hpp"
#include "shoal/collective.hpp"

namespace shoal::nvshmem {
namespace {

// Never destroyed: functions of atexit may call functions of the library.
std::atomic<Program*> running = nullptr;  // NOLINT
std::mutex starting_or_ending;            // NOLINT
int initializations = 0;                  // NOLINT
bool was_finalized = false;               // NOLINT
Pe forked_from = -1;                      // NOLINT: in a child that a PE has forked

/// A child is no PE: its calls find no program.
void in_child() noexcept {
  if (const Program* const program = running.exchange(nullptr)) forked_from = program->me;
}

std::string why_not_running() {
  if (forked_from >= 0) return shoal::detail::describe_fork(forked_from);
  return was_finalized ? "the library was finalized already"
                       : "the library is not initialized; call nvshmem_init or nvshmemx_init_attr";
}

/// The GPU of the calling thread's context; -1 where it has none.
std::int64_t current_gpu() {
  const memory::cuda::Driver* const driver = memory::cuda::find_driver(nullptr);
  CUcontext context = nullptr;
  if (driver == nullptr || driver->get_current(&context) != CUDA_SUCCESS || context == nullptr)
    return -1;
  CUdevice device = -1;
  return driver->current_device(&device) == CUDA_SUCCESS ? device : -1;
}

constexpr std::chrono::hours kUnlimited{24};

}  // namespace

Program::Program(World opened)
    : world(std::move(opened)),
      core(state_of(world)),
      me(world.my_pe()),
      n_pes(world.n_pes()),
      device_teams(core.device_side() == nullptr
                       ? nullptr
                       : std::make_unique<DeviceTeams>(world, Teams::capacity(world))),
      teams(world, device_teams.get()) {}

std::size_t Program::offset(const char* argument, const void* address, std::size_t bytes) const {
  const SymmetricHeap& heap = world.heap();
  require(heap.contains(address, bytes), Code::invalid_argument,
          "SHOAL-N860: {} is {} with {} bytes; allowed: in the symmetric heap, {} bytes at {}",
          argument, address, bytes, heap.size(), static_cast<const void*>(heap.base()));
  return heap.offset_of(address);
}

RemoteAddress Program::remote_word(const char* argument, const void* address, std::size_t bytes,
                                   int pe) const {
  const RemoteAddress at = remote(argument, address, bytes, pe);
  require(at.offset % bytes == 0, Code::invalid_argument,
          "SHOAL-N861: {} is {}; allowed: multiples of {}", argument, address, bytes);
  return at;
}

Settings read_settings() {
  const std::vector<EnvironmentVariable> variables = inspect_environment();
  const auto is_set = [&](std::string_view setting) {
    return std::ranges::any_of(variables, [&](const EnvironmentVariable& variable) {
      return variable.use == VariableUse::used &&
             (variable.name == setting || variable.setting == setting);
    });
  };
  Settings settings = Settings::from_environment();
  if (!is_set("SHOAL_HEAP")) settings.heap = "cuda";
  if (!is_set("SHOAL_TIMEOUT_MS")) settings.timeout = kUnlimited;
  if (settings.heap_on_gpu() && !is_set("SHOAL_DEVICE")) settings.device = current_gpu();
  return settings;
}

void initialize(const std::function<World()>& open, const std::function<void()>& check_further) {
  require(forked_from < 0, Code::closed, "SHOAL-N868: {}", why_not_running());
  const std::lock_guard lock(starting_or_ending);
  if (initializations > 0) {
    check_further();
    ++initializations;
    return;
  }
  auto started = std::make_unique<Program>(open());
  Units::of_process().start(*started);
  static const int registered = pthread_atfork(nullptr, nullptr, in_child);
  (void)registered;
  running = started.release();
  initializations = 1;
  barrier(program().world.team());
}

void finalize() {
  require(forked_from < 0, Code::closed, "SHOAL-N868: {}", why_not_running());
  const std::lock_guard lock(starting_or_ending);
  require(initializations > 0, Code::closed, "SHOAL-N868: {}", why_not_running());
  if (--initializations > 0) return;
  Program& ended = program();
  barrier(ended.world.team());
  ended.check_kernels();
  Units::of_process().stop();
  was_finalized = true;
  running = nullptr;
  const std::unique_ptr<Program> owner(&ended);
  ended.device_teams.reset();
  ended.world.close();
}

Program* find_program() noexcept {
  return running.load(std::memory_order_acquire);
}

Program& program() {
  Program* const found = find_program();
  if (found == nullptr) fail(Code::closed, "SHOAL-N868: {}", why_not_running());
  return *found;
}

void end_program(const char* call, const std::exception& error) noexcept {
  Program* const found = find_program();
  shmem::end_process(call, error, found == nullptr ? nullptr : &found->core);
}

Compare compare_of(int cmp) {
  switch (cmp) {
    case NVSHMEM_CMP_EQ:
      return Compare::equal;
    case NVSHMEM_CMP_NE:
      return Compare::not_equal;
    case NVSHMEM_CMP_GT:
      return Compare::greater;
    case NVSHMEM_CMP_LE:
      return Compare::less_equal;
    case NVSHMEM_CMP_LT:
      return Compare::less;
    case NVSHMEM_CMP_GE:
      return Compare::greater_equal;
    default:
      fail(Code::invalid_argument,
           "SHOAL-N858: cmp is {}; allowed: NVSHMEM_CMP_EQ (0), NE (1), GT (2), LE (3), LT (4) and "
           "GE (5)",
           cmp);
  }
}

SignalOp signal_op_of(int op) {
  require(op == NVSHMEM_SIGNAL_SET || op == NVSHMEM_SIGNAL_ADD, Code::invalid_argument,
          "SHOAL-N858: sig_op is {}; allowed: NVSHMEM_SIGNAL_SET (9) or NVSHMEM_SIGNAL_ADD (10)",
          op);
  return op == NVSHMEM_SIGNAL_ADD ? SignalOp::add : SignalOp::set;
}

}  // namespace shoal::nvshmem
