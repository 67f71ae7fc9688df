// SPDX-License-Identifier: Apache-2.0
// transport.cpp: messages of transports, collectives and the device side.
#include "base/messages/table.hpp"

namespace shoal::messages {

static constexpr Message kTransportRows[] = {
    {300, "The system did not let the process lock host memory.",
     "Raise `ulimit -l` to unlimited."},
    {301,
     "CUDA refused a copy or an event with the reason that follows; usually an earlier kernel or "
     "copy of this process failed.",
     "Find the first failure with `compute-sanitizer` and the Xid lines of `dmesg`."},
    {310,
     "The PEs run different versions of Shoal, or have different settings of transports or of the "
     "heap.",
     "Install the same version and set the same variables on all hosts. Compare `shoal-info "
     "--build` and `shoal-info --settings`."},
    {311,
     "The network to a PE failed because that PE had ended or failed before; its message is at the"
     " end.",
     "Look at the first failure."},
    {312,
     "The other PE ended, its link is down, or the network dropped the connection. The operation "
     "may have had its effect.",
     "Read the message of that PE and check its link (`ibstat`, `ip link`). For RDMA raise "
     "`SHOAL_VERBS_TIMEOUT`."},
    {313,
     "The other PE's process is stopped or its progress thread gets no core, or the network drops "
     "packets.",
     "Check that PE; give the thread a core with `SHOAL_PROGRESS_CORE`; raise `SHOAL_TIMEOUT_MS` "
     "for a slow network."},
    {314,
     "The other PE did not answer the first message over this network, because of a firewall, "
     "another plane, or the wrong interface.",
     "Choose the interface with `SHOAL_NIC_LIST` or `SHOAL_UCX_TLS`. For slow starts raise "
     "`SHOAL_BOOTSTRAP_TIMEOUT_MS`."},
    {315,
     "The trial of a connection read other data than were written, so the network delivers late or"
     " not at all.",
     "Use another NIC or provider (`SHOAL_NIC_LIST`, `SHOAL_OFI_PROVIDER`), or exclude this "
     "transport in `SHOAL_TRANSPORT_BETWEEN`."},
    {316,
     "This network did not connect the two PEs when the world opened, for the reason that follows.",
     "Cure the reason, or name another transport in `SHOAL_TRANSPORT_BETWEEN`. `shoal-info "
     "--connectivity` shows each pair."},
    {317, "No fault: the setting allows this network, and a transport before it connects all PEs.",
     "Nothing to do."},
    {318, "A warning: a message of another program or an earlier job arrived and was dropped.",
     "End stray processes of earlier jobs."},
    {319,
     "The other PE sent a message that breaks the protocol: data were damaged on the way, or a "
     "defect of Shoal.",
     "Compare `shoal-info --build` of both hosts. With equal versions report it with `shoal-info "
     "-a`."},
    {320,
     "The process has almost no free file descriptors, so the library of a network was not "
     "started.",
     "Raise `ulimit -n`, or close files before `World::open`."},
    {321, "The module of the transport and the library are of different builds.",
     "Install modules and library from one build, or correct `SHOAL_PLUGIN_DIR`."},
    {330, "libfabric was built without CUDA, or its provider does not access GPU memory (FI_HMEM).",
     "Check `fi_info -c FI_HMEM`; with automatic, data of heaps in GPU memory pass through host "
     "memory."},
    {331, "No fault: the setting lets data of heaps in GPU memory pass through host memory.",
     "Set it to automatic to let the NIC access GPU memory."},
    {332,
     "The PEs chose different providers of libfabric, because the hosts have different NICs or "
     "settings.",
     "Set the same `SHOAL_OFI_PROVIDER` on all hosts."},
    {333, "libfabric refused a call; its text follows.",
     "Check the provider with `fi_info` and `fi_pingpong`, or choose another by "
     "`SHOAL_OFI_PROVIDER`."},
    {334, "The provider is missing, or lacks a feature that Shoal needs.",
     "See `fi_info -l`; tcp;ofi_rxm works wherever there is a network interface."},
    {335,
     "libfabric could not register the heap with the NIC, mostly because locked memory is limited.",
     "Raise `ulimit -l` to unlimited, or lower `SHOAL_SYMMETRIC_SIZE`. For GPU memory try "
     "`SHOAL_OFI_GPU_MEMORY=off`."},
    {336, "The process ran out of host memory while the libfabric transport started.",
     "Raise the memory limit of the process or container, or start fewer PEs per host."},
    {337, "The system call `getrandom` failed, usually because a sandbox blocks it.",
     "Allow `getrandom` in the seccomp profile of the sandbox or container."},
    {340, "The world was closed or failed while operations of kernels or streams were in progress.",
     "Synchronize with the streams of the program before `World::close`."},
    {341, "A peer or the network makes no progress, or the thread of the proxy gets no core.",
     "Check the peer; give the thread a core with `SHOAL_PROXY_CORE`."},
    {342,
     "A kernel posted a request that does not fit the world: a wrong offset, size or PE. Nothing "
     "was done.",
     "Check the arguments of the device call with `compute-sanitizer`."},
    {343,
     "The first request of a kernel or stream that the proxy could not carry out. The reason "
     "follows, and later requests were not executed.",
     "Cure the reason, then open a new world."},
    {350, "The kernel gave a local socket a name of an unexpected length.",
     "This is a defect of Shoal or an unusual kernel: report it with `shoal-info -a`."},
    {351, "The PEs run different versions of Shoal, or use different settings of transports.",
     "Install the same version and set the same variables on all hosts; compare `shoal-info "
     "--build` and `shoal-info --settings`."},
    {352, "A PE that is a thread of this process failed during the start.", "Look at its message."},
    {353,
     "A warning: two PEs of one host could not share memory, so a slower network carries the pair."
     " The process is out of file descriptors, or the other process hangs.",
     "Raise `ulimit -n`, and check the PE that the message names."},
    {360, "The thread that copies for other PEs cannot use the GPU of this one.",
     "Look for the first failure of the GPU (`dmesg`, `compute-sanitizer`)."},
    {361,
     "A copy to or from a heap in GPU memory failed at its owner, which ended or whose GPU failed;"
     " CUDA's reason follows.",
     "Look at the message of the owner."},
    {362,
     "The PE that owns the heap does not serve requests: it is stopped, or its GPU is occupied.",
     "Check that PE; raise `SHOAL_TIMEOUT_MS` when its GPU is only busy."},
    {370, "UCX refused its configuration or found no device that it can use.",
     "See `ucx_info -d`; `SHOAL_UCX_TLS` and `SHOAL_NIC_LIST` select what UCX uses."},
    {371, "A warning: an assertion of UCX failed at the end. The world is closed all the same.",
     "Nothing to do; a newer UCX may cure it."},
    {372,
     "The memory of the heap could not be registered, mostly because locked memory is limited.",
     "Raise `ulimit -l` to unlimited, or lower `SHOAL_SYMMETRIC_SIZE`."},
    {373, "The PEs run different versions of Shoal, or use different settings of transports.",
     "Install the same version and set the same variables on all hosts; compare `shoal-info "
     "--build` and `shoal-info --settings`."},
    {374, "An assertion inside UCX failed, and this process cannot use UCX any more.",
     "End the job, and install a newer UCX or exclude ucx in `SHOAL_TRANSPORT_BETWEEN`."},
    {380,
     "Device commands (DEVX) are not available: the NIC is no ConnectX or BlueField, a virtual "
     "function lacks DEVX, or libmlx5 is missing or too old.",
     "Install `ibverbs-providers` of rdma-core 24 or newer, or set `SHOAL_VERBS_INTERFACE=verbs`."},
    {381,
     "The memory of the heap could not be registered with the NIC: locked memory is limited, or "
     "the device has no region left.",
     "Raise `ulimit -l` to unlimited, or lower `SHOAL_SYMMETRIC_SIZE`."},
    {382,
     "Other processes took all doorbell pages or event queues of the device, or it is being reset.",
     "End other jobs on this NIC, or use another (`SHOAL_NIC_LIST`)."},
    {383, "The queues that the settings ask for are larger than the device allows.",
     "Lower `SHOAL_VERBS_DEPTH`, `SHOAL_VERBS_INLINE` or `SHOAL_VERBS_QUEUE_PAIRS`."},
    {384,
     "`SHOAL_VERBS_GPU_MEMORY` demands an access to GPU memory that this system does not offer, "
     "for the reason that the message gives.",
     "Cure the reason, or set it to automatic, with which data pass through host memory where "
     "needed."},
    {385,
     "No fault: data of heaps in GPU memory pass through host memory, as the setting or a device "
     "in software demands.",
     "Nothing to do; with a NIC in hardware set `SHOAL_VERBS_GPU_MEMORY=automatic`."},
    {386, "Kernels drive only queues that device commands created, and libibverbs created these.",
     "Set `SHOAL_VERBS_INTERFACE=devx`, which mlx5 devices support, or `SHOAL_GDA=off`."},
    {387,
     "PEs have different numbers of queue pairs for kernels; 0 means that a PE could not make any,"
     " for a reason that its log at level info has.",
     "Use the same `SHOAL_GDA` and `SHOAL_GDA_QUEUE_PAIRS` on all PEs."},
    {388,
     "A queue pair ended with the status of the NIC. Retries exceeded: the peer ended, or its link"
     " is down.",
     "Look at the peer's message; raise `SHOAL_VERBS_TIMEOUT` or `SHOAL_VERBS_RETRIES` where links"
     " recover slowly."},
    {389, "libibverbs is missing or too old.",
     "Install rdma-core 15 or newer (`libibverbs1`), or name its file with `SHOAL_VERBS_LIBRARY`."},
    {390, "The process ran out of host memory for the queues of the NIC.",
     "Raise the memory limit of the process or container, or lower `SHOAL_VERBS_DEPTH` or "
     "`SHOAL_VERBS_QUEUE_PAIRS`."},
    {391,
     "No NIC with RDMA is visible: its driver is not loaded, or the container has no access to "
     "`/dev/infiniband`.",
     "Check `ibv_devinfo` and the permissions of `/dev/infiniband/uverbs*`, and install "
     "`ibverbs-providers`."},
    {392, "No selected NIC has an active RDMA port.",
     "Check the cable, the switch and the subnet manager (`ibstat`), and `SHOAL_NIC_LIST`."},
    {393, "libibverbs refused a query of the port; its reason follows.",
     "Check `ibv_devinfo` for the port."},
    {394, "The device lacks RDMA atomics or reads, which this transport needs.",
     "Use `SHOAL_TRANSPORT_BETWEEN=ofi` or ucx."},
    {395, "The entry of the GID table does not exist or has no address.",
     "Choose an entry with an address (`show_gids`)."},
    {396,
     "The device has fewer queue pairs or entries than all connections need; other jobs may share "
     "its quota.",
     "Lower `SHOAL_VERBS_QUEUE_PAIRS`, or use more ports (`SHOAL_NIC_LIST`)."},
    {397,
     "A queue pair could not be connected; the attributes and their limits follow. Often the two "
     "PEs are in different subnets.",
     "Choose ports of one subnet with `SHOAL_NIC_LIST`, and `SHOAL_VERBS_GID_INDEX`."},
    {398,
     "A warning: queues are shorter than the transfers of a group fill, so that calls wait for "
     "room.",
     "Set the depth that the message gives, lower `SHOAL_NETWORK_DEPTH`, or use more ports."},
    {399,
     "The PEs have different numbers of queue pairs per peer, because a launcher passed the "
     "setting to some hosts only.",
     "Set the same `SHOAL_VERBS_QUEUE_PAIRS` on all PEs."},
    {400,
     "A port of the other PE is InfiniBand and the port of this PE is Ethernet (RoCE), or the "
     "reverse. The two do not mix.",
     "Name ports of one kind on all hosts with `SHOAL_NIC_LIST`."},
    {401,
     "Memory for the queues of the NIC could not be registered, mostly because locked memory is "
     "limited.",
     "Raise `ulimit -l` to unlimited, or lower `SHOAL_VERBS_DEPTH` or `SHOAL_VERBS_QUEUE_PAIRS`."},
    {402,
     "`SHOAL_VERBS_QUEUE_PAIRS` times the number of ports exceeds the connections that Shoal makes"
     " to one peer.",
     "Lower `SHOAL_VERBS_QUEUE_PAIRS`, or name fewer ports in `SHOAL_NIC_LIST`."},
    {403,
     "`SHOAL_GDA=on` demands queue pairs for kernels, and they do not reach one PE for the reason "
     "that follows, such as a heap that is not registered with the NIC.",
     "Cure the reason, or set `SHOAL_GDA=automatic`, with which the proxy serves that PE."},
    {404, "The kernel, the NIC driver or rdma-core does not register GPU memory as a dma-buf.",
     "Use Linux 5.12 and rdma-core 34 or newer, or load `nvidia_peermem` and set "
     "`SHOAL_VERBS_GPU_MEMORY=peermem`."},
    {405,
     "The NIC driver could not register the heap by its address. For GPU memory the module "
     "nvidia-peermem is missing, for pinned host memory locked memory is limited.",
     "Run `modprobe nvidia_peermem` as root, or raise `ulimit -l`. `SHOAL_VERBS_GPU_MEMORY=dmabuf`"
     " needs no module."},
    {406, "The host has no route to the peer of this RoCE port, or the peer does not answer ARP.",
     "Try `ping` from the address of this port. Choose another `SHOAL_VERBS_GID_INDEX` or "
     "`SHOAL_NIC_LIST`."},
    {407,
     "The NIC refused a request that Shoal posted, which is a defect of Shoal or a failed device.",
     "Check the device with `ibv_devinfo` and `dmesg`, and report it with `shoal-info -a`."},
    {440, "An array of sizes or offsets does not have one element per PE of the team.",
     "Pass arrays of `Team::size` elements, with 0 for PEs that send or receive nothing."},
    {441, "An address of the call is not in this PE's symmetric heap, or its range leaves it.",
     "Pass buffers of `heap().allocate`, with room for all blocks."},
    {442, "Blocks of the call overlap, which only calls in place allow.",
     "Use buffers that are apart, or equal addresses where the page says so."},
    {443,
     "PEs of the team passed different sizes, types or roots. The message lists them, and any "
     "error of a PE.",
     "Pass the same arguments on all PEs. In `all_to_all_v`, sent and received sizes of a pair "
     "must be equal."},
    {444, "The address is not a multiple of the element size.",
     "Pass an address that is aligned to the element type, as `heap().allocate` returns."},
    {445, "The root is not a PE of the team; it counts within the team.",
     "Pass a root from 0 to size - 1."},
    {446,
     "NCCL could not connect the PEs of the team, or a later call of it failed: its network setup "
     "hangs or failed, or a PE ended meanwhile.",
     "Run with `NCCL_DEBUG=INFO` to see its network setup, or set `SHOAL_COLLECTIVE_NCCL=off`."},
    {447, "The setting demands NCCL, and a PE cannot use it.",
     "Install NCCL 2.19 or later, name its file in `SHOAL_NCCL_LIBRARY`, use a GPU for each PE, or"
     " set `SHOAL_COLLECTIVE_NCCL=off`."},
    {448, "The reduction does not exist for this element type.",
     "Use one of the combinations that the message lists."},
    {449, "So many elements do not fit into the symmetric heap.",
     "Pass a smaller count, or raise `SHOAL_SYMMETRIC_SIZE`."},
    {450,
     "CUDA did not start the kernel. Usually an earlier kernel failed, or the library has no code "
     "for this GPU.",
     "Find the first failure with `compute-sanitizer` and the Xid lines of `dmesg`, or build with "
     "its `SHOAL_CUDA_ARCHITECTURES`."},
    {451, "Collectives on streams need heaps in GPU memory on all PEs of the team.",
     "Set `SHOAL_HEAP=cuda` on all PEs."},
    {452,
     "This GPU reaches the heap of a PE of the team neither by loads and stores nor by the proxy.",
     "Set `SHOAL_PROXY_SLOTS` above 0."},
    {453, "A block of the call begins or ends outside of its span.",
     "Pass counts and offsets in elements whose blocks lie in the spans."},
    {454,
     "The spans of the call do not fit each other: a collective that gathers or scatters needs one"
     " span that is the size of the team times as long as the other.",
     "Pass spans with the stated numbers of elements."},
    {456, "The contribution of this PE is longer than `exchange_bytes` carries.",
     "Exchange larger data with `all_gather` on buffers of the symmetric heap."},
    {457, "A table of sizes or offsets of the call on a stream is null, or not aligned to 8 bytes.",
     "Pass one 64-bit word per PE of the team, in GPU memory, the symmetric heap or pinned host "
     "memory."},
    {458,
     "GPU memory is used up, so a collective on a stream has no scratch memory for its reduction.",
     "Free GPU memory before the first such call of the team, or reduce on the host."},
    {460,
     "CUDA refused a call with the reason that follows. Usually an earlier kernel or copy failed, "
     "or the library has no code for this GPU.",
     "Find the first failure with `compute-sanitizer`, or build with the "
     "`SHOAL_CUDA_ARCHITECTURES` of the GPU."},
    {461,
     "The system did not let the process lock host memory that GPU kernels write: failure reports,"
     " the ring of the proxy, or words of queue pairs.",
     "Raise `ulimit -l` to unlimited, or lower `SHOAL_PROXY_SLOTS`."},
    {462,
     "Operations to other nodes are queued on streams and none of them ends: what the stream waits"
     " for does not happen, or a PE is late.",
     "Check the order of calls on both PEs; raise `SHOAL_TIMEOUT_MS` for late PEs."},
    {463, "The signals of all teams do not fit into the first memory of the heap.",
     "Lower `SHOAL_MAX_TEAMS`, or raise `SHOAL_SYMMETRIC_SIZE`."},
    {464,
     "The local side of the operation lies in memory that the GPU cannot read, such as the stack "
     "or `malloc`.",
     "Pass GPU memory, memory of the symmetric heap, or pinned host memory (`cudaHostAlloc`)."},
    {465, "The GPU cannot map the doorbell pages of the NIC at the host's address.",
     "Run as root or set `PeerMappingOverride=1` of the NVIDIA driver, or set `SHOAL_GDA=off`."},
    {466,
     "The proxy did not complete an operation of a kernel in time: the peer or the network makes "
     "no progress, or the proxy thread gets no core.",
     "Check the peer, give the proxy a core with `SHOAL_PROXY_CORE`, or raise `SHOAL_TIMEOUT_MS`."},
    {467, "The library was built without CUDA.", "Build with a CUDA compiler and `SHOAL_CUDA=ON`."},
    {468, "The world has more PEs than teams in kernels and collectives on streams support.",
     "Use the collectives of the host (`shoal/collective.hpp`), or open a smaller world."},
    {469,
     "The named PE has not made the call, makes other calls on the team, or its kernel cannot run.",
     "Check the order of calls and streams on both PEs. Then create a new team, because this one "
     "is out of step."},
    {470,
     "The sender has not run its kernel, or both sides use different signals or teams, so a signal"
     " did not reach its value.",
     "Check MPS with `shoal-info --doctor` where processes share a GPU, then the streams of both "
     "PEs."},
    {471, "The peer or the link is slow or lost, or the NIC did not see the doorbell.",
     "Check the link (`ibstat`) and GPUDirect (IOMMU); raise `SHOAL_TIMEOUT_MS`."},
    {472,
     "The NIC ended a queue that kernels drive; the first request that failed and the cause "
     "follow. A remote access error means that the peer has released its heap.",
     "Look at the peer's message, then open a new world."},
    {473, "The GPU has no memory left for the description of the queue pairs of kernels.",
     "Free GPU memory before `World::open`, lower `SHOAL_GDA_QUEUE_PAIRS`, or set `SHOAL_GDA=off`."},
    {474, "The world was closed or failed while a kernel or stream still communicated.",
     "Synchronize with the streams of the program before `World::close`, and read the first "
     "failure."},
    {475, "An operation of a kernel failed in the proxy, which did not execute later requests.",
     "Call `shoal::cuda::check_failures`, which throws the whole error with its reason."},
    {476, "A kernel named a range that leaves every allocated buffer of that PE. Nothing was done.",
     "Check offset and size of the device call that the block and thread of the message made."},
    {477,
     "A kernel named a PE whose heap this GPU reaches neither by loads and stores nor by proxy or "
     "queue pairs. Nothing was done.",
     "Set `SHOAL_PROXY_SLOTS` above 0. `World::describe_transport` shows how a PE is reached."},
    {478,
     "A kernel called a collective on a team that is too large or includes PEs out of reach of "
     "loads and stores. Nothing was done.",
     "Use `World::shared_team`, or collectives on streams or of the host."},
    {479,
     "A PE sent a larger block than `receive_room` of this PE allows, so the end of the block is "
     "missing.",
     "Make `send_bytes` of the sender and `receive_room` of the receiver agree."},
    {480, "An index of `fetch_entries` is outside the table. The result of that entry is zeros.",
     "Pass indices from 0 to the number of entries minus 1, and check the kernel that writes them."},
};

const std::span<const Message> kTransport = kTransportRows;

}  // namespace shoal::messages
