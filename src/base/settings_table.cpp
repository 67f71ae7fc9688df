// SPDX-License-Identifier: Apache-2.0
// settings_table.cpp: every setting, its NVSHMEM names, its limits and its meaning.
//
// docs/reference/settings.md is generated from this table (`./run settings`).
#include "shoal/settings.hpp"

namespace shoal {
namespace {

using View = std::string_view;
constexpr std::int64_t kOneDayMs = 24LL * 3600 * 1000;
constexpr std::int64_t kMaxIndex = 1'000'000;
constexpr std::int64_t kMaxHeap = std::int64_t{1} << 46;

template <typename T>
using Field = T Settings::*;

/// Integers, bytes and milliseconds: [minimum, maximum].
template <typename T>
SettingInfo number(View name, View alias, View scope, Field<T> field, View meaning,
                   std::int64_t minimum, std::int64_t maximum) {
  return {name, alias, scope, field, meaning, minimum, maximum};
}

SettingInfo text(View name, View alias, View scope, Field<std::string> field, View meaning,
                 std::vector<View> choices = {}) {
  return {name, alias, scope, field, meaning, 0, 0, std::move(choices)};
}

SettingInfo secret(View name, View scope, Field<std::string> field, View meaning) {
  return {name, "", scope, field, meaning, 0, 0, {}, true};
}

SettingInfo advanced(SettingInfo info) {
  info.advanced = true;
  return info;
}

using S = Settings;

std::vector<SettingInfo> bootstrap_rows() {
  constexpr View scope = "bootstrap";
  return {
      text("SHOAL_BOOTSTRAP", "NVSHMEM_BOOTSTRAP NVSHMEM_BOOTSTRAP_PMI", scope, &S::bootstrap,
           "How PEs find each other (docs/internals/bootstrap.md). uid: SHOAL_UNIQUE_ID or "
           "SHOAL_SESSION_ID; mpi; shmem: OpenSHMEM; pmi: PMI-1; pmi2; pmix; torch: torchrun's "
           "variables; plugin:FILE: a library of yours; single: one PE. automatic: what shoal-run "
           "or the launcher of this process offers, else single.",
           {"automatic", "uid", "single", "mpi", "shmem", "pmi", "pmi2", "pmix", "torch", "plugin",
            "plugin:"}),
      text("SHOAL_BOOTSTRAP_PLUGIN", "NVSHMEM_BOOTSTRAP_PLUGIN", scope, &S::bootstrap_plugin,
           "The library that SHOAL_BOOTSTRAP=plugin loads."),
      number("SHOAL_PE", "", scope, &S::pe,
             "Index of this PE, from 0; set by shoal-run. -1: not set.", -1, kMaxIndex),
      number("SHOAL_N_PES", "", scope, &S::n_pes,
             "Number of PEs of the world; set by shoal-run. -1: not set.", -1, kMaxIndex),
      secret("SHOAL_UNIQUE_ID", scope, &S::unique_id,
             "Unique id of the world as text (address, key); made by UniqueId::create and by "
             "shoal-run."),
      text("SHOAL_SESSION_ID", "NVSHMEM_BOOTSTRAP_UID_SESSION_ID", scope, &S::session_id,
           "host:port or [ipv6]:port where the root of the bootstrap listens. With it no unique id "
           "has to be distributed."),
      number("SHOAL_SESSION_ROOT", "", scope, &S::session_root,
             "The PE that listens at SHOAL_SESSION_ID.", 0, kMaxIndex),
      secret(
          "SHOAL_SESSION_SECRET", scope, &S::session_secret,
          "Text from which the key of a SHOAL_SESSION_ID world is derived; the same on all PEs."),
      text("SHOAL_SOCKET_INTERFACE", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", scope,
           &S::socket_interface,
           "Network interfaces for the bootstrap, in order: comma list of name prefixes. =name "
           "matches exactly; a leading ^ excludes the whole list."),
      text("SHOAL_SOCKET_FAMILY", "NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY", scope, &S::socket_family,
           "Address family of the bootstrap.", {"any", "AF_INET", "AF_INET6"}),
      number("SHOAL_BOOTSTRAP_TIMEOUT_MS", "", scope, &S::bootstrap_timeout,
             "Longest wait for the other PEs in each step of startup.", 1, kOneDayMs),
  };
}

std::vector<SettingInfo> world_rows() {
  constexpr View scope = "world";
  return {
      text("SHOAL_HOST_ID", "", scope, &S::host_id,
           "Overrides the identity of this host (default: machine id and boot id). PEs with equal "
           "ids share memory."),
      number("SHOAL_NODE_SIZE", "", scope, &S::node_size,
             "Splits each host into emulated nodes of this many PEs, for tests. 0: no split.", 0,
             kMaxIndex),
      number("SHOAL_SYMMETRIC_SIZE", "NVSHMEM_SYMMETRIC_SIZE", scope, &S::symmetric_size,
             "Size of the symmetric heap of each PE. Memory is taken on first use: by page on the "
             "host, in steps of at least 64 MiB on GPUs.",
             1 << 20, kMaxHeap),
      text("SHOAL_HEAP", "NVSHMEM_HEAP_KIND", scope, &S::heap,
           "Where the symmetric heap lies; the same on all PEs.", {"host", "cuda"}),
      number(
          "SHOAL_DEVICE", "", scope, &S::device,
          "CUDA index of this PE's GPU when SHOAL_HEAP is cuda. Several PEs may share a GPU. -1: "
          "index of the PE on its host, modulo the number of GPUs.",
          -1, 1023),
      text(
          "SHOAL_CUDA_HANDLE",
          "NVSHMEM_DISABLE_CUDA_VMM NVSHMEM_CUMEM_HANDLE_TYPE NVSHMEM_DISABLE_MNNVL", scope,
          &S::cuda_handle,
          "How processes share GPU memory. fd: file descriptors, inside a host. fabric: handles "
          "that also work between the hosts of an NVLink domain. ipc: CUDA IPC, which takes the "
          "whole heap at once. pinned: the heap is in pinned host memory, which NICs without access "
          "to GPU memory reach, and other processes and GPUs do not. automatic: fd; fabric if PEs are on "
          "several hosts and all GPUs support it; ipc if a GPU supports neither.",
          {"automatic", "fd", "fabric", "ipc", "pinned"}),
      number(
          "SHOAL_STAGING_SIZE", "", scope, &S::staging_size,
          "Host memory of each PE through which expert-parallel groups in GPU memory reach other "
          "nodes. Taken by page on first use; the same on all PEs.",
          1 << 20, kMaxHeap),
      number(
          "SHOAL_STAGED_CHUNK", "", scope, &S::staged_chunk,
          "Size of the pinned host chunks that carry operations on GPU heaps between PEs whose "
          "GPUs do not reach each other. Each PE has two chunks per request of SHOAL_STAGED_DEPTH, "
          "taken on first use. The same on all PEs.",
          4096, 1 << 30),
      number(
          "SHOAL_STAGED_DEPTH", "", scope, &S::staged_depth,
          "Staged requests in flight to one other PE, and chunks in flight to all of them; further "
          "requests wait in the call. The same on all PEs.",
          1, 1024),
      number("SHOAL_MAX_TEAMS", "NVSHMEM_MAX_TEAMS", scope, &S::max_teams,
             "Teams that may exist at once, predefined ones included.", 8, 65'536),
      number("SHOAL_TIMEOUT_MS", "", scope, &S::timeout,
             "Longest wait for another PE. After it the wait fails with a report.", 1, kOneDayMs),
      number(
          "SHOAL_WARN_AFTER_MS", "", scope, &S::warn_after,
          "A wait for another PE that takes longer is reported once in the log and continues. For "
          "OpenSHMEM and NVSHMEM programs, whose waits have no deadline.",
          1, kOneDayMs),
      number(
          "SHOAL_SPIN", "", scope, &S::spin,
          "Polls before a waiting thread yields its core or blocks. PEs that share a core divide "
          "them. Raise it when every PE has a core of its own. Waits for PEs that only a network "
          "reaches drive that network instead.",
          0, 1'000'000'000),
  };
}

std::vector<SettingInfo> transport_rows() {
  constexpr View scope = "network";
  return {
      text(
          "SHOAL_TRANSPORT_INSIDE", "NVSHMEM_DISABLE_P2P", scope, &S::transport_inside,
          "Transports between PEs of one node, by preference: comma list of shm, verbs, ucx, ofi, and "
          "for heaps in GPU memory cuda_p2p, staged. network: verbs, ucx, ofi where all PEs have an "
          "active RDMA port, else ofi, ucx, verbs. automatic: shm, network, and cuda_p2p, staged."),
      text(
          "SHOAL_TRANSPORT_BETWEEN", "NVSHMEM_REMOTE_TRANSPORT", scope, &S::transport_between,
          "Transports between PEs of different nodes, by preference: comma list of shm (emulated "
          "nodes of one host), verbs, ucx, ofi (or libfabric), network, and for heaps in GPU memory "
          "cuda_p2p, staged; network and automatic as for SHOAL_TRANSPORT_INSIDE. A network that "
          "fails for one pair of PEs is replaced by the next for all. A network's library is loaded "
          "when a pair of PEs needs it."),
      text("SHOAL_OFI_PROVIDER", "NVSHMEM_LIBFABRIC_PROVIDER", scope, &S::ofi_provider,
           "Provider of libfabric, such as tcp;ofi_rxm, efa, verbs;ofi_rxm, cxi, shm. automatic: "
           "the first of efa, cxi, verbs;ofi_rxm, net and tcp;ofi_rxm that offers what is needed."),
      text("SHOAL_OFI_GPU_MEMORY", "", scope, &S::ofi_gpu_memory,
           "Whether the provider reads and writes heaps in GPU memory itself (FI_HMEM). hmem: an "
           "error where it cannot. off: data pass through host memory. automatic: hmem where the "
           "provider offers it.",
           {"automatic", "hmem", "off"}),
      text("SHOAL_UCX_TLS", "", scope, &S::ucx_tls,
           "Transports that UCX may use, as its own UCX_TLS. Empty: UCX decides, without shared "
           "memory."),
  };
}

std::vector<SettingInfo> verbs_rows() {
  constexpr View scope = "network";
  return {
      text(
          "SHOAL_VERBS_LIBRARY", "", scope, &S::verbs_library,
          "The libibverbs of the transport verbs: a file, or a name that the dynamic linker searches for."),
      text(
          "SHOAL_VERBS_INTERFACE", "NVSHMEM_IB_ENABLE_IBGDA NVSHMEM_REMOTE_TRANSPORT", scope,
          &S::verbs_interface,
          "How the transport verbs creates and drives its queues. verbs (NVSHMEM: ibrc): by libibverbs, "
          "on any device; devx (NVSHMEM: ibdevx): by device commands and in memory of its own, as "
          "kernels need it, on mlx5 devices.",
          {"verbs", "devx"}),
      text(
          "SHOAL_VERBS_MLX5_LIBRARY", "", scope, &S::verbs_mlx5_library,
          "The libmlx5 of SHOAL_VERBS_INTERFACE=devx: a file, or a name that is searched for in the "
          "folder of SHOAL_VERBS_LIBRARY and then by the dynamic linker."),
      number("SHOAL_VERBS_QUEUE_PAIRS", "NVSHMEM_IB_NUM_RC_PER_DEVICE", scope,
             &S::verbs_queue_pairs, "Queue pairs for each peer on each port.", 1, 32),
      advanced(text(
          "SHOAL_VERBS_QUEUE_ORDER", "", scope, &S::verbs_queue_order,
          "Order in which a PE creates its queue pairs. rotated: starting with its right neighbour; "
          "naive: by PE, which makes all PEs serve PE 0 first on NICs that prefer low numbers.",
          {"rotated", "naive"})),
      number("SHOAL_VERBS_DEPTH", "NVSHMEM_QP_DEPTH", scope, &S::verbs_depth,
             "Requests in a send queue; further ones wait in the call. The device has a limit.", 16,
             32'768),
      number("SHOAL_VERBS_INLINE", "", scope, &S::verbs_inline,
             "Bytes that are copied into a request, up to the limit of the device.", 0, 1024),
      number("SHOAL_VERBS_SIGNAL_INTERVAL", "", scope, &S::verbs_signal_interval,
             "Requests per completion, where nothing waits for one of them.", 1, 1024),
      number("SHOAL_VERBS_RETRIES", "", scope, &S::verbs_retries,
             "How often a queue pair repeats a request before it is in error. 7: without end on "
             "soft-RoCE.",
             0, 7),
      number("SHOAL_VERBS_TIMEOUT", "", scope, &S::verbs_timeout,
             "Time before a request is repeated: 4.096 us * 2^value. 0: never.", 0, 31),
      number(
          "SHOAL_VERBS_GID_INDEX", "NVSHMEM_IB_GID_INDEX", scope, &S::verbs_gid_index,
          "Entry of the GID table. -1: RoCE v2 with an IPv4 address on Ethernet, none on InfiniBand.",
          -1, 255),
      number("SHOAL_VERBS_SERVICE_LEVEL", "NVSHMEM_IB_SL", scope, &S::verbs_service_level,
             "InfiniBand service level, or priority on Ethernet.", 0, 15),
      number("SHOAL_VERBS_TRAFFIC_CLASS", "NVSHMEM_IB_TRAFFIC_CLASS", scope,
             &S::verbs_traffic_class, "Traffic class of packets with a global route header.", 0,
             255),
      text("SHOAL_VERBS_GPU_MEMORY", "NVSHMEM_IB_DISABLE_DMABUF", scope, &S::verbs_gpu_memory,
           "How NICs access heaps in GPU memory. dmabuf: by dma-buf; peermem: by address, with the "
           "kernel module nvidia-peermem; automatic: the first of both that works, otherwise data "
           "pass through host memory; off: data always pass through host memory.",
           {"automatic", "dmabuf", "peermem", "off"}),
      text(
          "SHOAL_GDA", "NVSHMEM_IB_ENABLE_IBGDA NVSHMEM_REMOTE_TRANSPORT", scope, &S::gda,
          "Whether the transport verbs creates queue pairs for kernels, besides the network's, where "
          "heaps are in GPU memory. automatic: where it can (SHOAL_VERBS_INTERFACE=devx and registered "
          "heaps); on: an error where it cannot; off: never.",
          {"off", "automatic", "on"}),
      number("SHOAL_GDA_QUEUE_PAIRS", "NVSHMEM_IBGDA_NUM_RC_PER_PE", scope, &S::gda_queue_pairs,
             "Queue pairs for kernels for each peer, each with SHOAL_VERBS_DEPTH slots. 0: 4.", 0,
             32),
  };
}

std::vector<SettingInfo> progress_rows() {
  constexpr View scope = "network";
  return {
      number(
          "SHOAL_NETWORK_DEPTH", "", scope, &S::network_depth,
          "Requests that a PE may have in flight to one other PE; further ones wait in the call.",
          1, 65'536),
      number(
          "SHOAL_NETWORK_CHUNK", "", scope, &S::network_chunk,
          "Longer transfers over a network are cut into requests of this size, or of the network's "
          "limit.",
          4096, std::int64_t{1} << 40),
      text(
          "SHOAL_PROGRESS_WAIT", "", scope, &S::progress_wait,
          "What a thread that serves other PEs or kernels does when idle: spin; yield its core, and "
          "sleep after 500 us without work; or sleep at once. Sleeps grow with the idle time, from "
          "5 to 50 us; they are longer where a sleep itself takes long.",
          {"spin", "yield", "sleep"}),
      number(
          "SHOAL_PROGRESS_CORE", "", scope, &S::progress_core,
          "Core of the progress thread of the first PE of a host; those of the other PEs take the "
          "next cores. -1: not bound.",
          -1, kMaxIndex),
      number(
          "SHOAL_PROXY_SLOTS", "", scope, &S::proxy_slots,
          "For requests of kernels to PEs that their GPU does not reach: how many may be incomplete at a "
          "time; further ones wait. 0: kernels do not reach these PEs.",
          0, 65'536),
      number(
          "SHOAL_PROXY_CORE", "", scope, &S::proxy_core,
          "Core of the thread that executes these requests, of the first PE of a host; those of the "
          "other PEs take the next cores. -1: not bound.",
          -1, kMaxIndex),
      text("SHOAL_PLUGIN_DIR", "", scope, &S::plugin_dir,
           "Folder of Shoal's own plug-ins (network transports, bootstraps). Empty: the folder "
           "shoal next to libshoal."),
  };
}

std::vector<SettingInfo> nic_rows() {
  constexpr View scope = "network";
  return {
      text(
          "SHOAL_NIC_LIST", "NVSHMEM_HCA_LIST", scope, &S::nic_list,
          "NIC ports that may be used, by preference: comma list of name or name:port; a leading ^ "
          "excludes the whole list. Empty: automatic."),
      number(
          "SHOAL_NIC_ROUND_ROBIN", "NVSHMEM_ENABLE_NIC_PE_MAPPING", scope, &S::nic_round_robin,
          "1: PE i of a host takes port i modulo their number, in the order of SHOAL_NIC_LIST. 0: "
          "by distance. SHOAL_NIC_MAPPING has priority over both.",
          0, 1),
      text("SHOAL_NIC_MAPPING", "NVSHMEM_HCA_PE_MAPPING", scope, &S::nic_mapping,
           "NIC ports assigned to the PEs of a host in order: comma list of name, name:port or "
           "name:port:count, where count consecutive PEs share the port. Excludes SHOAL_NIC_LIST."),
      number(
          "SHOAL_LOCAL_INDEX", "", scope, &S::local_index,
          "Index of this PE among all PEs of its host, those of other jobs included, for the NIC "
          "plan of PEs whose heap is on the host. -1: its index among the PEs of its world on this "
          "host.",
          -1, kMaxIndex),
      number(
          "SHOAL_LOCAL_SIZE", "", scope, &S::local_size,
          "Number of PEs of all jobs on a host without GPUs, for the NIC plan. 0: the PEs of this "
          "world there.",
          0, kMaxIndex),
  };
}

std::vector<SettingInfo> collective_rows() {
  constexpr View scope = "collective";
  return {
      advanced(text(
          "SHOAL_COLLECTIVE_ALGORITHM", "", scope, &S::collective_algorithm,
          "How collectives in kernels and on streams move data; the same on all PEs. packets: "
          "small data travel with their epoch, whatever SHOAL_COLLECTIVE_PACKET_LIMIT says, but not "
          "in scopes of a kernel that take longer so; "
          "one_shot, two_shot: never as packets, and reductions in one or two steps (in place: "
          "two). automatic: by size.",
          {"automatic", "packets", "one_shot", "two_shot"})),
      advanced(number(
          "SHOAL_COLLECTIVE_PACKET_LIMIT", "", scope, &S::collective_packet_limit,
          "Largest data per PE that a collective of GPUs sends as packets, also limited by "
          "SHOAL_COLLECTIVE_SCRATCH: a quarter of it divided by the number of PEs, and where a "
          "scope of a kernel moves data, by 20 KiB (block), 6 KiB (warpgroup), 1.5 KiB (warp) or "
          "48 B (thread). The same on all PEs.",
          0, std::int64_t{1} << 30)),
      advanced(number(
          "SHOAL_COLLECTIVE_ONE_SHOT_LIMIT", "", scope, &S::collective_one_shot_limit,
          "Most bytes that a PE reads from other PEs in a reduction of one step; larger ones "
          "take two steps. The same on all PEs.",
          0, std::int64_t{1} << 40)),
      advanced(number(
          "SHOAL_COLLECTIVE_SCRATCH", "", scope, &S::collective_scratch,
          "Bytes of a heap in GPU memory for the packets of the world's team; the seven teams of "
          "lowest index after it have a quarter of that each. Together at most an eighth of the "
          "heap's first step. 0: no packets. The same on all PEs.",
          0, std::int64_t{1} << 30)),
      advanced(text(
          "SHOAL_COLLECTIVE_NCCL", "NVSHMEM_DISABLE_NCCL", scope, &S::collective_nccl,
          "Which large collectives on streams NCCL runs; the same on all PEs. automatic: those that "
          "it does faster, which are broadcasts from 1 MiB and reductions from 16 MiB on of teams of "
          "at least four PEs, if NCCL can be used. moves: broadcast, all-gather and all-to-all. all: "
          "also reductions. Sums by NCCL have NCCL's order. Reductions are those of the types and "
          "operators that NCCL has. Needs NCCL 2.19 and a GPU for each PE.",
          {"automatic", "off", "moves", "all"})),
      advanced(number(
          "SHOAL_COLLECTIVE_NCCL_FROM", "", scope, &S::collective_nccl_from,
          "Bytes from which collectives are large for SHOAL_COLLECTIVE_NCCL=moves and all: of the longer of "
          "the source and the target of a PE. The same on all PEs.",
          0, std::int64_t{1} << 40)),
      text("SHOAL_NCCL_LIBRARY", "", scope, &S::nccl_library,
           "The file of NCCL; the dynamic linker searches for a name without a slash."),
  };
}

std::vector<SettingInfo> ep_rows() {
  constexpr View scope = "ep";
  return {
      number(
          "SHOAL_EP_THREADS", "", scope, &S::ep_threads,
          "Threads of each PE that move and sum token rows on the host backend. 0: one; when rows "
          "of GPUs are staged through the host, the cores of a PE, at most 8.",
          0, 1024),
      number("SHOAL_EP_SMS", "", scope, &S::ep_sms,
             "Thread blocks (SMs) of a normal-mode kernel on the GPU backend. 0: automatic.", 0,
             1024),
      number("SHOAL_EP_CHUNK", "", scope, &S::ep_chunk,
             "Bytes per message between nodes in normal mode; the same on all PEs. Small chunks "
             "overlap more, large ones cost less each.",
             4096, std::int64_t{1} << 30),
      number("SHOAL_EP_DEPTH", "", scope, &S::ep_depth,
             "Chunks in flight to one other node in normal mode; the same on all PEs. 0: 16 where "
             "kernels send them, else 4. Kernels use 2 to 64.",
             0, 1024),
      text(
          "SHOAL_EP_BETWEEN_NODES", "", scope, &S::ep_between_nodes,
          "How groups in GPU memory move rows to ranks that NVLink does not reach; the same on all "
          "PEs. kernels: GPU kernels start the transfers of the modes that have such kernels, and a "
          "group that cannot have them is an error; staged: the host does, through its memory; "
          "automatic: kernels where possible.",
          {"automatic", "kernels", "staged"}),
  };
}

std::vector<SettingInfo> diagnosis_rows() {
  constexpr View scope = "diagnosis";
  return {
      text("SHOAL_LOG", "NVSHMEM_DEBUG", scope, &S::log,
           "Least severe log messages that are written. info adds versions, transports, NICs and "
           "sizes.",
           {"off", "error", "warn", "info", "debug", "trace"}),
      text("SHOAL_LOG_FILE", "NVSHMEM_DEBUG_FILE", scope, &S::log_file,
           "File for log messages, which otherwise go to standard error. %h is the host name, %p "
           "the process id, %% a percent sign. A new file, or one of this user: no symbolic link."),
      number("SHOAL_FLIGHT_ENTRIES", "", scope, &S::flight_entries,
             "Operations of each group that the flight recorder keeps in memory, 128 bytes each; "
             "the last ones. 0: none.",
             0, 1 << 20),
      text("SHOAL_FLIGHT_DIR", "", scope, &S::flight_dir,
           "Folder where each PE writes its flight record, shoal_flight_<PE>.json, when one of its "
           "groups or teams fails and on SHOAL_FLIGHT_SIGNAL. It must exist. Empty: nothing is "
           "written; shoal-info --live shows the records of running processes in any case."),
      text("SHOAL_FLIGHT_SIGNAL", "", scope, &S::flight_signal,
           "Signal on which a process writes the flight records of its PEs to SHOAL_FLIGHT_DIR and "
           "continues; of the first world of a process. The process's own handler of that signal "
           "is replaced.",
           {"none", "USR1", "USR2"}),
      text("SHOAL_METRICS", "", scope, &S::metrics,
           "Whether groups count rows, bytes, waits for each rank and latency histograms of "
           "phases, and worlds collectives and waits for each PE (docs/guide/observability.md). On "
           "GPUs the kernels of normal mode count. all: those of low-latency mode, one-sided "
           "operations and times of collectives, too. host: no kernels. Group::statistics counts "
           "on the host in any case.",
           {"on", "all", "host", "off"}),
      number("SHOAL_METRICS_INTERVAL_MS", "", scope, &S::metrics_interval,
             "Milliseconds between two copies of what kernels on GPUs count to the record. "
             "0: only when the process itself reads its record.",
             0, 3600 * 1000),
      text("SHOAL_NVTX", "NVSHMEM_NVTX", scope, &S::nvtx,
           "Whether operations of groups are NVTX ranges (domain shoal) where a profiler is "
           "attached.",
           {"on", "off"}),
  };
}

std::vector<SettingInfo> all_rows() {
  std::vector<SettingInfo> rows;
  for (auto* part : {bootstrap_rows, world_rows, transport_rows, verbs_rows, progress_rows,
                     nic_rows, collective_rows, ep_rows, diagnosis_rows}) {
    std::vector<SettingInfo> more = part();
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

}  // namespace

std::span<const SettingInfo> settings_table() {
  static const std::vector<SettingInfo> rows = all_rows();
  return rows;
}

}  // namespace shoal
