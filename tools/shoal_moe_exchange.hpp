// shoal_moe_exchange.hpp: bringing figures and failures of all PEs together.
#pragma once

#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shoal/collective.hpp"
#include "shoal/world.hpp"

namespace shoal::moe {

/// The elements of all PEs, in order of PEs; every PE gives the same number. Collective.
template <typename T>
std::vector<T> gather(const World& world, std::span<const T> mine) {
  const auto pes = static_cast<std::size_t>(world.n_pes());
  if (mine.empty()) return {};
  auto source = world.heap().allocate<T>(mine.size());
  auto target = world.heap().allocate<T>(mine.size() * pes);
  std::memcpy(source.data(), mine.data(), mine.size_bytes());
  all_gather(world.team(), target.data(), source.data(), mine.size_bytes());
  return {target.data(), target.data() + target.size()};
}

/// A failure that every PE knows of: one of them reports it.
struct AgreedFailure : Error {
  using Error::Error;
};

/// Runs `step` on every PE. When it throws on some of them, all throw AgreedFailure with the message of the first of
/// those. Collective.
template <typename Step>
void agree(const World& world, Step step) {
  constexpr std::size_t kMaxMessage = 2048;
  std::vector<char> message(kMaxMessage, '\0');
  Code code = Code::invalid_argument;
  try {
    step();
  } catch (const Error& error) {
    code = error.code();
    std::strncpy(message.data(), error.what(), kMaxMessage - 1);
  } catch (const std::exception& error) {
    code = Code::system;
    std::strncpy(message.data(), error.what(), kMaxMessage - 1);
  }
  const std::vector<char> all = gather<char>(world, message);
  for (std::size_t first = 0; first < all.size(); first += kMaxMessage) {
    std::string text(&all[first]);
    if (text.empty()) continue;
    if (text.starts_with("shoal: ")) text.erase(0, std::strlen("shoal: "));
    throw AgreedFailure(code, text);
  }
}

}  // namespace shoal::moe
