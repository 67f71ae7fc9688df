// SPDX-License-Identifier: Apache-2.0
// shoal/bootstrap.hpp: how PEs find each other.
//
// A Bootstrap is a small control plane among the PEs of one world: their number, an all-gather, a
// barrier and an abort. World::open uses it while it starts; after that it is kept open only so
// that an abort reaches everybody. Implementations here: UniqueId over TCP (requirement D7) and
// threads of one process. Launchers come in as plug-ins (shoal/bootstrap_plugin.h), MPI
// communicators by shoal/mpi.hpp; docs/internals/bootstrap.md shows all ways. A program can also implement
// the interface itself.
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

/// The control plane of one PE. All calls are made by one thread at a time, except abort and
/// aborted, which any thread may call.
///
/// Collective calls are made by every PE in the same order. `step` names the call in error messages
/// ("heap", "connectivity"). Every collective call ends within the timeout: with its result, with
/// Error{timeout} naming the PEs that did not come, with Error{peer_failed} naming the PE that
/// ended or aborted and its message, or with Error{mismatch} when PEs made different calls.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  virtual std::int32_t pe() const noexcept = 0;
  virtual std::int32_t n_pes() const noexcept = 0;

  /// Everybody's contribution, indexed by PE. Contributions may differ in length; each is at most
  /// 16 MiB.
  virtual std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine,
                                                         std::string_view step) = 0;

  /// Returns when every PE has called.
  virtual void barrier(std::string_view step) = 0;

  /// Tells all other PEs that this one failed; their pending and later calls throw
  /// Error{peer_failed} with `reason`.
  virtual void abort(const std::string& reason) noexcept = 0;

  /// "PE 3: reason" when some other PE has aborted or ended. Does not block; cheap enough for a
  /// slow path of a wait loop.
  virtual std::optional<std::string> aborted() noexcept = 0;

  /// Ends the control plane in order: after close, the end of this process is not taken for a
  /// failure. Idempotent.
  virtual void close() noexcept = 0;
};

/// Name of a world that can be handed from one process to others by any means: an address and a
/// key, 32 random bytes.
///
/// create() starts a root in the calling process, on a thread of its own: it serves one world and
/// ends with it. The caller need not be PE 0, nor a PE at all (shoal-run's root lives in the
/// launcher).
class UniqueId {
 public:
  /// Opens a listening socket on an interface chosen by settings.socket_interface and
  /// socket_family. Throws Error{unsupported} when no interface fits, listing those that exist.
  static UniqueId create(const Settings& settings = {});

  /// The text form, "shoal1:<host>:<port>:<key in hex>", for files, environment variables and
  /// command lines. It is a secret.
  std::string to_string() const;
  static UniqueId parse(
      std::string_view text);  ///< Throws Error{invalid_argument} stating the form.

  std::string host;  ///< numeric address, IPv6 in brackets
  int port = 0;
  std::vector<std::byte> key;  ///< 32 bytes

 private:
  std::shared_ptr<void> root_;  // keeps the root's thread alive in the process that created the id
};

/// Joins the world named `id` as PE `pe` of `n_pes`. Collective. Throws as Bootstrap's collective
/// calls do; also Error{mismatch} when PEs give different n_pes, and Error{invalid_argument} for a
/// PE index that is out of range or taken.
std::unique_ptr<Bootstrap> connect_unique_id(const UniqueId& id, std::int32_t pe,
                                             std::int32_t n_pes, const Settings& settings);

/// As connect_unique_id, with the address given by settings.session_id and the key derived from it
/// and settings.session_secret; PE settings.session_root listens there.
std::unique_ptr<Bootstrap> connect_session(std::int32_t pe, std::int32_t n_pes,
                                           const Settings& settings);

/// As connect_unique_id, for PEs that can already hand a text from PE 0 to all others: by MPI
/// (shoal/mpi.hpp), a launcher's plug-in (shoal/bootstrap_plugin.h), or any other means. PE 0
/// creates the id; `broadcast` is called once on every PE, with PE 0's text there and an empty one
/// elsewhere, and returns PE 0's text on all. The text has at most 255 letters, digits and . : [ ]
/// % _ -; it is a secret. When PE 0 cannot create an id, all PEs fail with its reason. Worlds of
/// different members may be opened one after another and live at the same time.
std::unique_ptr<Bootstrap> connect_by_broadcast(
    std::int32_t pe, std::int32_t n_pes,
    const std::function<std::string(const std::string&)>& broadcast, const Settings& settings);

/// A control plane for `n_pes` threads of this process; element i is for PE i, to be used by its
/// thread only.
std::vector<std::unique_ptr<Bootstrap>> thread_bootstraps(std::int32_t n_pes,
                                                          const Settings& settings = {});

/// A world of one PE.
std::unique_ptr<Bootstrap> single_bootstrap();

/// The one that settings.bootstrap asks for, or for "automatic" the one that settings or the
/// launcher (settings.launcher) offer. Throws Error{invalid_argument} when pe, n_pes, or the id it
/// needs is missing, and Error{unsupported} when a plug-in that it needs is not there.
std::unique_ptr<Bootstrap> make_bootstrap(const Settings& settings);

}  // namespace shoal
