// SPDX-License-Identifier: Apache-2.0
// memory.cpp: messages of memory, heap, operations and the C, OpenSHMEM and NVSHMEM interfaces.
#include "base/messages/table.hpp"

namespace shoal::messages {

static constexpr Message kMemoryRows[] = {
    {700,
     "The CUDA driver refused a basic call with the reason that follows; usually an earlier kernel"
     " or copy of this process failed, or the GPU is in exclusive mode and in use.",
     "Find the first failure with `compute-sanitizer` and the Xid lines of `dmesg`; check "
     "`nvidia-smi -q -d COMPUTE`."},
    {702,
     "The CUDA driver works but shows this process no GPU: `CUDA_VISIBLE_DEVICES` hides all, or "
     "the container was started without GPUs.",
     "Make GPUs visible (`--gpus all`), or set `SHOAL_HEAP=host`."},
    {703,
     "`SHOAL_DEVICE` names a GPU that this process does not see; numbers count the GPUs of "
     "`CUDA_VISIBLE_DEVICES`.",
     "Pass a number in the stated range, or -1 to distribute the PEs over the GPUs."},
    {704, "The GPU has no unified addressing, which symmetric memory needs.",
     "Use another GPU (`SHOAL_DEVICE`) or `SHOAL_HEAP=host`."},
    {705,
     "Work of Shoal on the GPU did not complete in time: kernels of the program occupy the GPU, or"
     " one of them never ends.",
     "Look for a kernel that waits for something that does not happen; raise `SHOAL_TIMEOUT_MS` "
     "when the GPU is only busy."},
    {706,
     "This build has no CUDA, or the machine has no usable CUDA driver; the reason is in the "
     "message.",
     "Run `shoal-info --doctor`. Build with a CUDA compiler and `SHOAL_CUDA=ON` and install a "
     "driver, or set `SHOAL_HEAP=host`."},
    {710,
     "The GPU has no memory left for the symmetric heap: other processes or a caching allocator "
     "such as PyTorch's hold it.",
     "Free GPU memory (`nvidia-smi` shows who has it), or lower `SHOAL_SYMMETRIC_SIZE`. Heaps grow"
     " on demand unless `SHOAL_CUDA_HANDLE` is ipc."},
    {711,
     "This PE could not map the memory that another PE added to its heap, for the reason that "
     "follows, so the allocation failed on all PEs.",
     "Cure the reason; the call can be repeated."},
    {712,
     "The driver cannot pass GPU memory to other processes by this kind of handle; containers "
     "often block one kind (separate PID namespaces: CUDA IPC; no "
     "`/dev/nvidia-caps-imex-channels`: fabric).",
     "Set `SHOAL_CUDA_HANDLE` to automatic or to another kind."},
    {713,
     "A GPU could not map the heap of a PE: the GPUs have no peer access to each other, or "
     "mappings or memory are used up.",
     "Check `nvidia-smi topo -p2p r` and `shoal-info --gpus`; pairs without access work through "
     "host memory with `SHOAL_TRANSPORT_INSIDE=staged`."},
    {714, "The kernel gave a local socket a name of an unexpected length.",
     "This is a defect of Shoal or an unusual kernel: report it with `shoal-info -a`."},
    {715,
     "PEs added different amounts of memory to their heaps, so they made different allocations.",
     "Call the heap with the same sizes in the same order on all PEs."},
    {716, "The PE is on another host, and this kind of memory handle works within a host only.",
     "Inside an NVLink domain set `SHOAL_CUDA_HANDLE=fabric`; elsewhere a network transport "
     "carries the data."},
    {717, "The PEs run different versions of Shoal.", "Install the same version on all hosts."},
    {718,
     "With `SHOAL_CUDA_HANDLE=pinned` the heap is host memory that only the GPU of its own process"
     " reaches.",
     "Nothing to do where a network or host memory carries the data; else choose another "
     "`SHOAL_CUDA_HANDLE`."},
    {719, "The system did not let the process lock the memory of the heap.",
     "Raise `ulimit -l` to unlimited, or lower `SHOAL_SYMMETRIC_SIZE`."},
    {722,
     "`share_buffer` got memory that is not, or not entirely, in an allocation of this PE's GPU.",
     "Pass a range inside one allocation of `cudaMalloc` on the GPU that the message names."},
    {723, "The allocator created the memory in a way that other processes cannot open.",
     "Use memory of `cudaMalloc`; in PyTorch set "
     "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False`."},
    {724,
     "This PE could not open the buffer that another PE shares; CUDA's reason follows. PEs in "
     "separate PID namespaces and GPUs without peer access are common causes.",
     "Check `shoal-info --gpus` for peer access, share the PID namespace of containers, or set "
     "another `SHOAL_CUDA_HANDLE`."},
    {725,
     "The GPU's address space has no range of this size; every PE reserves addresses for the heaps"
     " or buffers of all.",
     "Lower `SHOAL_SYMMETRIC_SIZE`, or share smaller buffers."},
    {726, "The PEs run different versions of Shoal, or the memory of a message was overwritten.",
     "Install the same version on all hosts; otherwise report it with `shoal-info -a`."},
    {727,
     "This GPU cannot reach the GPU memory of the PE that shares the buffer; the reason follows.",
     "Use GPUs with peer access (`shoal-info --gpus`), or pass memory of the symmetric heap."},
    {732,
     "The GPU or driver of a PE does not support the kind of memory handle that "
     "`SHOAL_CUDA_HANDLE` demands.",
     "Set `SHOAL_CUDA_HANDLE` to one of the kinds that the message lists."},
    {735,
     "The system refused a file descriptor or socket, mostly because the process has too many open"
     " files.",
     "Raise `ulimit -n`; each PE needs a few descriptors for every other PE of its host."},
    {736,
     "The kernel or a sandbox (seccomp, gVisor) refused a system call that passing shared memory "
     "needs.",
     "Allow the call in the sandbox, or set `SHOAL_TRANSPORT_INSIDE` to a transport that needs no "
     "shared memory."},
    {737, "This PE has too many open files to take the shared memory of another PE of its host.",
     "Raise `ulimit -n`; each PE needs a few descriptors for every other PE of its host."},
    {738,
     "PEs of this host did not take part in passing shared memory: they hang or ended at the "
     "start, while the heap grew, or in `share_buffer`.",
     "Look at the output of the PEs that the message names; raise the setting that it names when "
     "the host is only slow."},
    {740,
     "The process may not have so many addresses: `ulimit -v`, or more heaps than the address "
     "space holds.",
     "Raise `ulimit -v`, or lower `SHOAL_SYMMETRIC_SIZE`."},
    {741,
     "The memory of the host or of its cgroup is used up, or `ulimit -f` limits the size of files.",
     "Lower `SHOAL_SYMMETRIC_SIZE`, or raise the limit of the cgroup (`docker run --memory`) or "
     "`ulimit -f`."},
    {742,
     "The shared memory of another PE is not what this version of Shoal creates: the versions "
     "differ, or a foreign process answered on the socket.",
     "Install the same version for all PEs of the host."},
    {750, "The range to register is empty or leaves the address space.",
     "Pass the start and the size of a buffer of the program."},
    {751, "A registered buffer already covers part of the range.",
     "Unregister it first, or register the whole range once."},
    {752,
     "No buffer is registered at this address: it was unregistered before, or the pointer is not "
     "the start that was registered.",
     "Pass the pointer that `register_buffer` took."},
    {770,
     "Allocation is collective, and the PEs called with different sizes, in a different order, or "
     "not all of them; the message shows who called what.",
     "Make the same calls with the same arguments in the same order on all PEs."},
    {771, "The alignment is not a power of two in the stated range.", "Pass a power of two."},
    {772,
     "Buffers and groups hold the symmetric heap, or what is free is in pieces; the message states"
     " the free bytes and the largest block.",
     "Raise `SHOAL_SYMMETRIC_SIZE` on all PEs (`size_hint` returns what a group needs), free "
     "unused buffers, and allocate large buffers first."},
    {773,
     "The pointer was freed before, points into the middle of a block, or is outside the heap.",
     "Free each result of `malloc`, `calloc` or `align` once."},
    {775, "The part begins or ends outside the span.",
     "Keep first + length at most the number of elements of the span."},
    {776, "Symmetric memory needs no registration.", "Leave the call out for buffers of the heap."},
    {778, "The address is not in the symmetric heap of this PE.",
     "Pass an address inside a buffer of `heap().allocate` or `malloc`."},
    {780, "`share_buffer` got a null pointer with a size.",
     "Pass a buffer, or 0 bytes on PEs that share none."},
    {783, "Buffers are shared between GPUs only, and this world's heap is on the host.",
     "Set `SHOAL_HEAP=cuda`."},
    {784, "The buffer was unshared before, or another one was passed.",
     "Pass the result of `share_buffer` once."},
    {786,
     "Rows that pass through host memory need more staging than is free: many groups exist, or "
     "their chunks are large.",
     "Raise `SHOAL_STAGING_SIZE`, or close unused groups."},
    {790, "The PE does not exist; PEs are numbered from 0.", "Pass a PE of the world."},
    {791, "The remote range ends outside the symmetric heap.",
     "Pass a range of an allocated buffer; `SHOAL_SYMMETRIC_SIZE` is the size of the heap."},
    {792, "The heap of the PE grows with allocations, and no allocation covers this range yet.",
     "Allocate the buffer on all PEs before accessing it."},
    {793, "Atomics work on words of 4 and 8 bytes.", "Use an integer type of 32 or 64 bits."},
    {794, "The call got an empty span or a null buffer.", "Pass a buffer with elements."},
    {795,
     "The data and the signal of one `put_signal` name different PEs, so that the order between "
     "them would have no meaning.",
     "Use spans of the same PE for both."},
    {796, "Two spans of the call have different numbers of elements.",
     "Pass spans of equal length, or take `subspan` of the longer one."},
    {797, "The strides are below 1, or the strided elements leave the remote span.",
     "Pass strides of at least 1 and a count that fits."},
    {800, "Operations on streams and in kernels need a heap in GPU memory.",
     "Set `SHOAL_HEAP=cuda`."},
    {801,
     "This GPU does not reach the other heap by loads and stores, and no proxy carries operations "
     "of streams.",
     "Set `SHOAL_PROXY_SLOTS` above 0."},
    {802,
     "This operation on a stream needs loads and stores, and this GPU does not reach the other "
     "heap by them.",
     "Use `put_signal` and `wait_until`, which the proxy carries, or the operation of the host."},
    {803, "The address is not a multiple of its size, or not in this PE's symmetric heap.",
     "Use aligned words of a buffer that the heap allocated."},
    {804,
     "Several PEs share this GPU, and CUDA's legacy default stream waits for the streams of all of"
     " them, which would never end.",
     "Create a stream with `cudaStreamNonBlocking` for each PE."},
    {805, "The offset is not a multiple of the size of the value.",
     "Pass an address in the heap that is aligned to the type of the value."},
    {806, "The sizes of the table or of the fetch are outside their ranges.",
     "Pass the sizes that the table was made with."},
    {807, "The team belongs to another world than the operation.", "Use a team of the same world."},
    {820, "The address is not a multiple of the size of its type.", "Pass an aligned address."},
    {821,
     "PEs of the team called broadcast with different roots or sizes; the message names two of "
     "them.",
     "Call with the same root and size on all PEs of the team."},
    {822,
     "The target and the source of a collective overlap, which OpenSHMEM allows only for equal "
     "addresses of some calls.",
     "Use separate buffers."},
    {823, "The root is not a PE of the team; it counts within the team.",
     "Pass a root from 0 to the size of the team less 1."},
    {824, "A count, stride or size is below its minimum.", "Pass a value in the stated range."},
    {825,
     "The call got options or a mask with bits that OpenSHMEM does not define for it, or a mask "
     "without a configuration.",
     "Pass constants of the header that the message lists, or 0, and a configuration with a mask."},
    {826,
     "The context is the predefined or the invalid one; creating a context returns the latter when"
     " it fails.",
     "Check the result of `shmem_ctx_create`, and pass contexts that the program created."},
    {827, "The active set leaves the PEs of the program, or this PE is not in it.",
     "Pass a set inside 0 to n_pes - 1, and call it on its members only."},
    {828, "Each different active set takes a team until `shmem_finalize`, and all are in use.",
     "Raise `SHOAL_MAX_TEAMS`, or use teams, which can be destroyed."},
    {829,
     "`SHMEM_SYMMETRIC_SIZE` or `SMA_SYMMETRIC_SIZE` states no size, or one outside the stated "
     "range.",
     "Write a number of bytes with an optional suffix K, M, G or T."},
    {830,
     "The handle is not one that exists: it was destroyed, never created, or overwritten; or too "
     "many exist.",
     "Pass a handle between its creation and its destruction; destroy unused ones."},
    {831, "The thread level is none of OpenSHMEM's constants.",
     "Pass a constant from SHMEM_THREAD_SINGLE to SHMEM_THREAD_MULTIPLE."},
    {832, "The lock is not held, so it cannot be cleared.",
     "Clear a lock only on the PE that has set it."},
    {833, "The pointer is no block of the symmetric heap, or was freed before.",
     "Pass a result of `shmem_malloc` or its relatives once."},
    {834, "The address is neither in the symmetric heap nor in a global or static variable.",
     "Use memory of `shmem_malloc`, or a global or static variable."},
    {835, "This PE is not in the team: a split gives SHMEM_TEAM_INVALID to PEs outside of it.",
     "Compare the handle before use."},
    {836, "The call has a result, and its address is NULL.", "Pass the address of a variable."},
    {837, "The PE does not exist in the program or in the team of the context.",
     "Pass a PE in the stated range."},
    {838, "The operation or comparison is none of OpenSHMEM's constants.",
     "Pass a constant that the message lists."},
    {839,
     "The system did not let the process replace its global variables by symmetric memory; "
     "hardened kernels and some sandboxes forbid it.",
     "Use memory of `shmem_malloc` in place of global variables, or allow `mmap` with MAP_FIXED."},
    {840, "Predefined teams cannot be destroyed.", "Destroy teams that a split made."},
    {841,
     "A routine was called before `shmem_init`, after `shmem_finalize`, or in a process that a PE "
     "has forked.",
     "Call `shmem_init` first. A fork may only call exec or exit."},
    {850, "The flags name a library that the program was not linked with.",
     "Link the program with the library that the message names."},
    {851, "The attributes have no communicator of the MPI library that this process uses.",
     "Set `attributes->mpi_comm` to the address of an `MPI_Comm`."},
    {852, "Not all ranks of the communicator called the initialization in time.",
     "Call it on all ranks; raise `SHOAL_BOOTSTRAP_TIMEOUT_MS` when they start far apart."},
    {853, "The program asked to start from MPI before `MPI_Init`.", "Call `MPI_Init` first."},
    {854, "The OpenSHMEM library of the program has no memory left for the start.",
     "Enlarge its heap (SHMEM_SYMMETRIC_SIZE)."},
    {855, "The attributes have no unique id, or one that was not made by `nvshmemx_get_uniqueid`.",
     "Get an id on one rank, pass it to all, and call `nvshmemx_set_attr_uniqueid_args`."},
    {856, "The address of the interface does not fit into an nvshmemx_uniqueid_t.",
     "Select another interface with `SHOAL_SOCKET_INTERFACE`."},
    {857, "A world is open, and the call asks for different PEs than it has.",
     "Call `nvshmem_finalize` before another initialization, or `nvshmem_init`, which joins the "
     "open world."},
    {858, "The value is none of the constants that NVSHMEM defines for the call.",
     "Pass a constant that the message lists."},
    {859, "The rank is outside the number of ranks.", "Pass 0 to nranks - 1."},
    {860, "The address is not in the symmetric heap.", "Use memory of `nvshmem_malloc`."},
    {861, "The address is not a multiple of the size of its type.", "Pass an aligned address."},
    {862, "The PE does not exist in the world or team.", "Pass a PE in the stated range."},
    {863, "A count or stride is below its minimum.", "Pass a value in the stated range."},
    {864, "Creating a team from a unique id needs a configuration that has the id.",
     "Fill an `nvshmemx_team_config_t` from `nvshmemx_team_get_uniqueid`."},
    {865, "The team does not exist, was destroyed, or this PE is not in it.",
     "Pass NVSHMEM_TEAM_WORLD, another predefined team, or one that a split made on its own PEs."},
    {866, "The program holds as many teams as the setting allows.",
     "Destroy unused teams, or raise `SHOAL_MAX_TEAMS` on all PEs."},
    {867, "Predefined teams cannot be destroyed.", "Destroy teams that a split made."},
    {868,
     "A function was called before the initialization, after `nvshmem_finalize`, or in a process "
     "that a PE has forked.",
     "Call `nvshmem_init` or `nvshmemx_init_attr` first. A fork may only call exec or exit."},
    {880, "A struct of a result or a future was used twice, or with the call of another kind.",
     "Take a result or future once, with the call of its kind; release a result before reusing its"
     " struct."},
    {881, "An argument of the C call is outside its range.",
     "Pass a value in the range that the message states."},
    {882, "The struct was not initialized, or belongs to another version of the header.",
     "Start with its `_INIT` macro."},
    {883,
     "The library is older than the header that the program was compiled with, and the program "
     "asks for a field that the library does not know.",
     "Install a library of the header's version or newer."},
    {884, "The buffer of the caller is too small for the result.",
     "Pass a buffer of the size that the message states."},
    {885, "Results of an asynchronous operation belong to the process that started it.",
     "Take the result in the parent process."},
    {886, "The name is no setting of this version.",
     "List the names with `shoal-info --settings`."},
    {887, "The tensor's type, shape or address is not valid.",
     "Describe the memory with a type of shoal/c/tensor.h, 1 to 4 dimensions and its address."},
    {888, "A pointer that the C call needs is NULL.",
     "Pass the object, variable or function that the message names."},
    {889,
     "A body of `shoal_run_threads` returned another status than SHOAL_OK, and no call of Shoal "
     "had failed in its thread.",
     "Return SHOAL_OK where the body succeeds."},
};

const std::span<const Message> kMemory = kMemoryRows;

}  // namespace shoal::messages
