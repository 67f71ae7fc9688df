// SPDX-License-Identifier: Apache-2.0
// The text form of a unique id: an accepted id prints as a text that parses to the same id.
#include "bootstrap/tcp/socket.hpp"
#include "fuzz.hpp"
#include "shoal/bootstrap.hpp"

using namespace shoal;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::allow_error([&] {
    const UniqueId id = UniqueId::parse(text);
    fuzz::check(id.key.size() == 32 && id.port >= 1 && id.port <= 65535 && !id.host.empty(),
                "an accepted id is complete");
    const UniqueId again = UniqueId::parse(id.to_string());
    fuzz::check(again.host == id.host && again.port == id.port && again.key == id.key,
                "an id is read back the same");
  });
  if (const auto where = bootstrap::parse_host_port(text)) {
    const auto again =
        bootstrap::parse_host_port(bootstrap::format_host_port(where->host, where->port));
    fuzz::check(again && again->host == where->host && again->port == where->port,
                "an address is read back the same");
  }
  return 0;
}
