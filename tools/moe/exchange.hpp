// SPDX-License-Identifier: Apache-2.0
// exchange.hpp: gathers figures and failures of all PEs over the bootstrap, which works before the
// world is open and with any heap.
#pragma once

#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shoal/bootstrap.hpp"
#include "shoal/heap.hpp"

namespace shoal::moe {

/// A failure that every PE knows; one of them reports it.
struct AgreedFailure : Error {
  using Error::Error;
};

class Peers {
 public:
  explicit Peers(Bootstrap& bootstrap) : bootstrap_(bootstrap) {}
  Pe me() const { return bootstrap_.pe(); }

  /// Returns the elements of all PEs, in PE order; a PE may pass fewer than others. Collective.
  template <typename T>
  std::vector<T> gather(std::span<const T> mine) const {
    std::vector<T> all;
    for (const std::vector<std::byte>& bytes :
         bootstrap_.all_gather(std::as_bytes(mine), "shoal-moe")) {
      const std::size_t first = all.size();
      all.resize(first + bytes.size() / sizeof(T));
      if (!bytes.empty()) std::memcpy(all.data() + first, bytes.data(), bytes.size());
    }
    return all;
  }

  /// Runs `step` on every PE. If it throws on any PE, all PEs throw AgreedFailure with the message
  /// of the lowest such PE. Collective.
  template <typename Step>
  void agree(Step step) const {
    std::string message;
    Code code = Code::invalid_argument;
    try {
      step();
    } catch (const Error& error) {
      code = error.code();
      message = error.what();
    } catch (const std::exception& error) {
      code = Code::system;
      message = error.what();
    }
    for (const std::vector<std::byte>& bytes :
         bootstrap_.all_gather(std::as_bytes(std::span(message)), "shoal-moe agreement")) {
      if (bytes.empty()) continue;
      const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      throw AgreedFailure(code, reason_of(text));
    }
  }

 private:
  Bootstrap& bootstrap_;
};

}  // namespace shoal::moe
