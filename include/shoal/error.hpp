// SPDX-License-Identifier: Apache-2.0
// shoal/error.hpp: the one exception type of Shoal, and how to ask it what went wrong.
//
// Every public call either does all of its work or throws Error and changes nothing that the caller
// can see. A message says what was asked, what was got, what is allowed and which setting changes
// it. It is complete on its own: no other log is needed.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

namespace shoal {

/// Why a call failed. Programs branch on the code; people read the message.
enum class Code {
  invalid_argument = 1,  ///< A value is outside what the call allows. Retrying with the same
                         ///< arguments fails again.
  exhausted,             ///< Memory or slots that a setting bounds are used up.
  timeout,      ///< A deadline passed; the message names who waited for whom, in which phase.
  peer_failed,  ///< Another PE ended, closed its connection or reported an error of its own.
  mismatch,     ///< PEs disagree about a value that must be the same on all of them.
  unsupported,  ///< Valid, but this build, machine or pair of PEs cannot do it.
  system,       ///< The operating system refused; the message carries its reason.
  closed,       ///< The world, group or handle was closed before.
};

/// The name of a code as printed in messages: "invalid_argument" and so on.
std::string_view name_of(Code code) noexcept;

/// Thrown by every call of Shoal that fails.
class Error : public std::runtime_error {
 public:
  /// The first characters of what(), so that a log line names its origin.
  static constexpr std::string_view kPrefix = "shoal: ";

  Error(Code code, const std::string& reason)
      : std::runtime_error(std::string(kPrefix) + reason), code_(code) {}
  Code code() const noexcept { return code_; }
  /// what() without kPrefix: for use inside another message. Valid as long as the Error.
  std::string_view reason() const noexcept {
    return std::string_view(what()).substr(kPrefix.size());
  }

 private:
  Code code_;
};

/// `message` without Error::kPrefix where it starts with it: for messages that arrive as text.
inline std::string reason_of(std::string_view message) {
  if (message.starts_with(Error::kPrefix)) message.remove_prefix(Error::kPrefix.size());
  return std::string(message);
}
/// The message of any exception, without Error::kPrefix.
inline std::string reason_of(const std::exception& error) {
  return reason_of(std::string_view(error.what()));
}

}  // namespace shoal
