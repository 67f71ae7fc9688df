// SPDX-License-Identifier: Apache-2.0
// launcher.hpp: detects the launcher of this process and the bootstraps that it offers. Pure
// functions of environment variables.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shoal/settings.hpp"

namespace shoal::bootstrap {

/// The launcher that a process's variables describe.
struct Launcher {
  std::string name;  ///< "Open MPI", "Slurm" and so on; empty: no launcher
  std::string why;  ///< the variables with their values; without a launcher, those that are missing
  std::int64_t pe = -1;
  std::int64_t n_pes = -1;              ///< -1: only the launcher's library knows
  std::vector<std::string> bootstraps;  ///< as in SHOAL_BOOTSTRAP, first choice first
};

/// Detects the innermost launcher: launchers may be nested (torchrun started by srun, mpirun in a
/// batch job). Throws Error{invalid_argument} naming a variable that is not a number or is out of
/// range.
Launcher detect_launcher(const std::map<std::string, std::string>& variables);

/// The bootstraps that make_bootstrap tries, and the PE index.
struct Choice {
  /// "single", "uid" (SHOAL_UNIQUE_ID), "session" (SHOAL_SESSION_ID), "torch", "plugin:FILE", or
  /// the name of one of Shoal's plug-ins. If a plug-in or its library is not installed, the next
  /// one is tried.
  std::vector<std::string> bootstraps;
  std::int64_t pe = -1;  ///< -1: the plug-in knows
  std::int64_t n_pes = -1;
  std::string why;
};

/// Throws Error{invalid_argument} if settings contradict each other, or if a setting that the
/// bootstrap needs is missing.
Choice choose_bootstrap(const Settings& settings);

/// A line such as "Slurm (PMI_FD, PMI_RANK=0, PMI_SIZE=3): bootstrap pmi, else pmi2". Never throws:
/// the line for contradicting settings is the error message.
std::string describe_launcher(const Settings& settings);

/// The host:port at which the PEs of a torchrun job meet for their `count`-th world. The host is
/// MASTER_ADDR. The port is between 10000 and 31999, below the ports of outgoing connections. It is
/// derived from MASTER_ADDR, MASTER_PORT (the port of torch's own store), the id of the run, the
/// number of restarts and `count`.
std::string torch_session(const std::map<std::string, std::string>& variables, std::uint64_t count);

}  // namespace shoal::bootstrap
