// SPDX-License-Identifier: Apache-2.0
// session.cpp: worlds named by an address and a secret that all PEs have, in place of a unique id.

#include <algorithm>

#include "base/check.hpp"
#include "base/log.hpp"
#include "bootstrap/tcp/root.hpp"
#include "bootstrap/tcp/tcp_bootstrap.hpp"
#include "shoal/bootstrap.hpp"

namespace shoal {
namespace {

/// Listens at the first address that belongs to this machine.
bootstrap::Fd listen_at_one(const std::vector<bootstrap::Address>& addresses,
                            const std::string& session) {
  std::string reasons;
  for (const auto& address : addresses) {
    try {
      return bootstrap::listen_at(address);
    } catch (const Error& error) {
      reasons += "; " + reason_of(error);
    }
  }
  fail(Code::system,
       "SHOAL-N148: this PE is to listen at SHOAL_SESSION_ID {} and cannot{}. Settings: "
       "SHOAL_SESSION_ID, SHOAL_SESSION_ROOT",
       session, reasons);
}

}  // namespace

std::unique_ptr<Bootstrap> connect_session(std::int32_t pe, std::int32_t n_pes,
                                           const Settings& settings) {
  const auto where = bootstrap::parse_host_port(settings.session_id);
  require(where.has_value(), Code::invalid_argument,
          "SHOAL-N149: SHOAL_SESSION_ID is \"{}\"; allowed: host:port or [ipv6]:port",
          settings.session_id);
  require(settings.session_root < n_pes, Code::invalid_argument,
          "SHOAL-N149: SHOAL_SESSION_ROOT is {}; allowed: 0 to {}", settings.session_root,
          n_pes - 1);
  const bootstrap::Key key = bootstrap::key_from_text(settings.session_id, settings.session_secret);
  bootstrap::RootAddress address{
      bootstrap::resolve(*where, settings.socket_family, "SHOAL_SESSION_ID"), settings.session_id,
      true,
      fmt::format(
          "PE {} holds it. Settings: SHOAL_SESSION_ID, SHOAL_SESSION_ROOT, SHOAL_SESSION_SECRET",
          settings.session_root)};
  std::shared_ptr<void> handle;
  if (pe == settings.session_root) {
    if (settings.session_secret.empty())
      log::info("SHOAL_SESSION_SECRET is not set: whoever reaches {} can join this world",
                settings.session_id);
    auto root = bootstrap::start_root(listen_at_one(address.candidates, settings.session_id), key,
                                      settings.bootstrap_timeout);
    address.candidates = {root.address};
    handle = std::move(root.handle);
  }
  return std::make_unique<bootstrap::TcpBootstrap>(address, key, pe, n_pes,
                                                   settings.bootstrap_timeout, std::move(handle));
}

}  // namespace shoal
