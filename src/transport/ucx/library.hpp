// SPDX-License-Identifier: Apache-2.0
// library.hpp: UCX's context, worker and memory handles as objects. Limits UCX's side effects on
// the process. Only this folder includes UCX.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/transport.hpp"

namespace shoal::transport::ucx {

/// "Connection reset by remote peer".
std::string text_of(ucs_status_t status);

/// Thrown through UCX where an assertion of UCX fails, which would otherwise end the process.
/// `text` is the message of UCX.
struct FatalError {
  std::string text;
};

/// While an instance lives, FatalError is thrown where a call of this thread into UCX finds an
/// inconsistency. UCX cannot be called any more after it. Outside, such as in UCX's own threads,
/// and where another library has loaded UCX before, UCX ends the process.
class FatalErrorsThrown {
 public:
  FatalErrorsThrown() noexcept;
  ~FatalErrorsThrown();
  /// True if one lives in this thread.
  static bool active() noexcept;
  FatalErrorsThrown(const FatalErrorsThrown&) = delete;
  FatalErrorsThrown& operator=(const FatalErrorsThrown&) = delete;
};

/// A UCX context and one worker in it. The worker is not thread-safe; the engine's lock guards it.
class Library {
 public:
  /// Throws Error{unsupported} naming the settings that decide what UCX looks for.
  explicit Library(const Context& context);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  ucp_context_h context() const noexcept { return context_; }
  ucp_worker_h worker() const noexcept { return worker_; }
  std::vector<std::byte> address() const;
  /// UCX is left as it is: nothing of it is released.
  void abandon() noexcept { abandoned_ = true; }
  bool abandoned() const noexcept { return abandoned_; }
  /// Transports and devices that UCX may use, for messages: 'SHOAL_UCX_TLS="" (^sm), devices lo'.
  const std::string& selection() const noexcept { return selection_; }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  bool abandoned_ = false;
  std::string selection_;
};

/// Memory that peers may read and write.
class Memory {
 public:
  Memory(const Library& library, void* start, std::size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::vector<std::byte> packed_key() const;

 private:
  const Library& library_;
  ucp_mem_h handle_ = nullptr;
};

}  // namespace shoal::transport::ucx
