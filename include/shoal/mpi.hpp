// SPDX-License-Identifier: Apache-2.0
// shoal/mpi.hpp: worlds over an MPI communicator. Header-only: it is compiled with the program and
// works with the MPI of the program; Shoal's library does not depend on any.
//
//   MPI_Init(&argc, &argv);
//   shoal::Settings settings = shoal::Settings::from_environment();
//   auto world = shoal::World::open({settings, shoal::connect_mpi(MPI_COMM_WORLD, settings)});
//
// PE i is rank i of the communicator. Communicators of different processes give worlds of different
// PEs, one after another or at the same time. MPI is used only during the call: Shoal neither
// initializes nor finalizes it and keeps no communicator or request. MPI may be finalized before
// the world is closed.
#pragma once

#include <shoal/config.hpp>

#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>

#include <shoal/bootstrap.hpp>
#include <shoal/error.hpp>

namespace shoal {

/// The control plane of a world over `communicator`, an intra-communicator. Collective over it;
/// thread rules are those of MPI_Ibcast.
///
/// Throws as connect_by_broadcast, and Error{timeout} when a rank does not come within
/// settings.bootstrap_timeout. MPI cannot cancel the broadcast then: the program should end.
[[nodiscard]] inline std::unique_ptr<Bootstrap> connect_mpi(MPI_Comm communicator,
                                                            const Settings& settings) {
  int initialized = 0, finalized = 0, inter = 0, rank = 0, size = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized == 0 || finalized != 0)
    throw Error(Code::invalid_argument,
                "connect_mpi: MPI is not initialized, or has been finalized: call MPI_Init first");
  if (communicator == MPI_COMM_NULL)
    throw Error(
        Code::invalid_argument,
        "connect_mpi: the communicator is MPI_COMM_NULL: this process does not belong to it");
  MPI_Comm_test_inter(communicator, &inter);
  if (inter != 0)
    throw Error(Code::invalid_argument,
                "connect_mpi: the communicator connects two groups; allowed: one of one group");
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &size);
  const auto broadcast = [&](const std::string& mine) {
    constexpr int kRoom = 256;  // bytes of a text, with its NUL
    auto text = std::make_unique<char[]>(kRoom);
    mine.copy(text.get(), kRoom - 1);
    const auto deadline = std::chrono::steady_clock::now() + settings.bootstrap_timeout;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibcast(text.get(), kRoom, MPI_CHAR, 0, communicator, &request);
    for (int done = 0; done == 0; usleep(20)) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done != 0 || std::chrono::steady_clock::now() < deadline) continue;
      static_cast<void>(text.release());  // MPI may still write there
      throw Error(Code::timeout,
                  "connect_mpi: rank " + std::to_string(rank) + " of " + std::to_string(size) +
                      " waited " + std::to_string(settings.bootstrap_timeout.count()) +
                      " ms for the others to call. Setting: SHOAL_BOOTSTRAP_TIMEOUT_MS");
    }
    return std::string(text.get());
  };
  return connect_by_broadcast(rank, size, broadcast, settings);
}

}  // namespace shoal
