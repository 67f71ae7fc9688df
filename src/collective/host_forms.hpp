// SPDX-License-Identifier: Apache-2.0
// host_forms.hpp: collectives of the host over heaps in GPU memory. They run as the kernels of
// collectives on streams, on the PE's own stream, and the host waits for them.
#pragma once

#include <functional>

#include "collective/call.hpp"
#include "collective/launch.hpp"

namespace shoal::collective {

/// Call::agree for a team whose heaps are in GPU memory. Returns whether run_on_gpu can run the
/// collective, the same on all PEs: each has the kernels and reaches the heaps of all PEs, and
/// there are bytes to move. Otherwise the data are copied through host memory.
bool agree_on_gpu(Call& call, const Arguments& arguments);

/// Starts a kernel on the stream of this PE's GPU and waits for it, at most SHOAL_TIMEOUT_MS.
/// Throws Error{system} where it does not start, and the failure of a kernel of this world.
using StartKernel = std::function<const char*(const kernels::Launch&)>;
void run_on_gpu(const Call& call, const Team& team, const StartKernel& start);

/// The launchers, as a table that tests without a GPU replace.
struct KernelTable {
  const char* (*load)(const memory::Device& gpu);
  decltype(&kernels::broadcast) broadcast;
  decltype(&kernels::spread) spread;
  decltype(&kernels::reduce) reduce;
};
const KernelTable& kernel_table();
/// nullptr restores the kernels of the GPU. While no world is open.
void replace_kernel_table(const KernelTable* table);

}  // namespace shoal::collective
