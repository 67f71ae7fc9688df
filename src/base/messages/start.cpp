// SPDX-License-Identifier: Apache-2.0
// start.cpp: messages of settings, bootstrap, start, topology, teams and records.
#include "base/messages/table.hpp"

namespace shoal::messages {

static constexpr Message kStartRows[] = {
    {100, "`shoal-info --explain` got a text that is the id of no message.",
     "Copy the id from the start of a message, such as SHOAL-N114."},
    {101, "The PEs run different versions of Shoal.",
     "Compare `shoal-info --build` on the hosts, and check `LD_LIBRARY_PATH`."},
    {102, "Options multiply to more bytes than an address can count.",
     "Use fewer ranks, experts or tokens, or shorter rows."},
    {103,
     "The program ended the wait (`set_interrupt_check`; Ctrl-C in Python). The state is that "
     "after a timeout.",
     "Close the world, or call again where the page of errors says that the object stays usable."},
    {104,
     "A transport or launcher module is missing: its library was not installed when Shoal was "
     "built, or `SHOAL_PLUGIN_DIR` names another folder.",
     "Install the development package (libfabric-dev, libucx-dev, libibverbs-dev, libpmix-dev) and"
     " build again, or correct `SHOAL_PLUGIN_DIR`."},
    {105,
     "A warning: the system refused the core for a thread of Shoal, often because a cgroup or the "
     "launcher allows other cores only.",
     "Correct `SHOAL_PROGRESS_CORE` or `SHOAL_PROXY_CORE`, or leave them unset."},
    {106, "A variable of the environment has a value that its setting does not take.",
     "Set a value of the stated form; `shoal-info --settings` shows every setting and where its "
     "value comes from."},
    {107,
     "The shape cannot be a tensor: too many dimensions, a negative one, or more bytes than can be"
     " counted.",
     "Pass 1 to 4 dimensions that are not negative."},
    {108, "The host or its cgroup has no memory left for a result outside the heap.",
     "Use fewer tokens or experts per rank, or raise the memory limit."},
    {110,
     "PE 0 could not offer the address at which the others meet; usually no network interface "
     "fits.",
     "Cure the reason that follows; `SHOAL_SOCKET_INTERFACE` chooses the interface."},
    {111,
     "A variable that a launcher sets has no valid number: it was copied into the environment of a"
     " program that the launcher did not start.",
     "Unset it, start the program with that launcher, or set `SHOAL_BOOTSTRAP` to single or uid."},
    {112, "Some of torchrun's four variables are missing.",
     "Start the program with `torchrun`, or set the four variables on all PEs."},
    {113, "The launcher started another number of PEs than `SHOAL_N_PES` states.",
     "Unset `SHOAL_N_PES`: the launcher sets the number."},
    {114,
     "The settings state a part of the job only: the number of this PE, the number of all, or the "
     "address at which they meet is missing.",
     "Start with `shoal-run -n N`; by hand set `SHOAL_PE`, `SHOAL_N_PES` and "
     "`SHOAL_SESSION_ID=host:port` on all PEs."},
    {115, "PEs are numbered from 0 to `SHOAL_N_PES` - 1.", "Correct `SHOAL_PE` or `SHOAL_N_PES`."},
    {116,
     "`SHOAL_BOOTSTRAP` names no way for PEs to find each other, or a plug-in without its file.",
     "Leave it at automatic, or set one of the stated values and, for plugin, "
     "`SHOAL_BOOTSTRAP_PLUGIN`."},
    {117, "Two sources number the PEs: the launcher, and the settings that `shoal-run` makes.",
     "Under `shoal-run` unset the named variable; elsewhere unset `SHOAL_PE` and `SHOAL_N_PES`."},
    {118, "A world of one PE was asked for, and other settings state more PEs.",
     "Unset `SHOAL_PE` and `SHOAL_N_PES`, or choose another `SHOAL_BOOTSTRAP`."},
    {119, "PE 0 could not offer an address for a second world of the same processes.",
     "Cure the reason that follows; too many open files (`ulimit -n`) is common."},
    {120,
     "The launcher's library that was loaded belongs to another launcher, such as an MPICH program"
     " under Open MPI's mpirun, so each process would be a world of its own.",
     "Use the launcher of the program's own MPI, or another `SHOAL_BOOTSTRAP`."},
    {121, "A launcher started the PEs, and no module that speaks its protocol could be loaded.",
     "Build Shoal with its library (libpmix-dev, libpmi2-0-dev, MPI), or pass a unique id."},
    {122,
     "A call of the launcher's library does not return, because a PE has not made it or the "
     "library hangs.",
     "Look for the missing PE and end this process. Raise `SHOAL_BOOTSTRAP_TIMEOUT_MS` for slow "
     "starts."},
    {123, "The plug-in cannot be loaded; the loader's reason follows.",
     "Check the file of `SHOAL_BOOTSTRAP` and its libraries with `ldd`."},
    {124, "The plug-in was built for another version of Shoal's table.",
     "Build it again with the installed `shoal/bootstrap_plugin.h`."},
    {125, "A call of the launcher's library for an earlier world never returned.",
     "End this process; find out which PE did not take part in the earlier start."},
    {126, "The plug-in or the variables of its launcher number this PE outside of the job.",
     "Start the program with the launcher to which the plug-in belongs."},
    {127, "The process was not started by a launcher with PMI-1.",
     "Start with Hydra's `mpiexec` or `srun --mpi=pmi2`, or set `SHOAL_BOOTSTRAP` to pmi2 or pmix."},
    {128, "`SHOAL_BOOTSTRAP=shmem` needs an initialized OpenSHMEM library in the process.",
     "Call `shmem_init` first in main, or set `SHOAL_BOOTSTRAP=pmix` under oshrun."},
    {129,
     "PEs did not arrive at a step of the start: they are slow in the step before (GPU context, "
     "registering memory), hang, or were stopped.",
     "Look at the output of the named PEs; raise `SHOAL_BOOTSTRAP_TIMEOUT_MS` when they are only "
     "slow."},
    {140, "The other process ended, or the network failed.",
     "Look at the message of the PE at the other end."},
    {141,
     "A message has no valid proof of the key: two jobs use one address, or the network changes "
     "data.",
     "Give each job its own unique id, or its own `SHOAL_SESSION_SECRET`."},
    {142,
     "No network interface of this host fits `SHOAL_SOCKET_INTERFACE` and `SHOAL_SOCKET_FAMILY`.",
     "Correct the two settings; the message lists the interfaces (`ip addr`)."},
    {143,
     "The PEs do not agree on their numbers, or two have the same one: two jobs meet at one "
     "address, or a script numbers them wrongly.",
     "Number the PEs from 0 and set the same `SHOAL_N_PES` on all."},
    {144,
     "The launcher started fewer processes than `SHOAL_N_PES`, a process ended before "
     "`World::open`, loading takes longer than the limit, or a firewall drops connections.",
     "Check the named PEs; set `SHOAL_SOCKET_INTERFACE` where hosts have several networks; raise "
     "`SHOAL_BOOTSTRAP_TIMEOUT_MS` for slow starts."},
    {145,
     "The system refused a socket operation: too many open files, or an address that is in use.",
     "Raise `ulimit -n`, or choose another port."},
    {146,
     "A warning: the process through which the PEs meet ended or could not send; the other PEs "
     "notice it themselves.",
     "Look at the first failure of the job; `ulimit -n` when connections cannot be accepted."},
    {147,
     "A warning: a port scanner, a PE of another job, or a PE with another key connected. The "
     "start continues without that connection.",
     "Nothing to do for strangers; for a PE of this job, set the same unique id or secret on all "
     "PEs."},
    {148, "The address of `SHOAL_SESSION_ID` is not one of this host, or the port is in use.",
     "Use another port, or set `SHOAL_SESSION_ROOT` to a PE on that host."},
    {149, "The session setting has another form than the one stated.",
     "Set it to a value of the stated form."},
    {150,
     "A process with the right key was refused: its PE or number of PEs does not fit, or the start"
     " had failed before. The reason follows.",
     "Cure the reason. Number the PEs from 0 and set the same `SHOAL_N_PES` on all."},
    {151, "The name does not resolve to an address of the chosen family.",
     "Use a numeric address, or set `SHOAL_SOCKET_FAMILY`."},
    {152,
     "This PE could not talk to the process at the address of the start: it does not run yet or "
     "any more, a firewall drops the connection, or another program listens there.",
     "Check that process and `SHOAL_SOCKET_INTERFACE`; keep strangers from the port, or raise "
     "`SHOAL_BOOTSTRAP_TIMEOUT_MS`."},
    {153,
     "The key of this PE differs from that of the process at the address: wrong unique id, session"
     " id or secret, or another world listens there.",
     "Pass the same id and secret to all PEs."},
    {154, "The start did not end in time, because some PEs have not started, hang or are slow.",
     "Look at the PEs that the message of the root names; raise `SHOAL_BOOTSTRAP_TIMEOUT_MS` for "
     "slow starts."},
    {155, "The PEs run different versions of Shoal, or another program sent the message.",
     "Install the same version on all hosts (`shoal-info --build`, `LD_LIBRARY_PATH`), and check "
     "the address."},
    {156, "The program used `Bootstrap` with too many bytes, or after `close`.",
     "Contribute at most the stated bytes, while the bootstrap is open."},
    {157, "The text of the unique id was cut off or changed on its way.",
     "Pass the whole text that `UniqueId::create` made, without quotes or line ends."},
    {158, "The number of threads is outside its range.", "Pass a number in the stated range."},
    {159, "The system gave no random numbers, which keys need; a sandbox may forbid `getrandom`.",
     "Allow `getrandom` in the sandbox."},
    {160, "The PEs run different versions of Shoal, or another program sent the message.",
     "Install the same version on all hosts (`shoal-info --build`, `LD_LIBRARY_PATH`), and check "
     "the address."},
    {165,
     "`SHOAL_TRANSPORT_INSIDE` or `SHOAL_TRANSPORT_BETWEEN` names an unknown transport, or one "
     "twice.",
     "Set it to automatic or to a list of the stated names."},
    {166,
     "No transport reaches from one PE to the other; the message has the reason of each: missing "
     "in this build, excluded by a setting, no common network, or containers with network "
     "namespaces of their own.",
     "Run `shoal-info --doctor` on both hosts and `shoal-info --connectivity` under the launcher; "
     "start containers with `--network=host`."},
    {167,
     "The transport of this pair does not do this operation on heaps in GPU memory, such as "
     "atomics between GPUs whose peer access has none.",
     "Allow staged in `SHOAL_TRANSPORT_INSIDE` or `SHOAL_TRANSPORT_BETWEEN`. `shoal-info "
     "--connectivity` shows each pair."},
    {168,
     "A warning: some PEs have an active RDMA port and others have none, so all pairs try ofi and "
     "ucx before verbs.",
     "Check the ports of the named PE's host (`ibstat`, `shoal-info --doctor`), or name verbs in "
     "`SHOAL_TRANSPORT_BETWEEN`."},
    {169,
     "The two PEs are on different hosts, or on different emulated nodes of one host, so loads and"
     " stores do not reach the heap.",
     "Use put and get, or unset `SHOAL_NODE_SIZE` to join the PEs of one host."},
    {170,
     "Another PE did not make this call (another order of collectives, an exception, a debugger), "
     "is busy (loading a model, compiling a kernel), or hangs. The message names it, what was "
     "expected and seen, and its last report.",
     "Look at the output of that PE; `shoal-info --live` shows who waits for whom. Raise "
     "`SHOAL_TIMEOUT_MS` on all PEs when its work only takes long."},
    {171,
     "PEs have different values of something that must be equal: the launcher passes a variable to"
     " some hosts only, or versions differ.",
     "Pass variables to all hosts (`mpirun -x`, `srun --export`); compare `shoal-info --settings` "
     "and `shoal-info --build`."},
    {172, "A handle was used after its world was closed, or in a process that the PE has forked.",
     "Make the call in the process of the PE before `World::close`, or open another world."},
    {173, "The process has no memory for a handler of forks.",
     "Free memory, or raise the memory limit."},
    {174,
     "A warning: a wait takes longer than `SHOAL_WARN_AFTER_MS`. The operations of this PE and of "
     "those that it may wait for follow.",
     "Look at the named PEs; `SHOAL_TIMEOUT_MS` ends such waits."},
    {175,
     "Another PE ended, closed the world or failed; the message has its reason. A PE that was "
     "killed without a message (exit status 137) was usually out of memory.",
     "Look at the message of that PE first; `shoal-info --doctor` compares the heaps with the "
     "memory limit."},
    {176, "The program ended the wait (`set_interrupt_check`; Ctrl-C in Python).",
     "Close the world; the other PEs time out or see this PE end."},
    {180, "The record of a failure could not be written.",
     "Set `SHOAL_FLIGHT_DIR` to a folder that exists and can be written on all hosts."},
    {181, "A warning: the process could not get the memory or the descriptor that records need.",
     "Raise `ulimit -n` or the memory limit; `SHOAL_LOG=info` prints the reason."},
    {182, "A note after a failure: the state of this PE was written to a file.",
     "Collect the files of all hosts and run `shoal-info --flight FOLDER`, which says which rank "
     "was behind."},
    {183, "The file is a link, a FIFO, not readable, cut off, or not a flight record.",
     "Name the folder in which the PEs wrote, with whole files."},
    {184, "Another version of Shoal wrote the file.", "Read it with the version that wrote it."},
    {185, "The folder has no flight records.",
     "Name the folder of `SHOAL_FLIGHT_DIR`, with the files of all hosts."},
    {190,
     "A PE could not do its part of `World::open`, and the others quote its message after the "
     "phase.",
     "Cure the reason after the phase, on the PE that the message names. Where all PEs failed, "
     "compare their settings."},
    {191, "The number of threads is outside its range.", "Pass a number in the stated range."},
    {192,
     "A warning with `mask_failed`: the other PEs did not close the world in time, as when this "
     "one leaves early.",
     "Nothing to do."},
    {193, "A signal for records is set, and no folder for them.",
     "Set `SHOAL_FLIGHT_DIR` to a folder that exists on all hosts."},
    {200,
     "The PEs of a team made different calls, or in a different order; the message lists them.",
     "Make the same calls in the same order on all PEs of the team."},
    {201, "An operation of the team failed, so its PEs may be at different operations since.",
     "Use another team, or open another world."},
    {202, "More bytes were given than an exchange carries.",
     "Send less, or use a collective over the symmetric heap."},
    {203, "All teams of the setting are in use on at least one PE.",
     "Destroy unused teams, or raise `SHOAL_MAX_TEAMS` on all PEs."},
    {204,
     "The PEs that join by one id give different sizes, or an index that is taken or out of range;"
     " an id may have been used twice.",
     "Create a new id for each team, and pass one size and the indices 0 to size - 1."},
    {205, "PEs of one set passed different numbers to the split, or sets of one call overlap.",
     "Pass the same start, stride and count on all PEs of a set, and disjoint sets."},
    {206,
     "The numbers of the split describe PEs outside the team, or `x_range` of `split_2d` is below "
     "1.",
     "Pass a count and an `x_range` of at least 1, and a stride other than 0 whose PEs are all in "
     "the team."},
    {207, "This PE is not in the team.",
     "Check `valid()` before use: a split returns an invalid team on PEs outside of it."},
    {208, "The team was destroyed before this call.", "Keep the team until its last operation."},
    {209, "The PE is not in the team; PEs of a team count from 0.",
     "Pass a PE in the stated range."},
    {210, "The two teams belong to different worlds.", "Use teams of one world."},
    {211, "Predefined teams live as long as their world.",
     "Destroy only teams that a split or `make_team` created."},
    {220,
     "The system refused to tell the cores or the identity of this host: too many open files, or a"
     " sandbox.",
     "Raise `ulimit -n`, or allow the call in the sandbox."},
    {221, "hwloc could not read this machine, or `HWLOC_XMLFILE` names a file that it cannot load.",
     "Unset `HWLOC_XMLFILE`, mount `/sys` and `/proc` into the container, and try `lstopo`."},
    {222,
     "The file that describes a machine is not one that hwloc can read, or has a wrong number.",
     "Pass a file that `lstopo machine.xml` wrote."},
    {223,
     "The host has no identity by which PEs on it recognize each other, as in a minimal container.",
     "Mount the host's `/etc/machine-id`, or set `SHOAL_HOST_ID` to a text that is the same for "
     "PEs that share memory."},
    {224,
     "Hosts have different numbers of PEs. Containers can look like hosts of their own, or hosts "
     "like one (equal machine id and boot id).",
     "Start the same number on each host (`--ntasks-per-node`), or set `SHOAL_HOST_ID`."},
    {225, "The emulated node size does not divide the PEs of a host.",
     "Use a divisor, or 0 for whole hosts."},
    {226, "The text is not a PCI address.", "Write it as `lspci -D` does."},
    {227,
     "`SHOAL_NIC_LIST` or `SHOAL_NIC_MAPPING` names a NIC or port that this host does not have, or"
     " in another form.",
     "Use the names that the message and `shoal-info --topology` list."},
    {228, "The named port has no link.",
     "Bring the port up (`ibstat`, `ip link`), or remove it from the setting."},
    {229, "A port is named twice.", "Name it once; `SHOAL_NIC_MAPPING` gives a port more PEs."},
    {230, "A note: automatic selection excludes this port, which would slow the others down.",
     "Name it in `SHOAL_NIC_LIST` to use it all the same."},
    {231,
     "The setting excludes every port of this host, so its PEs cannot reach other hosts by RDMA.",
     "Widen the list, or unset it."},
    {232, "Two settings choose the NICs.", "Unset `SHOAL_NIC_LIST` or `SHOAL_NIC_MAPPING`."},
    {233, "The counts of `SHOAL_NIC_MAPPING` do not add up to the PEs of this host.",
     "Correct the counts as in the example of the message."},
    {234,
     "hwloc does not see the GPU that CUDA gave, because `/sys` is hidden or `HWLOC_XMLFILE` "
     "describes another machine.",
     "Mount `/sys` into the container, or unset `HWLOC_XMLFILE`."},
    {235, "PEs of one rail have NICs on planes that do not reach each other.",
     "Bind NICs of one plane on all hosts with `SHOAL_NIC_LIST`."},
};

const std::span<const Message> kStart = kStartRows;

}  // namespace shoal::messages
