// SPDX-License-Identifier: Apache-2.0
// fake_ibverbs.hpp: what tests set and see of the fake libibverbs among the threads of one process.
// The functions are found with dlsym.
//
// Writes are placed in any order, as adaptive routing permits, until an atomic after them on the
// same queue pair waits for them. Quotas, keys and queues that overflow are refused as by a device.
// It is smaller and more adverse than the emulated NIC (emulator/), which speaks the real formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shoal::test {

struct FakeVerbsOptions {
  unsigned seed = 1;
  int devices = 1;
  bool active = true;       ///< ports
  bool connections = true;  ///< reliable ones, which devices of EFA have not
  bool atomics = true;
  bool ethernet = false;  ///< RoCE ports; GID 3 is a RoCE v2 one with an IPv4 address
  int max_qp = 1000;
  int max_qp_wr = 4096;
  int max_cqe = 100'000;
  int max_atomics = 4;
  int create_limit = 1000;            ///< queue pairs that really fit
  int inline_limit = 256;             ///< queue pairs that ask for more cannot be created
  int refused_state = -1;             ///< enum ibv_qp_state that queue pairs cannot change to
  int event = -1;                     ///< enum ibv_event_type of a queue pair, once a device
  std::size_t event_after = 0;        ///< requests until then
  int event_port = 0;                 ///< not 0: the event is of this port, not of a queue pair
  int most_reads_and_atomics = 0;     ///< of all queue pairs; 0: not reported
  int fail_opcode = -1;               ///< enum ibv_wr_opcode whose requests end with an error
  std::size_t fail_after = SIZE_MAX;  ///< requests until every further one exceeds its retries
};

struct FakeVerbsCounts {
  std::vector<std::uint32_t> peers;    ///< of each queue pair created: the number it connected to
  std::vector<std::uint32_t> numbers;  ///< of each queue pair, in order of creation
  std::size_t requests = 0;
  std::size_t completions = 0;
  std::size_t doorbells = 0;
  std::size_t most_in_queue = 0;  ///< requests of one send queue
  std::size_t refused = 0;        ///< requests that a full queue did not take
  std::size_t overruns = 0;       ///< completions that a full completion queue lost
  std::size_t reordered = 0;      ///< pieces placed before an older piece of their queue pair
  std::size_t receives = 0;       ///< room in receive queues that was asked for
  std::size_t objects_left = 0;   ///< not destroyed
};

using FakeVerbsReset = void (*)(const FakeVerbsOptions&);
using FakeVerbsCount = FakeVerbsCounts (*)();
/// While it is stalled, the device executes no request.
using FakeVerbsStall = void (*)(bool stalled);

}  // namespace shoal::test
