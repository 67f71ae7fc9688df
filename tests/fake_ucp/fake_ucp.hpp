// SPDX-License-Identifier: Apache-2.0
// fake_ucp.hpp: UCP among the threads of one process, as adverse as its documentation allows. Tests
// link the sources of transport/ucx with it in place of the library.
//
// Active messages overtake each other. RMA stays unapplied long after its request has completed,
// until a flush must complete. Local buffers are read at the last moment. TCP, which the other
// tests use, does none of this.
#pragma once

#include <cstddef>

namespace shoal::test {

struct FakeUcpCounts {
  std::size_t overtaken = 0;       ///< active messages that were delivered before an older one
  std::size_t most_transfers = 0;  ///< requests of puts and gets of one endpoint under way at once
  std::size_t most_messages = 0;   ///< active messages of one endpoint not yet delivered at once
  std::size_t most_flushes = 0;    ///< the same for flushes
  std::size_t requests_left = 0;   ///< requests that were not freed
};

/// The calls that fail.
enum class FakeUcpFault { none, connect, key, message, put, get, flush };

/// From now on, progress finds an inconsistency in UCX.
void break_fake_ucp();

/// Since the last reset.
FakeUcpCounts fake_ucp_counts();
void reset_fake_ucp(unsigned seed, FakeUcpFault fault = FakeUcpFault::none);

}  // namespace shoal::test
