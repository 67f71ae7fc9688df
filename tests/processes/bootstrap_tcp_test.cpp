// SPDX-License-Identifier: Apache-2.0
// The TCP bootstrap among processes: unique id and session id, IPv4 and IPv6, and the end of the
// process with the root.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/tcp/socket.hpp"
#include "support/process/process.hpp"

namespace shoal {
namespace {

using Bytes = std::vector<std::byte>;

SHOAL_PE_BODY(gather) {
  const auto bootstrap = make_bootstrap(pe.settings);
  ASSERT_EQ(bootstrap->n_pes(), pe.settings.n_pes);
  ASSERT_EQ(bootstrap->pe(), pe.settings.pe);
  for (int round = 0; round < 20; ++round) {
    const Bytes mine(static_cast<std::size_t>(100 * bootstrap->pe() + round),
                     static_cast<std::byte>(bootstrap->pe()));
    const auto all = bootstrap->all_gather(mine, "gather");
    for (std::int32_t from = 0; from < bootstrap->n_pes(); ++from)
      ASSERT_EQ(all[static_cast<std::size_t>(from)],
                Bytes(static_cast<std::size_t>(100 * from + round), static_cast<std::byte>(from)));
    bootstrap->barrier("step");
  }
  bootstrap->close();
}

TEST(TcpBootstrap, AllCounts) {
  for (const int n : {1, 2, 5, 8}) test::expect_success(test::run_pes(n, "gather"));
}

TEST(TcpBootstrap, Ipv6) {
  auto group = test::start_pes(3, "gather", {.env = {{"SHOAL_SOCKET_FAMILY", "AF_INET6"}}});
  EXPECT_TRUE(group.id.host.starts_with("[")) << group.id.host << " is no IPv6 address";
  test::expect_success(test::wait_all(group.pes));
}

/// A port that was free a moment ago.
int free_port(int family) {
  bootstrap::Address any;
  any.storage.ss_family = static_cast<sa_family_t>(family);
  any.size = family == AF_INET ? 16 : 28;
  return bootstrap::local_address(bootstrap::listen_at(any).get()).port();
}

SHOAL_PE_BODY(session) {
  Settings settings = pe.settings;
  settings.unique_id.clear();
  shoal_pe_body_gather({settings, pe.argument});
}

TEST(TcpBootstrap, SessionIdWithTheRootOnAnyPe) {
  for (const char* root : {"0", "2"}) {
    const std::string id = "127.0.0.1:" + std::to_string(free_port(AF_INET));
    test::expect_success(test::run_pes(3, "session",
                                       {.env = {{"SHOAL_SESSION_ID", id},
                                                {"SHOAL_SESSION_ROOT", root},
                                                {"SHOAL_SESSION_SECRET", "s3cret"}}}));
  }
}

TEST(TcpBootstrap, SessionIdOverIpv6) {
  const std::string id = "[::1]:" + std::to_string(free_port(AF_INET6));
  test::expect_success(test::run_pes(
      3, "session", {.env = {{"SHOAL_SESSION_ID", id}, {"SHOAL_SESSION_SECRET", "s3cret"}}}));
}

TEST(TcpBootstrap, SessionIdByHostName) {
  const std::string id = "localhost:" + std::to_string(free_port(AF_INET));
  test::expect_success(test::run_pes(
      2, "session", {.env = {{"SHOAL_SESSION_ID", id}, {"SHOAL_SESSION_SECRET", "s3cret"}}}));
}

/// The root runs in PE 1, which is the first PE to leave. The other PEs must not report that as a
/// failure.
SHOAL_PE_BODY(root_leaves_first) {
  Settings settings = pe.settings;
  settings.unique_id.clear();
  const auto bootstrap = make_bootstrap(settings);
  bootstrap->barrier("end");
  // The root serves the others until they have closed, at most for two seconds.
  if (bootstrap->pe() != 1) usleep(100'000);
  EXPECT_EQ(bootstrap->aborted().value_or("nothing"), "nothing");
  bootstrap->close();
}

TEST(TcpBootstrap, ProcessWithTheRootMayLeaveFirst) {
  const std::string id = "127.0.0.1:" + std::to_string(free_port(AF_INET));
  test::expect_success(test::run_pes(
      3, "root_leaves_first", {.env = {{"SHOAL_SESSION_ID", id}, {"SHOAL_SESSION_ROOT", "1"}}}));
}

}  // namespace
}  // namespace shoal
