// SPDX-License-Identifier: Apache-2.0
// join.hpp: how the PEs of a program find each other (nvshmemx_init_attr).
#pragma once

#include <memory>

#include "nvshmem_host.h"
#include "shoal/bootstrap.hpp"

namespace shoal::nvshmem {

/// An id in the program's memory. Throws Error{invalid_argument} where it holds none.
UniqueId id_of(const nvshmemx_uniqueid_t& id);
/// Makes an id, whose root lives as long as the process.
nvshmemx_uniqueid_t make_id(const Settings& settings);

/// Joins as the flags of nvshmemx_init_attr say. Collective. Throws as connect_unique_id, and
/// Error{invalid_argument} for arguments of the program, Error{unsupported} where this process has
/// no MPI or OpenSHMEM.
std::unique_ptr<Bootstrap> join(unsigned flags, const nvshmemx_init_attr_t* attributes,
                                const Settings& settings);

}  // namespace shoal::nvshmem
