// SPDX-License-Identifier: Apache-2.0
// unique_id.cpp: unique ids, their text form, and the worlds that they name.

#include <algorithm>
#include <charconv>

#include "base/check.hpp"
#include "bootstrap/tcp/interfaces.hpp"
#include "bootstrap/tcp/root.hpp"
#include "bootstrap/tcp/tcp_bootstrap.hpp"
#include "shoal/bootstrap.hpp"

namespace shoal {
namespace {

constexpr std::string_view kPrefix = "shoal1:";
constexpr std::string_view kForm =
    "shoal1:<host>:<port>:<64 hexadecimal digits>, an IPv6 host in brackets";

bootstrap::Key key_of(const UniqueId& id) {
  bootstrap::Key key;
  require(id.key.size() == key.size(), Code::invalid_argument,
          "SHOAL-N157: the key of a unique id has {} bytes, got {}", key.size(), id.key.size());
  std::ranges::copy(id.key, key.begin());
  return key;
}

}  // namespace

UniqueId UniqueId::create(const Settings& settings) {
  const auto interfaces = bootstrap::list_interfaces();
  bootstrap::Fd listener = bootstrap::listen_at(
      bootstrap::choose_interface(interfaces, settings.socket_interface, settings.socket_family)
          .address);
  const bootstrap::Key key = bootstrap::random_nonce();
  auto root = bootstrap::start_root(std::move(listener), key, settings.bootstrap_timeout);
  UniqueId id;
  id.host =
      root.address.family() == AF_INET6 ? "[" + root.address.host() + "]" : root.address.host();
  id.port = root.address.port();
  id.key.assign(key.begin(), key.end());
  id.root_ = std::move(root.handle);
  return id;
}

std::string UniqueId::to_string() const {
  std::string text = fmt::format("{}{}:{}:", kPrefix, host, port);
  for (const std::byte byte : key) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

UniqueId UniqueId::parse(std::string_view text) {
  UniqueId id;
  const std::size_t colon = text.rfind(':');
  require(text.starts_with(kPrefix) && colon != std::string_view::npos && colon > kPrefix.size(),
          Code::invalid_argument, "SHOAL-N157: a unique id has the form {}", kForm);
  const auto where =
      bootstrap::parse_host_port(text.substr(kPrefix.size(), colon - kPrefix.size()));
  require(where.has_value(), Code::invalid_argument,
          "SHOAL-N157: the address in a unique id is not of the form {}", kForm);
  id.host = where->host.find(':') == std::string::npos ? where->host : "[" + where->host + "]";
  id.port = where->port;
  const std::string_view digits = text.substr(colon + 1);
  const bool hexadecimal =
      std::ranges::all_of(digits, [](unsigned char c) { return std::isxdigit(c) != 0; });
  require(digits.size() == 2 * sizeof(bootstrap::Key) && hexadecimal, Code::invalid_argument,
          "SHOAL-N157: the key in a unique id of {} characters is not of the form {}", text.size(),
          kForm);
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    unsigned value = 0;
    std::from_chars(digits.data() + i, digits.data() + i + 2, value, 16);
    id.key.push_back(static_cast<std::byte>(value));
  }
  return id;
}

std::unique_ptr<Bootstrap> connect_unique_id(const UniqueId& id, std::int32_t pe,
                                             std::int32_t n_pes, const Settings& settings) {
  const auto where = bootstrap::parse_host_port(fmt::format("{}:{}", id.host, id.port));
  require(where.has_value(), Code::invalid_argument,
          "SHOAL-N157: \"{}:{}\" is not the address of a unique id", id.host, id.port);
  bootstrap::RootAddress root{
      bootstrap::resolve(*where, "any", "the unique id"),
      bootstrap::format_host_port(where->host, where->port), false,
      "Its address and key come from the unique id; the process that created the id holds it, at "
      "the interface that it chose. Settings: SHOAL_UNIQUE_ID, SHOAL_SOCKET_INTERFACE"};
  return std::make_unique<bootstrap::TcpBootstrap>(root, key_of(id), pe, n_pes,
                                                   settings.bootstrap_timeout, nullptr);
}

}  // namespace shoal
