// SPDX-License-Identifier: Apache-2.0
#include "shmem/program.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "base/align.hpp"
#include "fabric/fabric.hpp"
#include "pe/forks.hpp"
#include "pe/memory.hpp"
#include "shmem/collectives.hpp"
#include "shmem/ending.hpp"
#include "shmem/environment.hpp"

namespace shoal::shmem {
namespace {

/// Room for the program's variables and for words of the library, in addition to the heap that the
/// user requested. Heap pages are taken on first use. A multiple of a large unit, so that
/// executables of different size still form a world.
constexpr std::size_t kRoom = std::size_t{64} << 20;
static_assert(TeamMemory::kMostBytes < kRoom);

// Not destroyed at exit: functions of atexit may call routines.
std::atomic<Program*> running = nullptr;  // NOLINT
std::mutex starting;                      // NOLINT
int initializations = 0;                  // NOLINT
bool was_finalized = false;               // NOLINT
Pe forked_from = -1;                      // NOLINT: in a child that a PE has forked

/// A child is no PE: its calls find no program, and its exit handler does nothing.
void in_child() noexcept {
  if (const Program* const program = running.exchange(nullptr)) forked_from = program->me;
}

std::string why_not_running() {
  if (forked_from >= 0) return detail::describe_fork(forked_from);
  return was_finalized ? "OpenSHMEM was finalized already; shmem_init starts it again"
                       : "OpenSHMEM is not initialized; call shmem_init first";
}

/// Closes the world. `starting` is held.
std::unique_ptr<Program> end_world() {
  barrier(program(), program().all.team);
  std::unique_ptr<Program> ended(&program());
  ended->exit_watch.stop();
  was_finalized = true;
  running = nullptr;
  ended->world.close();
  return ended;
}

/// The end of a program that did not call shmem_finalize.
void at_exit(int status, void*) {
  Program* const program = running.load();
  if (program == nullptr) return;
  if (const auto announced = program->exit_watch.announced()) leave_process(*announced);
  if (status != 0) {
    program->core.health().fail_world(
        fmt::format("exited with status {} without shmem_finalize", status));
    leave_process(status);
  }
  try {
    const std::lock_guard lock(starting);
    initializations = 0;
    // Leaked: objects that it uses may have been destroyed.
    [[maybe_unused]] const Program* const ended = end_world().release();
  } catch (const std::exception& error) {  // such as the death of another PE
    end_program("exit without shmem_finalize", error);
  }
}

void print_banner(const Program& program, const Environment& environment) {
  static bool printed = false;  // `starting` is held
  if (program.me != 0 || std::exchange(printed, true)) return;
  if (environment.print_version)
    std::printf("Shoal, OpenSHMEM %d.%d\n", SHMEM_MAJOR_VERSION, SHMEM_MINOR_VERSION);
  if (environment.print_info)
    std::printf(
        "SHMEM_VERSION         print the version at the start\n"
        "SHMEM_INFO            print this list at the start\n"
        "SHMEM_DEBUG           log as with SHOAL_LOG=debug\n"
        "SHMEM_SYMMETRIC_SIZE  bytes of the symmetric heap of each PE, such as 1.5G; now %zu\n"
        "Settings of Shoal: docs/reference/settings.md\n",
        environment.settings.symmetric_size);
  std::fflush(stdout);
}

/// Errors that advise another size name the variable that the user has set, too.
World open_world(WorldOptions options, const std::string& size_from) try {
  return World::open(std::move(options));
} catch (const Error& error) {
  const std::string reason = reason_of(error);
  if (size_from.empty() || reason.find("SHOAL_SYMMETRIC_SIZE") == std::string::npos) throw;
  throw Error(error.code(), fmt::format("{} ({})", reason, size_from));
}

Program* start() {
  // Bootstraps and networks keep threads when a world ends. Those do not write to variables.
  static std::set<std::string>& of_libraries = *new std::set<std::string>;
  const std::set<std::string> before = list_threads();
  const auto of_program = std::ranges::count_if(
      before, [&](const std::string& thread) { return !of_libraries.contains(thread); });
  const Environment environment = read_environment();
  const StaticRange range = find_static_range(static_cast<std::size_t>(of_program));
  WorldOptions options{environment.settings, nullptr};
  options.settings.symmetric_size += align_up(range.bytes, kRoom) + kRoom;
  auto* const program = new Program(open_world(std::move(options), environment.size_from));
  program->exit_watch.start(program->world);
  program->statics.map(program->world, range);
  program->team_memory.allocate(program->world);
  std::ranges::set_difference(list_threads(), before,
                              std::inserter(of_libraries, of_libraries.end()));
  print_banner(*program, environment);
  return program;
}

}  // namespace

Program::Program(World opened)
    : world(std::move(opened)),
      core(state_of(world)),
      me(world.my_pe()),
      n_pes(world.n_pes()),
      all{.team = world.team()},
      shared{.team = world.shared_team()},
      heap_start_(reinterpret_cast<std::uintptr_t>(world.heap().base())),
      heap_bytes_(world.heap().size()),
      heap_offset_(core.memory().host_offset(0)) {
  for (Pe pe = 0; pe < n_pes; ++pe) {
    transport::Transport& route = core.fabric().route(pe);
    routes_.push_back(&route);
    mapped_.push_back(route.base(pe) != nullptr);
  }
}

bool Program::is_symmetric(const void* address) const noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  return at - heap_start_ < heap_bytes_ || at - statics.start() < statics.bytes();
}

void Program::not_symmetric(const char* argument, const void* address, std::size_t bytes) const {
  const std::string variables =
      statics.bytes() != 0 ? fmt::format("in the program's variables, {} bytes at {:#x}",
                                         statics.bytes(), statics.start())
                           : fmt::format("(global variables of this program are not symmetric: {})",
                                         statics.obstacle());
  fail(Code::invalid_argument,
       "SHOAL-N834: {} is {} with {} bytes; allowed: in the symmetric heap, {} bytes at {:#x}, or "
       "{}",
       argument, address, bytes, heap_bytes_, heap_start_, variables);
}

void Program::fence(shmem_ctx_t handle) const {
  if (handle == SHMEM_CTX_DEFAULT || !context(handle).records) return world.fence();
  std::atomic_thread_fence(std::memory_order_release);
  const shoal_shmem_ctx& found = context(handle);
  for (const std::size_t i : found.used) {
    const Pe pe = found.peers[i].pe;
    routes_[static_cast<std::size_t>(pe)]->fence(pe);
  }
}

void Program::quiet(shmem_ctx_t handle) const {
  if (handle == SHMEM_CTX_DEFAULT || !context(handle).records) return world.quiet();
  shoal_shmem_ctx& found = context(handle);
  if (found.fetches) {
    world.quiet();
    found.fetches = false;
  } else {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    wait_for_used(found);
  }
  for (const std::size_t i : found.used) found.peers[i].in_use = false;
  found.used.clear();
}

void Program::wait_for_used(const shoal_shmem_ctx& context) const {
  if (context.used.empty()) return;
  std::vector<transport::PolledOperations::Point> points(context.used.size());
  const auto complete = [&] {
    bool done = true;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const Pe pe = context.peers[context.used[i]].pe;
      if (!routes_[static_cast<std::size_t>(pe)]->polled().reached(pe, points[i])) done = false;
    }
    return done;
  };
  const auto outcome = core.waits().poll_elsewhere(complete, core.waits().deadline());
  if (outcome != detail::WaitOutcome::ready)
    core.waits().throw_failed(outcome, "quiet",
                              fmt::format("operations on {} PEs are in flight", points.size()));
}

shoal_shmem_team& Program::team(shmem_team_t handle) {
  if (handle == SHMEM_TEAM_WORLD) return all;
  if (handle == SHMEM_TEAM_SHARED) return shared;
  require(handle != SHMEM_TEAM_INVALID, Code::invalid_argument,
          "SHOAL-N835: team is SHMEM_TEAM_INVALID; allowed: a team that this PE is in");
  shoal_shmem_team* const found = teams.find(handle);
  if (found == nullptr) teams.refuse("team", "team", handle);
  return *found;
}

void Program::bad_context(shmem_ctx_t handle) const {
  require(handle != SHMEM_CTX_INVALID, Code::invalid_argument,
          "SHOAL-N826: ctx is SHMEM_CTX_INVALID; allowed: a context that exists");
  contexts.refuse("ctx", "context", handle);
}

void initialize() {
  require(forked_from < 0, Code::closed, "SHOAL-N841: {}", why_not_running());
  const std::lock_guard lock(starting);
  if (initializations++ > 0) return;
  running = start();
  static const int registered =
      on_exit(at_exit, nullptr) + pthread_atfork(nullptr, nullptr, in_child);
  (void)registered;
}

void finalize() {
  require(forked_from < 0, Code::closed, "SHOAL-N841: {}", why_not_running());
  const std::lock_guard lock(starting);
  require(initializations > 0, Code::closed, "SHOAL-N841: {}", why_not_running());
  if (--initializations > 0) return;
  end_world();
}

bool is_initialized() noexcept {
  return running.load(std::memory_order_acquire) != nullptr;
}

Program& program() {
  Program* const found = running.load(std::memory_order_acquire);
  if (found == nullptr) fail(Code::closed, "SHOAL-N841: {}", why_not_running());
  return *found;
}

void end_program(const char* call, const std::exception& error) noexcept {
  Program* const found = running.load();
  if (found == nullptr) end_process(call, error, nullptr);
  const auto announced = [&] { return found->exit_watch.announced(); };
  end_process(call, error, &found->core, announced);
}

}  // namespace shoal::shmem
