// SPDX-License-Identifier: Apache-2.0
// hosts.hpp: shoal-run --hosts: composes the command of an installed launcher for PEs on several
// hosts. All functions are pure except Launcher::find.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::run {

struct HostSlots {
  std::string host;
  int slots = 1;
};

/// "a:2,b" means two PEs on a and one on b. IPv6 addresses are in brackets. Throws
/// Error{invalid_argument} stating the form.
std::vector<HostSlots> parse_hosts(std::string_view text);

/// Sum of the slots.
int count_pes(const std::vector<HostSlots>& hosts);

/// True if one of the hosts is neither localhost nor `this_host`.
bool any_remote(const std::vector<HostSlots>& hosts, std::string_view this_host);

/// An installed launcher.
struct Launcher {
  enum class Kind { open_mpi, hydra, srun };
  std::string program;  ///< as requested, or found in PATH
  Kind kind = Kind::open_mpi;

  /// `asked` is a program, such as mpirun, srun or mpiexec.hydra, or "automatic": srun inside a
  /// Slurm job, else mpirun, else srun. Runs "mpirun --version" to distinguish Open MPI from Hydra
  /// (MPICH, Intel MPI). Throws Error{unsupported} if none is installed or its kind is unknown.
  static Launcher find(const std::string& asked, bool in_slurm_job);
};

/// The kind of launcher that printed `text` for "PROGRAM --version". Throws Error{unsupported}.
Launcher::Kind kind_of_version(const std::string& program, std::string_view text);

struct HostsOptions {
  std::vector<HostSlots> hosts;
  /// Names of environment variables for the PEs. Values may be secret, so the command has none.
  std::vector<std::string> names;
  std::vector<std::string> launcher_args;
  bool label = true;
  std::vector<std::string> argv;  ///< the program and its arguments
};

/// The launcher's command line. PEs are numbered host by host, in the order given.
std::vector<std::string> compose(const Launcher& launcher, const HostsOptions& options);

/// The command, quoted for a shell.
std::string quoted(const std::vector<std::string>& argv);

}  // namespace shoal::run
