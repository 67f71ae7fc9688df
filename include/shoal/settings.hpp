// SPDX-License-Identifier: Apache-2.0
// shoal/settings.hpp: every setting of Shoal, as one struct and one table.
//
//   shoal::Settings settings = shoal::Settings::from_environment();
//   settings.symmetric_size = std::size_t{2} << 30;
//   shoal::World world = shoal::World::open({.settings = settings});
//
// A Settings value holds the defaults. Settings::from_environment is the only place in Shoal that
// reads the environment. settings_table gives each field its SHOAL_* name, the NVSHMEM_* name that
// is accepted instead, its allowed range and its meaning; docs/reference/settings.md is generated
// from it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <shoal/config.hpp>

namespace shoal {

/// The value of every setting; settings_table describes the fields.
struct Settings {
  // Bootstrap, by which PEs find each other.
  std::string bootstrap = "automatic";
  std::string bootstrap_plugin;
  std::int64_t pe = -1;
  std::int64_t n_pes = -1;
  std::string unique_id;
  std::string session_id;
  std::int64_t session_root = 0;
  std::string session_secret;
  std::string socket_interface;
  std::string socket_family = "any";
  std::chrono::milliseconds bootstrap_timeout{60'000};

  // Identity of the host: PEs with equal values count as one host.
  std::string host_id;
  std::int64_t node_size = 0;

  // Memory and teams.
  std::size_t symmetric_size = std::size_t{8} << 30;
  std::string heap = "host";
  std::int64_t device = -1;
  std::string cuda_handle = "automatic";
  std::size_t staging_size = std::size_t{4} << 30;
  std::size_t staged_chunk = std::size_t{512} << 10;
  std::int64_t staged_depth = 8;
  std::int64_t max_teams = 512;

  // Waiting.
  std::chrono::milliseconds timeout{30'000};
  std::chrono::milliseconds warn_after{60'000};
  std::int64_t spin = 100;

  // Transports that carry operations between PEs.
  std::string transport_inside = "automatic";
  std::string transport_between = "automatic";
  std::string ofi_provider = "automatic";
  std::string ofi_gpu_memory = "automatic";
  std::string ucx_tls;
  std::string verbs_library = "libibverbs.so.1";
  std::string verbs_interface = "verbs";
  std::string verbs_mlx5_library = "libmlx5.so.1";
  std::int64_t verbs_queue_pairs = 1;
  std::string verbs_queue_order = "rotated";
  std::int64_t verbs_depth = 512;
  std::int64_t verbs_inline = 128;
  std::int64_t verbs_signal_interval = 1;
  std::int64_t verbs_retries = 6;
  std::int64_t verbs_timeout = 16;
  std::int64_t verbs_gid_index = -1;
  std::int64_t verbs_service_level = 0;
  std::int64_t verbs_traffic_class = 0;
  std::string verbs_gpu_memory = "automatic";
  std::string gda = "off";
  std::int64_t gda_queue_pairs = 0;
  std::int64_t network_depth = 256;
  std::size_t network_chunk = std::size_t{1} << 20;
  std::string progress_wait = "yield";
  std::int64_t progress_core = -1;
  std::int64_t proxy_slots = 1024;
  std::int64_t proxy_core = -1;
  std::string plugin_dir;

  // NICs that a PE uses.
  std::string nic_list;
  std::int64_t nic_round_robin = 0;
  std::string nic_mapping;
  std::int64_t local_index = -1;
  std::int64_t local_size = 0;

  // Collectives of GPUs.
  std::string collective_algorithm = "automatic";
  std::size_t collective_packet_limit = std::size_t{256} << 10;
  std::size_t collective_one_shot_limit = std::size_t{256} << 10;
  std::size_t collective_scratch = std::size_t{2} << 20;
  std::string collective_nccl = "automatic";
  std::size_t collective_nccl_from = std::size_t{32} << 20;
  std::string nccl_library = "libnccl.so.2";

  // Expert parallelism.
  std::int64_t ep_threads = 0;
  std::int64_t ep_sms = 0;
  std::size_t ep_chunk = std::size_t{512} << 10;
  std::int64_t ep_depth = 0;
  std::string ep_between_nodes = "automatic";

  // Diagnosis.
  std::string log = "warn";
  std::string log_file;
  std::int64_t flight_entries = 256;
  std::string flight_dir;
  std::string flight_signal = "none";
  std::string metrics = "on";
  std::chrono::milliseconds metrics_interval{1000};
  std::string nvtx = "on";

  /// The launcher's environment variables (PMI_RANK, RANK, ...) by name, which from_environment
  /// reads for bootstrap "automatic". Empty, as in Settings(): this process belongs to no
  /// launcher's job; a bootstrap that is selected by name then reads the environment itself.
  std::map<std::string, std::string> launcher;

  /// SHOAL_* and NVSHMEM_* variables that have no effect, one sentence each, as from_environment
  /// found them. The first world of the process that opens with these settings logs them.
  std::vector<std::string> environment_warnings;

  /// The defaults, overridden by the SHOAL_* variables that are set, or by their NVSHMEM_* aliases
  /// when only those are set. Throws Error{invalid_argument} naming the variable, its value and the
  /// allowed form.
  [[nodiscard]] static Settings from_environment();

  /// Does what from_environment does, with `lookup` instead of the environment (nullopt: not set).
  /// For tests and tools.
  [[nodiscard]] static Settings from(
      const std::function<std::optional<std::string>(const std::string&)>& lookup);

  /// The value of the field `launcher` in from_environment.
  [[nodiscard]] static std::map<std::string, std::string> launcher_environment();

  /// True if the symmetric heap is in GPU memory (SHOAL_HEAP=cuda).
  [[nodiscard]] bool heap_on_gpu() const noexcept { return heap == "cuda"; }

  /// Checks every field against the table, for programs that fill fields by hand. Throws as
  /// from_environment.
  void validate() const;
};

/// One row of the table.
struct SettingInfo {
  using Field = std::variant<std::int64_t Settings::*, std::size_t Settings::*,
                             std::chrono::milliseconds Settings::*, std::string Settings::*>;
  std::string_view name;   ///< SHOAL_...
  std::string_view alias;  ///< NVSHMEM_... accepted in its place; several: a space between them
  std::string_view scope;  ///< bootstrap, world, network, collective, ep, diagnosis
  Field field;  ///< its type determines the form: integer, bytes ("64M"), milliseconds, text
  std::string_view meaning;  ///< one sentence
  std::int64_t minimum = 0;  ///< for numbers
  std::int64_t maximum = std::numeric_limits<std::int64_t>::max();
  /// For text: the allowed values; "x:" stands for x: and any text; empty: free text.
  std::vector<std::string_view> choices = {};
  bool secret = false;    ///< its value is never printed
  bool advanced = false;  ///< for measurements: the default suits all programs
};

/// All settings, in the order of the documentation.
[[nodiscard]] std::span<const SettingInfo> settings_table();

/// "integer", "bytes", "milliseconds" or "text".
[[nodiscard]] std::string_view type_of(const SettingInfo& info);

/// The effect of an environment variable.
enum class VariableUse : std::uint8_t {
  used,     ///< sets a setting, is read by an interface, or asks for what Shoal does anyway
  ignored,  ///< no effect: Shoal has no equivalent, or another variable takes precedence
  unknown,  ///< not a variable of Shoal, NVSHMEM or DeepEP: probably misspelt
};
struct EnvironmentVariable {
  std::string name;
  VariableUse use = VariableUse::used;
  std::string setting;  ///< the SHOAL_* settings that it corresponds to, as "A, B"; empty: none
  std::string note;     ///< why it has no effect, or what its value cannot express; empty: nothing
};

/// The variables of this process that are meant for Shoal, NVSHMEM or DeepEP, by name.
[[nodiscard]] std::vector<EnvironmentVariable> inspect_environment();
/// The entries of `variables` (name to value) that are meant for Shoal, NVSHMEM or DeepEP. For
/// tests and tools.
[[nodiscard]] std::vector<EnvironmentVariable> inspect_environment(
    const std::map<std::string, std::string>& variables);
/// One sentence for each variable that does not do what its user may expect. The variables of
/// NVSHMEM without an equivalent share one, and those of DeepEP another.
[[nodiscard]] std::vector<std::string> environment_warnings(
    std::span<const EnvironmentVariable> variables);

/// The value of one row, as the user would write it. Secrets print as "(set)" or "(not set)".
[[nodiscard]] std::string format_value(const SettingInfo& info, const Settings& settings);

/// Parses "512", "64K", "1.5G": a number with an optional K, M, G, T (powers of 1024) and optional
/// B or iB. nullopt when malformed, negative, or above 2^63 - 1.
[[nodiscard]] std::optional<std::size_t> parse_bytes(std::string_view text);

}  // namespace shoal
