// SPDX-License-Identifier: Apache-2.0
// reductions.hpp: reductions and scans of any element type over a team.
#pragma once

#include <complex>
#include <cstddef>

#include "collective/reduce.hpp"
#include "shmem/program.hpp"

namespace shoal::shmem {

/// The reducer of `op` for T. Only types of one size and alignment share a number, so that PEs that
/// disagree about the size find out.
template <typename T>
collective::Reducer reducer_of(ReduceOp op) {
  return {
      collective::kernel_for<T>(op),       sizeof(T), alignof(T), 0, static_cast<std::uint32_t>(op),
      collective::element_type_on_gpu<T>()};
}

/// dest[i] = the reduction of source[i] over the PEs of the team.
void reduce(Program& program, const Team& team, const collective::Reducer& reducer, void* dest,
            const void* source, std::size_t count);

enum class Scan : bool { exclusive, inclusive };
/// dest[i] = the sum of source[i] over the PEs up to this one. Exclusive: without it; zero on PE 0.
void scan(Program& program, const Team& team, const collective::Reducer& reducer, Scan kind,
          void* dest, const void* source, std::size_t count);

}  // namespace shoal::shmem
