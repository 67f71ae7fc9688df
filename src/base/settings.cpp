// SPDX-License-Identifier: Apache-2.0
#include "shoal/settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "shoal/error.hpp"

namespace shoal {
namespace {

constexpr std::int64_t kOneDayMs = 24LL * 3600 * 1000;

/// What launchers tell the processes that they start; bootstrap/launcher/launcher.cpp knows what it
/// means.
constexpr std::string_view kLauncherVariables[] = {
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMIX_NAMESPACE",
    "PMIX_RANK",  // Open MPI
    "PMI_FD",
    "PMI_RANK",
    "PMI_SIZE",
    "HYDI_CONTROL_FD",  // hydra
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",  // Slurm
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",  // torch
};

const std::vector<SettingInfo>& table() {
  static const std::vector<SettingInfo> rows = {
      {"SHOAL_BOOTSTRAP",
       "NVSHMEM_BOOTSTRAP",
       "bootstrap",
       &Settings::bootstrap,
       "How PEs find each other (docs/internals/bootstrap.md): uid (SHOAL_UNIQUE_ID or SHOAL_SESSION_ID), mpi, shmem "
       "(OpenSHMEM), "
       "pmi (PMI-1), pmi2, pmix, torch (torchrun's variables), plugin:FILE (a library of your own), single (one PE); "
       "automatic: as shoal-run or the launcher that started this process offers, else single.",
       0,
       0,
       {"automatic", "uid", "single", "mpi", "shmem", "pmi", "pmi2", "pmix", "torch", "plugin",
        "plugin:"}},
      {"SHOAL_BOOTSTRAP_PLUGIN", "NVSHMEM_BOOTSTRAP_PLUGIN", "bootstrap",
       &Settings::bootstrap_plugin, "The library that SHOAL_BOOTSTRAP=plugin stands for."},
      {"SHOAL_PE", "", "bootstrap", &Settings::pe,
       "Index of this PE, from 0; set by shoal-run. -1: not set.", -1, 1'000'000},
      {"SHOAL_N_PES", "", "bootstrap", &Settings::n_pes,
       "Number of PEs of the world; set by shoal-run. -1: not set.", -1, 1'000'000},
      {"SHOAL_UNIQUE_ID",
       "",
       "bootstrap",
       &Settings::unique_id,
       "Unique id of the world as text (address, key); made by UniqueId::create and by shoal-run.",
       0,
       0,
       {},
       true},
      {"SHOAL_SESSION_ID", "NVSHMEM_BOOTSTRAP_UID_SESSION_ID", "bootstrap", &Settings::session_id,
       "host:port or [ipv6]:port where the root of the bootstrap listens, so that no unique id need be distributed."},
      {"SHOAL_SESSION_ROOT", "", "bootstrap", &Settings::session_root,
       "The PE that listens at SHOAL_SESSION_ID.", 0, 1'000'000},
      {"SHOAL_SESSION_SECRET",
       "",
       "bootstrap",
       &Settings::session_secret,
       "Text from which the key of a SHOAL_SESSION_ID world is derived; the same on all PEs.",
       0,
       0,
       {},
       true},
      {"SHOAL_SOCKET_INTERFACE", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "bootstrap",
       &Settings::socket_interface,
       "Network interfaces for the bootstrap, in order: comma list of name prefixes; =name is exact; a leading ^ "
       "excludes the whole list."},
      {"SHOAL_SOCKET_FAMILY",
       "NVSHMEM_BOOTSTRAP_UID_SOCK_FAMILY",
       "bootstrap",
       &Settings::socket_family,
       "Address family of the bootstrap.",
       0,
       0,
       {"any", "AF_INET", "AF_INET6"}},
      {"SHOAL_BOOTSTRAP_TIMEOUT_MS", "", "bootstrap", &Settings::bootstrap_timeout,
       "How long a PE waits for the others in each step of the start.", 1, kOneDayMs},
      {"SHOAL_HOST_ID", "", "world", &Settings::host_id,
       "Overrides the identity of this host (default: machine id and boot id). PEs with equal ids share memory."},
      {"SHOAL_NODE_SIZE", "", "world", &Settings::node_size,
       "Splits each host into emulated nodes of this many PEs, for tests; 0: no split.", 0,
       1'000'000},
      {"SHOAL_SYMMETRIC_SIZE", "NVSHMEM_SYMMETRIC_SIZE", "world", &Settings::symmetric_size,
       "Size of the symmetric heap of each PE. Memory is taken only when it is needed: on the host page by page, on "
       "GPUs in steps of 64 MiB.",
       1 << 20, std::int64_t{1} << 46},
      {"SHOAL_HEAP",
       "",
       "world",
       &Settings::heap,
       "Where the symmetric heap lies; the same on all PEs.",
       0,
       0,
       {"host", "cuda"}},
      {"SHOAL_DEVICE", "", "world", &Settings::device,
       "GPU of this PE where SHOAL_HEAP is cuda, as CUDA numbers them; several PEs may share one. -1: the index of the "
       "PE on its host, modulo the number of GPUs.",
       -1, 1023},
      {"SHOAL_CUDA_HANDLE",
       "",
       "world",
       &Settings::cuda_handle,
       "How processes give each other GPU memory: fd, file descriptors inside a host; fabric, handles that also work "
       "between the hosts of one NVLink domain; ipc, CUDA IPC, which takes the whole heap at once; automatic: fd, or "
       "fabric where PEs are on several hosts and all GPUs can, or ipc where some GPU can do neither.",
       0,
       0,
       {"automatic", "fd", "fabric", "ipc"}},
      {"SHOAL_STAGING_SIZE", "", "world", &Settings::staging_size,
       "Host memory of each PE through which expert-parallel groups in GPU memory reach other nodes. Taken page by "
       "page when it is needed; the same on all PEs.",
       1 << 20, std::int64_t{1} << 46},
      {"SHOAL_STAGED_CHUNK", "", "world", &Settings::staged_chunk,
       "Chunk of pinned host memory in which operations on heaps in GPU memory go where no GPU reaches the other's; "
       "each PE has two for each request of SHOAL_STAGED_DEPTH, taken when they are needed. The same on all PEs.",
       4096, 1 << 30},
      {"SHOAL_STAGED_DEPTH", "", "world", &Settings::staged_depth,
       "Requests of that kind that a PE may have under way to one other PE, and chunks to all of them; further ones "
       "wait in the call. The same on all PEs.",
       1, 1024},
      {"SHOAL_MAX_TEAMS", "NVSHMEM_MAX_TEAMS", "world", &Settings::max_teams,
       "Teams that may exist at once, predefined ones included.", 8, 65'536},
      {"SHOAL_TIMEOUT_MS", "", "world", &Settings::timeout,
       "How long any wait for another PE lasts before it fails with a report.", 1, kOneDayMs},
      {"SHOAL_SPIN", "", "world", &Settings::spin,
       "Polls before a waiting thread yields its core. Raise it when every PE has a core of its own.",
       0, 1'000'000'000},
      {"SHOAL_TRANSPORT_INSIDE", "", "network", &Settings::transport_inside,
       "Transports between PEs of one node, first choice first: comma list of shm, ofi, ucx, and for heaps in GPU "
       "memory cuda_p2p, staged; automatic: all of them in that order."},
      {"SHOAL_TRANSPORT_BETWEEN", "NVSHMEM_REMOTE_TRANSPORT", "network",
       &Settings::transport_between,
       "Transports between PEs of different nodes, first choice first: comma list of shm (emulated nodes of one host), "
       "ofi (or libfabric), ucx, and for heaps in GPU memory cuda_p2p, staged; automatic: all of them in that order. A "
       "network's library is loaded when a pair of PEs needs it."},
      {"SHOAL_OFI_PROVIDER", "NVSHMEM_LIBFABRIC_PROVIDER", "network", &Settings::ofi_provider,
       "Provider of libfabric, such as tcp;ofi_rxm, efa, verbs;ofi_rxm, cxi, shm; automatic: the first of efa, cxi, "
       "verbs;ofi_rxm and tcp;ofi_rxm that offers what is needed."},
      {"SHOAL_UCX_TLS", "", "network", &Settings::ucx_tls,
       "Transports that UCX may use, as its own UCX_TLS; empty: UCX decides, without shared memory."},
      {"SHOAL_NETWORK_DEPTH", "", "network", &Settings::network_depth,
       "Requests that a PE may have in flight to one other PE; further ones wait in the call.", 1,
       65'536},
      {"SHOAL_NETWORK_CHUNK", "", "network", &Settings::network_chunk,
       "Longer transfers over a network are cut into requests of this size, or of what the network allows.",
       4096, std::int64_t{1} << 40},
      {"SHOAL_PROGRESS_WAIT",
       "",
       "network",
       &Settings::progress_wait,
       "What a network's progress thread does when there is nothing to do: spin, yield its core, or sleep (for up to "
       "50 us).",
       0,
       0,
       {"spin", "yield", "sleep"}},
      {"SHOAL_PROGRESS_CORE", "", "network", &Settings::progress_core,
       "Core that the progress thread of the first PE of a host is bound to, those of the others to the next ones. -1: "
       "not bound.",
       -1, 1'000'000},
      {"SHOAL_PLUGIN_DIR", "", "network", &Settings::plugin_dir,
       "Folder with Shoal's own plug-ins (network transports, bootstraps). Empty: the folder shoal beside libshoal."},
      {"SHOAL_NIC_LIST", "NVSHMEM_HCA_LIST", "network", &Settings::nic_list,
       "NIC ports that may be used, first choice first: comma list of name or name:port; a leading ^ excludes the "
       "whole list. Empty: automatic."},
      {"SHOAL_NIC_ROUND_ROBIN", "NVSHMEM_ENABLE_NIC_PE_MAPPING", "network",
       &Settings::nic_round_robin,
       "1: PE i of a host takes port i modulo their number, in the order of SHOAL_NIC_LIST; 0: by distance.",
       0, 1},
      {"SHOAL_NIC_MAPPING", "NVSHMEM_HCA_PE_MAPPING", "network", &Settings::nic_mapping,
       "NIC ports dealt out to the PEs of a host in order: comma list of name, name:port or name:port:count, where "
       "count PEs in a row share the port. Not together with SHOAL_NIC_LIST or SHOAL_NIC_ROUND_ROBIN."},
      {"SHOAL_LOCAL_INDEX", "", "network", &Settings::local_index,
       "Index of this PE among all PEs of its host, those of other jobs included, for the NIC plan of PEs whose heap "
       "is not in GPU memory. -1: its index among the PEs of its world on this host.",
       -1, 1'000'000},
      {"SHOAL_LOCAL_SIZE", "", "network", &Settings::local_size,
       "How many PEs all jobs together have on a host without GPUs, for the NIC plan. 0: as many as the world has "
       "there.",
       0, 1'000'000},
      {"SHOAL_EP_THREADS", "", "ep", &Settings::ep_threads,
       "Threads of each PE that move and sum token rows on the host backend. 0: automatic: 1, or where rows of GPUs go "
       "through the host the cores of a PE, at most 8.",
       0, 1024},
      {"SHOAL_EP_SMS", "", "ep", &Settings::ep_sms,
       "Thread blocks (SMs) of a normal-mode kernel on the GPU backend; 0: automatic.", 0, 1024},
      {"SHOAL_EP_TUNING", "", "ep", &Settings::ep_tuning,
       "For measurements: how normal-mode kernels on GPUs are laid out, such as dispatch=7x2,combine=16x3x512x8 (warps "
       "x rows in flight; warps x stages x bytes of a chunk x chunks of a segment)."},
      {"SHOAL_EP_CHUNK", "", "ep", &Settings::ep_chunk,
       "Bytes that travel between nodes at a time in normal mode; the same on all PEs. Small chunks overlap more, "
       "large ones cost less each.",
       4096, std::int64_t{1} << 30},
      {"SHOAL_EP_DEPTH", "", "ep", &Settings::ep_depth,
       "Chunks that a PE may have on their way to one other node in normal mode; the same on all PEs. With 4 one is "
       "sent while another travels and a third is read.",
       1, 1024},
      {"SHOAL_LOG",
       "NVSHMEM_DEBUG",
       "diagnosis",
       &Settings::log,
       "Least severe log messages shown on standard error.",
       0,
       0,
       {"off", "error", "warn", "info", "debug", "trace"}},
      {"SHOAL_LOG_FILE", "NVSHMEM_DEBUG_FILE", "diagnosis", &Settings::log_file,
       "File for log messages in place of standard error; %h is the host name, %p the process id."},
  };
  return rows;
}

[[noreturn]] void reject(std::string_view variable, std::string_view value,
                         const std::string& allowed) {
  throw Error(Code::invalid_argument,
              fmt::format("{} is \"{}\"; allowed: {}", variable, value, allowed));
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return out;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::string range_of(const SettingInfo& info, std::string_view unit) {
  return fmt::format("{} from {} to {}", unit, info.minimum, info.maximum);
}

std::int64_t parse_number(const SettingInfo& info, std::string_view variable, std::string_view text,
                          std::string_view unit, std::optional<std::int64_t> value) {
  if (!value || *value < info.minimum || *value > info.maximum)
    reject(variable, text, range_of(info, unit));
  return *value;
}

std::string shown(std::string_view choice) {
  return choice.ends_with(':') ? fmt::format("{}TEXT", choice) : std::string(choice);
}

/// `text` as the table writes it (letter case), or nullopt when it is none of the choices.
std::optional<std::string> choose(const SettingInfo& info, std::string_view text) {
  if (info.choices.empty()) return std::string(text);
  for (const std::string_view choice : info.choices) {
    const bool open = choice.ends_with(':') && text.size() > choice.size();
    const std::string_view head = open ? text.substr(0, choice.size()) : text;
    if (choice.ends_with(':') == open && lower(head) == lower(choice))
      return fmt::format("{}{}", choice, text.substr(head.size()));
  }
  return std::nullopt;
}

void check_choice(const SettingInfo& info, std::string_view variable, const std::string& text) {
  if (choose(info, text) == text) return;
  std::vector<std::string> allowed;
  for (const std::string_view choice : info.choices) allowed.push_back(shown(choice));
  reject(variable, text, fmt::format("one of {}", fmt::join(allowed, ", ")));
}

void assign(const SettingInfo& info, Settings& settings, std::string_view variable,
            const std::string& text) {
  if (auto* field = std::get_if<std::int64_t Settings::*>(&info.field)) {
    settings.** field = parse_number(info, variable, text, "an integer", parse_integer(text));
  } else if (auto* bytes = std::get_if<std::size_t Settings::*>(&info.field)) {
    auto value = parse_bytes(text);
    settings.** bytes = static_cast<std::size_t>(
        parse_number(info, variable, text, "bytes such as 512M or 2G,",
                     value ? std::optional<std::int64_t>(*value) : std::nullopt));
  } else if (auto* time = std::get_if<std::chrono::milliseconds Settings::*>(&info.field)) {
    settings.** time = std::chrono::milliseconds(
        parse_number(info, variable, text, "milliseconds", parse_integer(text)));
  } else {
    const auto choice = choose(info, text);
    if (!choice) check_choice(info, variable, text);
    settings.*std::get<std::string Settings::*>(info.field) = *choice;
  }
}

using Lookup = std::function<std::optional<std::string>(const std::string&)>;

std::optional<std::string> environment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::map<std::string, std::string> launcher_variables(const Lookup& lookup) {
  std::map<std::string, std::string> found;
  for (const std::string_view variable : kLauncherVariables)
    if (auto text = lookup(std::string(variable))) found[std::string(variable)] = *text;
  return found;
}

}  // namespace

std::span<const SettingInfo> settings_table() {
  return table();
}

std::string_view type_of(const SettingInfo& info) {
  constexpr std::string_view names[] = {"integer", "bytes", "milliseconds", "text"};
  return names[info.field.index()];
}

std::string format_value(const SettingInfo& info, const Settings& settings) {
  if (auto* field = std::get_if<std::int64_t Settings::*>(&info.field))
    return std::to_string(settings.**field);
  if (auto* time = std::get_if<std::chrono::milliseconds Settings::*>(&info.field))
    return std::to_string((settings.**time).count());
  if (auto* bytes = std::get_if<std::size_t Settings::*>(&info.field)) {
    std::size_t value = settings.**bytes;
    constexpr std::string_view units[] = {"", "K", "M", "G", "T"};
    std::size_t unit = 0;
    while (unit < 4 && value != 0 && value % 1024 == 0) value /= 1024, ++unit;
    return fmt::format("{}{}", value, units[unit]);
  }
  const std::string& text = settings.*std::get<std::string Settings::*>(info.field);
  if (info.secret) return text.empty() ? "(not set)" : "(set)";
  return text;
}

std::optional<std::size_t> parse_bytes(std::string_view text) {
  std::size_t digits = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) || text[digits] == '.'))
    ++digits;
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + digits, value);
  if (digits == 0 || error != std::errc{} || end != text.data() + digits) return std::nullopt;
  std::string unit = lower(text.substr(digits));
  if (unit.ends_with("ib")) unit.resize(unit.size() - 2);
  if (unit.ends_with("b")) unit.resize(unit.size() - 1);
  constexpr std::string_view units = "kmgt";
  if (unit.size() > 1 || (unit.size() == 1 && units.find(unit[0]) == std::string_view::npos))
    return std::nullopt;
  if (unit.size() == 1) value = std::ldexp(value, 10 * (static_cast<int>(units.find(unit[0])) + 1));
  value = std::ceil(value);
  if (!(value < 0x1p63)) return std::nullopt;
  return static_cast<std::size_t>(value);
}

Settings Settings::from(
    const std::function<std::optional<std::string>(const std::string&)>& lookup) {
  Settings settings;
  for (const SettingInfo& info : table()) {
    for (std::string_view variable : {info.name, info.alias}) {
      if (variable.empty()) continue;
      if (auto text = lookup(std::string(variable))) {
        assign(info, settings, variable, *text);
        break;
      }
    }
  }
  settings.launcher = launcher_variables(lookup);
  return settings;
}

Settings Settings::from_environment() {
  return from(environment);
}

std::map<std::string, std::string> Settings::launcher_environment() {
  return launcher_variables(environment);
}

void Settings::validate() const {
  for (const SettingInfo& info : table()) {
    if (auto* field = std::get_if<std::int64_t Settings::*>(&info.field)) {
      parse_number(info, info.name, std::to_string(this->**field), "an integer", this->**field);
    } else if (auto* bytes = std::get_if<std::size_t Settings::*>(&info.field)) {
      parse_number(info, info.name, std::to_string(this->**bytes), "bytes",
                   static_cast<std::int64_t>(this->**bytes));
    } else if (auto* time = std::get_if<std::chrono::milliseconds Settings::*>(&info.field)) {
      parse_number(info, info.name, std::to_string((this->**time).count()), "milliseconds",
                   (this->**time).count());
    } else {
      check_choice(info, info.name, this->*std::get<std::string Settings::*>(info.field));
    }
  }
}

}  // namespace shoal
