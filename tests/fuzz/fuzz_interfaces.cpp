// SPDX-License-Identifier: Apache-2.0
// The grammar of SHOAL_SOCKET_INTERFACE: an accepted pattern has no empty names, and the chosen
// interface exists, is up and is of the family.
#include <netinet/in.h>

#include "bootstrap/tcp/interfaces.hpp"
#include "fuzz.hpp"

using namespace shoal::bootstrap;
using shoal::fuzz::check;

namespace {

Interface make(const char* name, int family, unsigned char last, bool up = true) {
  Interface interface;
  interface.name = name;
  interface.up = up;
  interface.loopback = interface.name == "lo";
  interface.address.storage.ss_family = static_cast<sa_family_t>(family);
  interface.address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  reinterpret_cast<unsigned char*>(&interface.address.storage)[7] = last;
  return interface;
}

const std::vector<Interface> kMachine = {
    make("lo", AF_INET, 1),    make("lo", AF_INET6, 1),     make("eth0", AF_INET, 2),
    make("eth1", AF_INET6, 3), make("docker0", AF_INET, 4), make("ib0", AF_INET, 5, false)};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view pattern = shoal::fuzz::text_of(data, size);
  shoal::fuzz::allow_error([&] {
    for (const auto& item : parse_interface_pattern(pattern).items)
      check(!item.name.empty(), "no accepted name is empty");
  });
  for (const char* family : {"any", "AF_INET", "AF_INET6"})
    shoal::fuzz::allow_error([&] {
      const Interface& chosen = choose_interface(kMachine, pattern, family);
      check(chosen.up, "the chosen interface is up");
      check(std::string_view(family) != "AF_INET" || chosen.address.family() == AF_INET,
            "the family is the one asked for");
      check(std::string_view(family) != "AF_INET6" || chosen.address.family() == AF_INET6,
            "the family is the one asked for");
    });
  return 0;
}
