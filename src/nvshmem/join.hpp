// SPDX-License-Identifier: Apache-2.0
// join.hpp: how the PEs of a program find each other (nvshmemx_init_attr).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "nvshmem_host.h"
#include "shoal/bootstrap.hpp"

namespace shoal::nvshmem {

/// An id in the program's memory. Throws Error{invalid_argument} where it holds none.
UniqueId id_of(const nvshmemx_uniqueid_t& id);
/// Makes an id, whose root lives as long as the process.
nvshmemx_uniqueid_t make_id(const Settings& settings);

/// The arguments of nvshmemx_init_attr as values, which outlive the program's objects.
struct JoinArguments {
  unsigned flags = 0;
  std::uint64_t mpi_comm = 0;  ///< the handle of the communicator
  std::string id;              ///< text of the unique id
  int myrank = 0;
  int nranks = 0;
};
/// Throws Error{invalid_argument} where the flags need attributes that are missing.
JoinArguments arguments_of(unsigned flags, const nvshmemx_init_attr_t* attributes);
/// Throws Error{invalid_argument} naming the first of `further` that differs from those of the open
/// world.
void check_same(const JoinArguments& open, const JoinArguments& further);

/// Joins as the flags of nvshmemx_init_attr say. Collective. Throws as connect_unique_id, and
/// Error{invalid_argument} for arguments of the program, Error{unsupported} where this process has
/// no MPI or OpenSHMEM.
std::unique_ptr<Bootstrap> join(unsigned flags, const nvshmemx_init_attr_t* attributes,
                                const Settings& settings);

}  // namespace shoal::nvshmem
