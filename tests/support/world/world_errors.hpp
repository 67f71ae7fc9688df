// SPDX-License-Identifier: Apache-2.0
// world_errors.hpp: the errors of PEs that are threads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "shoal/world.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {

/// Runs `body` as PE i of n, each on its own thread. Returns the error of each PE; empty: none.
inline std::vector<std::string> errors_of(
    Pe n_pes, const Settings& common,
    const std::function<void(Pe, std::shared_ptr<Bootstrap>)>& body) {
  auto bootstraps = thread_bootstraps(n_pes, common);
  std::vector<std::string> errors(static_cast<std::size_t>(n_pes));
  std::vector<std::thread> threads;
  for (Pe pe = 0; pe < n_pes; ++pe)
    threads.emplace_back([&, pe,
                          bootstrap = std::shared_ptr<Bootstrap>(
                              std::move(bootstraps[static_cast<std::size_t>(pe)]))] {
      try {
        body(pe, bootstrap);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(pe)] =
            std::string(name_of(error.code())) + ": " + error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// Ids of messages in `text` are ignored.
inline bool contains(const std::string& text, std::string_view part) {
  return without_ids(text).find(part) != std::string::npos;
}

}  // namespace shoal::test
