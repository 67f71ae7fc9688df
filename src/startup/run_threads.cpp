// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <mutex>
#include <thread>

#include "base/check.hpp"
#include "pe/agreement.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal {
namespace {

/// The exceptions of the PEs. Keeps the one that caused the others.
class Failures {
 public:
  void add(std::exception_ptr exception, int rank) {
    const std::lock_guard lock(mutex_);
    if (first_ != nullptr && rank_ <= rank) return;
    first_ = std::move(exception);
    rank_ = rank;
  }
  void rethrow() const {
    if (first_ != nullptr) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_;
  int rank_ = 0;
};

/// Higher ranks are more likely to be consequences of another PE's exception.
int rank_of(const Error& error) {
  if (error.code() == Code::peer_failed) return 2;
  return error.code() == Code::timeout ? 1 : 0;
}

void run_pe(const Settings& settings, std::shared_ptr<Bootstrap> bootstrap,
            const std::function<void(World&)>& body, Failures& failures) {
  World world;
  const auto failed = [&](const std::string& reason, int rank) {
    failures.add(std::current_exception(), rank);
    if (world.is_open()) {
      state_of(world).health().fail_world(reason);
      state_of(world).closers().close(detail::WorldEnd::failed);
    } else {
      bootstrap->abort(reason);
    }
  };
  try {
    world = World::open({settings, bootstrap});
    body(world);
    world.close();
  } catch (const Error& error) {
    failed(reason_of(error), rank_of(error));
  } catch (const std::exception& error) {
    failed(error.what(), 0);
  } catch (...) {
    failed("an exception that is no std::exception", 0);
  }
}

}  // namespace

void run_threads(Pe n_pes, const Settings& settings, const std::function<void(World&)>& body) {
  constexpr Pe kMostThreads = 512;  // their control memory grows with the square of the number
  require(n_pes >= 1 && n_pes <= kMostThreads, Code::invalid_argument,
          "SHOAL-N191: run_threads with {} PEs; allowed: 1 to {}", n_pes, kMostThreads);
  auto bootstraps = thread_bootstraps(n_pes, settings);
  Failures failures;
  std::vector<std::thread> threads;
  for (auto& bootstrap : bootstraps)
    threads.emplace_back([&, shared = std::shared_ptr<Bootstrap>(std::move(bootstrap))]() mutable {
      run_pe(settings, std::move(shared), body, failures);
    });
  for (std::thread& thread : threads) thread.join();
  failures.rethrow();
}

}  // namespace shoal
