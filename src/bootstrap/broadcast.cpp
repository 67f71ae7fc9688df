// SPDX-License-Identifier: Apache-2.0
// broadcast.cpp: worlds whose PEs can already broadcast a short text from PE 0.

#include "base/check.hpp"
#include "bootstrap/round.hpp"
#include "shoal/bootstrap.hpp"

namespace shoal {
namespace {

constexpr std::string_view kFailed = "failed:";
constexpr std::size_t kMaxText = 255;

/// Keeps letters, digits and . : [ ] _ -, and replaces any other byte by %xx. Truncates the result
/// to `most` characters.
std::string escape(std::string_view text, std::size_t most) {
  std::string out;
  for (const char c : text) {
    const bool keep = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      std::string_view(".:[]_-").find(c) != std::string_view::npos;
    const std::string next =
        keep ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
    if (out.size() + next.size() > most) break;
    out += next;
  }
  return out;
}

std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      out += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

std::unique_ptr<Bootstrap> connect_by_broadcast(
    std::int32_t pe, std::int32_t n_pes,
    const std::function<std::string(const std::string&)>& broadcast, const Settings& settings) {
  std::optional<UniqueId> id;  // of PE 0; once a PE has joined, its root no longer needs the handle
  std::optional<Error> failure;
  std::string mine;
  if (pe == 0) {
    try {
      id = UniqueId::create(settings);
      mine = id->to_string();
    } catch (const Error& error) {  // broadcast the reason, so that the other PEs do not wait
      failure = error;
      mine = std::string(kFailed) + escape(reason_of(error), kMaxText - kFailed.size());
    }
  }
  const std::string text = broadcast(mine);
  if (failure) throw *failure;
  require(!text.starts_with(kFailed), Code::peer_failed,
          "SHOAL-N110: PE 0 could not start the bootstrap: {}",
          unescape(std::string_view(text).substr(kFailed.size())));
  return connect_unique_id(id ? *id : UniqueId::parse(text), pe, n_pes, settings);
}

}  // namespace shoal
