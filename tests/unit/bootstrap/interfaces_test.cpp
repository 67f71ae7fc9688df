// SPDX-License-Identifier: Apache-2.0
// The choice of the root's network interface, by name and by address family.
// @traits one_thread
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include "bootstrap/tcp/interfaces.hpp"
#include "shoal/error.hpp"
#include "support/expect_error.hpp"

namespace shoal::bootstrap {
namespace {

Interface make(const std::string& name, const std::string& address, bool up = true) {
  Interface interface;
  interface.name = name;
  interface.up = up;
  interface.loopback = name == "lo";
  if (auto& v6 = reinterpret_cast<sockaddr_in6&>(interface.address.storage);
      inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    interface.address.size = sizeof(sockaddr_in6);
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(interface.address.storage);
    v4 = {};
    v4.sin_family = AF_INET;
    inet_pton(AF_INET, address.c_str(), &v4.sin_addr);
    interface.address.size = sizeof(sockaddr_in);
  }
  return interface;
}

const std::vector<Interface> kMachine = {
    make("lo", "127.0.0.1"),   make("docker0", "172.17.0.1"), make("eth9", "10.9.0.1", false),
    make("eth0", "fe80::1"),   make("eth0", "fd00::1"),       make("eth0", "10.0.0.1"),
    make("eth01", "10.1.0.1"), make("ib0", "10.2.0.1"),       make("ib0", "fe80::2"),
    make("lo", "::1"),         make("ll0", "fe80::3"),
};

std::string choose(std::string_view pattern, std::string_view family = "any") {
  return choose_interface(kMachine, pattern, family).address.host();
}

std::string error_of(std::string_view pattern, std::string_view family, Code code) {
  try {
    return choose(pattern, family) + " was chosen";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
}

TEST(BootstrapInterfaces, NetworksBeforeBridgesBeforeLoopback) {
  EXPECT_EQ(choose(""), "10.0.0.1");
  EXPECT_EQ(choose("^eth,ib"), "172.17.0.1");
  EXPECT_EQ(choose("^eth,ib,docker"), "127.0.0.1");
}

TEST(BootstrapInterfaces, PrefixExactAndOrder) {
  EXPECT_EQ(choose("eth"), "10.0.0.1");
  EXPECT_EQ(choose("=eth01"), "10.1.0.1");
  EXPECT_EQ(choose("=eth0"), "10.0.0.1");
  EXPECT_EQ(choose("ib,eth"), "10.2.0.1") << "the list's order decides";
  EXPECT_EQ(choose("nosuch, eth01"), "10.1.0.1");
  EXPECT_EQ(choose("^=eth0"), "10.1.0.1");
  EXPECT_EQ(choose("lo"), "127.0.0.1");
}

TEST(BootstrapInterfaces, Family) {
  EXPECT_EQ(choose("", "AF_INET6"), "fd00::1");
  EXPECT_EQ(choose("lo", "AF_INET6"), "::1");
  EXPECT_EQ(choose("^eth", "AF_INET"), "10.2.0.1");
}

TEST(BootstrapInterfaces, LinkLocalOnlyWhenListed) {
  EXPECT_EQ(choose("ll0"), "fe80::3");
  EXPECT_EQ(choose("ib0", "AF_INET6"), "fe80::2");
  EXPECT_EQ(choose("^eth", "AF_INET6"), "::1");
}

TEST(BootstrapInterfaces, NothingFitsListsWhatExists) {
  test::expect_parts(error_of("wlan", "any", Code::unsupported),
                     {"\"wlan\"", "lo 127.0.0.1", "eth9 10.9.0.1 (down)", "ib0 10.2.0.1",
                      "SHOAL_SOCKET_INTERFACE"});
  error_of("eth9", "any", Code::unsupported);
  error_of("=eth", "any", Code::unsupported);
  error_of("docker", "AF_INET6", Code::unsupported);
}

TEST(BootstrapInterfaces, MalformedListsStateTheForm) {
  for (const char* pattern : {"eth0,", ",eth0", "eth0,,lo", "^", "=", "eth0,^lo", "==eth0", "^^lo"})
    test::expect_parts(error_of(pattern, "any", Code::invalid_argument), {"comma list"});
}

TEST(BootstrapInterfaces, ThisMachineHasLoopback) {
  EXPECT_TRUE(choose_interface(list_interfaces(), "lo", "any").loopback);
}

TEST(BootstrapInterfaces, HostAndPort) {
  EXPECT_EQ(parse_host_port("node-1:80")->host, "node-1");
  EXPECT_EQ(parse_host_port("[fd00::1]:65535")->host, "fd00::1");
  for (const char* bad : {"", "host", "host:", "host:0", "host:65536", "host:+1", "fd00::1:80",
                          "[fd00::1]", ":80", "[]:80", "a]:1", "[]]:80"})
    EXPECT_FALSE(parse_host_port(bad).has_value()) << bad;
}

}  // namespace
}  // namespace shoal::bootstrap
