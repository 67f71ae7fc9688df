// SPDX-License-Identifier: Apache-2.0
// shoal/bootstrap.hpp: how PEs find each other.
//
// A Bootstrap is a small control plane among the PEs of one world: their number, an all-gather, a
// barrier and an abort. World::open uses it during startup; afterwards it stays open so that an
// abort reaches all PEs. Implementations here: UniqueId over TCP, and threads of one process.
// Launchers provide plug-ins (shoal/bootstrap_plugin.h); shoal/mpi.hpp takes MPI communicators. A
// program may also implement the interface. docs/internals/bootstrap.md compares all of them.
//
//   shoal::UniqueId id = shoal::UniqueId::create();      // in one process
//   const std::string text = id.to_string();             // pass it to all PEs; it is a secret
//   shoal::World world = shoal::World::open(             // on each PE
//       {settings, shoal::connect_unique_id(shoal::UniqueId::parse(text), pe, n_pes, settings)});
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/error.hpp>
#include <shoal/settings.hpp>

namespace shoal {

/// The control plane of one PE. One thread at a time makes calls, except abort and aborted, which
/// any thread may call.
///
/// all_gather and barrier are collective: every PE makes them in the same order. `step` names the
/// call in error messages ("heap", "connectivity"). They end within the timeout: with the result;
/// Error{timeout} naming the PEs that did not come; Error{peer_failed} naming the PE that ended or
/// aborted, and its message; or Error{mismatch} when PEs made different calls.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  [[nodiscard]] virtual std::int32_t pe() const noexcept = 0;
  [[nodiscard]] virtual std::int32_t n_pes() const noexcept = 0;

  /// The contributions of all PEs, by PE. They may differ in length; each has at most 16 MiB.
  [[nodiscard]] virtual std::vector<std::vector<std::byte>> all_gather(
      std::span<const std::byte> mine, std::string_view step) = 0;

  /// Returns when every PE has called.
  virtual void barrier(std::string_view step) = 0;

  /// Reports that this PE has failed: pending and later calls of the other PEs throw
  /// Error{peer_failed} with `reason`.
  virtual void abort(const std::string& reason) noexcept = 0;

  /// "PE 3: reason" when another PE has aborted or ended. Does not block; cheap enough for the slow
  /// path of a wait loop.
  [[nodiscard]] virtual std::optional<std::string> aborted() noexcept = 0;

  /// Ends the control plane in order: the end of this process is no failure afterwards. Idempotent.
  virtual void close() noexcept = 0;
};

/// The name of a world, to be passed between processes by any means: an address and a key of 32
/// random bytes.
///
/// create() starts a root on a thread of the calling process, which serves one world and ends with
/// it. The caller may be any PE, or no PE (the root of shoal-run is in the launcher). Keep the
/// object until all PEs have opened the world.
class UniqueId {
 public:
  /// Opens a listening socket on an interface chosen by settings.socket_interface and
  /// socket_family. Throws Error{unsupported} when no interface fits, listing those that exist.
  [[nodiscard]] static UniqueId create(const Settings& settings = {});

  /// The text form, "shoal1:<host>:<port>:<key in hex>", for files and environment variables. It is
  /// a secret: keep it off command lines, which other users of the machine can read.
  [[nodiscard]] std::string to_string() const;
  /// The id that to_string wrote as `text`. Throws Error{invalid_argument} stating the form.
  [[nodiscard]] static UniqueId parse(std::string_view text);

  std::string host;  ///< numeric address, IPv6 in brackets
  int port = 0;
  std::vector<std::byte> key;  ///< 32 bytes

 private:
  std::shared_ptr<void> root_;  // keeps the root's thread alive in the process that created the id
};

/// Joins the world named `id` as PE `pe` of `n_pes`. Collective. Throws as Bootstrap's collective
/// calls; Error{mismatch} when PEs pass different n_pes; Error{invalid_argument} for a PE that is
/// out of range or taken.
[[nodiscard]] std::unique_ptr<Bootstrap> connect_unique_id(const UniqueId& id, std::int32_t pe,
                                                           std::int32_t n_pes,
                                                           const Settings& settings);

/// Joins the world of a session: connect_unique_id without an id. settings.session_id is the
/// address, where PE settings.session_root listens; the key is derived from it and
/// settings.session_secret.
[[nodiscard]] std::unique_ptr<Bootstrap> connect_session(std::int32_t pe, std::int32_t n_pes,
                                                         const Settings& settings);

/// Joins a world of PEs that can already pass a text from PE 0 to all others: by MPI
/// (shoal/mpi.hpp), a launcher's plug-in (shoal/bootstrap_plugin.h) or any other means.
///
/// PE 0 creates the id. `broadcast` is called once on every PE, with the text on PE 0 and an empty
/// one elsewhere, and returns PE 0's text on all. The text has at most 255 letters, digits and
/// . : [ ] % _ -; it is a secret. When PE 0 cannot create an id, all PEs fail with its reason.
/// Worlds with different PEs may be opened one after another and live at the same time.
[[nodiscard]] std::unique_ptr<Bootstrap> connect_by_broadcast(
    std::int32_t pe, std::int32_t n_pes,
    const std::function<std::string(const std::string&)>& broadcast, const Settings& settings);

/// A control plane for `n_pes` threads of this process. Element i is for PE i and its thread only.
[[nodiscard]] std::vector<std::unique_ptr<Bootstrap>> thread_bootstraps(
    std::int32_t n_pes, const Settings& settings = {});

/// A world of one PE.
[[nodiscard]] std::unique_ptr<Bootstrap> single_bootstrap();

/// The bootstrap that settings.bootstrap names or, for "automatic", the one that the settings or
/// the launcher (settings.launcher) provide for. Throws Error{invalid_argument} when it needs a pe,
/// n_pes or id that is missing, and Error{unsupported} when its plug-in is not installed.
[[nodiscard]] std::unique_ptr<Bootstrap> make_bootstrap(const Settings& settings);

}  // namespace shoal
