// SPDX-License-Identifier: Apache-2.0
// hosts.hpp: shoal-run --hosts: the command of a launcher that exists, for PEs on several hosts.
// Pure, but for Launcher::find.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::run {

struct HostSlots {
  std::string host;
  int slots = 1;
};

/// "a:2,b" is two PEs on a and one on b; IPv6 addresses are in brackets. Throws
/// Error{invalid_argument} stating the form.
std::vector<HostSlots> parse_hosts(std::string_view text);

/// Sum of the slots.
int count_pes(const std::vector<HostSlots>& hosts);

/// Whether another host is among them: one that is neither localhost nor `this_host`.
bool any_remote(const std::vector<HostSlots>& hosts, std::string_view this_host);

/// A launcher of this machine.
struct Launcher {
  enum class Kind { open_mpi, hydra, srun };
  std::string program;  ///< as asked for, or found in PATH
  Kind kind = Kind::open_mpi;

  /// `asked` is a program, such as mpirun, srun, mpiexec.hydra, or "automatic": srun inside a Slurm
  /// job, else mpirun, else srun. Runs "mpirun --version" to tell Open MPI from Hydra (MPICH, Intel
  /// MPI). Throws Error{unsupported} when there is none, or of no known kind.
  static Launcher find(const std::string& asked, bool in_slurm_job);
};

/// The kind that the output of "PROGRAM --version" tells, from its text. Throws Error{unsupported}.
Launcher::Kind kind_of_version(const std::string& program, std::string_view text);

struct HostsOptions {
  std::vector<HostSlots> hosts;
  std::vector<std::string>
      names;  ///< environment variables for the PEs, without their values, which may be secret
  std::vector<std::string> launcher_args;
  bool label = true;
  std::vector<std::string> argv;  ///< the program and its arguments
};

/// The launcher's command line: PEs are numbered host by host, in the order given.
std::vector<std::string> compose(const Launcher& launcher, const HostsOptions& options);

/// A command as one could type it into a shell.
std::string quoted(const std::vector<std::string>& argv);

}  // namespace shoal::run
