// SPDX-License-Identifier: Apache-2.0
// shoal/error.hpp: the exception of every call of Shoal.
//
// A public call either does all of its work, or throws Error and changes nothing that the caller
// can see. The message states what was asked, the value, the allowed range and the setting that
// changes it; no other log is needed.
//
//   try {
//     world.quiet();
//   } catch (const shoal::Error& error) {
//     if (error.code() != shoal::Code::timeout) throw;
//     std::fprintf(stderr, "%s\n", error.what());  // "SHOAL-N170: ..."
//   }
//
// Shoal's own messages begin with an id that stays the same from version to version.
// `shoal-info --explain N170` prints the cause and the cure; docs/reference/messages.md lists all.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include <shoal/config.hpp>

namespace shoal {

/// Why a call failed.
enum class Code {
  invalid_argument = 1,  ///< an argument is outside its allowed range
  exhausted,             ///< memory or slots that a setting bounds are used up
  timeout,               ///< a deadline passed; the message names the awaited PE and the phase
  peer_failed,           ///< another PE ended, closed its connection or reported an error
  mismatch,              ///< PEs disagree about a value that must be the same on all of them
  unsupported,           ///< valid, but this build, machine or pair of PEs cannot do it
  system,                ///< the operating system or CUDA refused; the message has its reason
  closed,                ///< the world, group or handle is closed
};

/// The name of a code as written here, such as "invalid_argument".
[[nodiscard]] std::string_view name_of(Code code) noexcept;

/// A failure: a code for programs and a message for people.
class Error : public std::runtime_error {
 public:
  /// The start of what() of an error whose reason has no id, so that a log line names its origin.
  static constexpr std::string_view kPrefix = "shoal: ";
  /// The start of every id, such as "SHOAL-N170".
  static constexpr std::string_view kIdPrefix = "SHOAL-N";

  Error(Code code, const std::string& reason)
      : std::runtime_error(reason.starts_with(kIdPrefix) ? reason : std::string(kPrefix) + reason),
        code_(code) {}
  [[nodiscard]] Code code() const noexcept { return code_; }
  /// The id of the message or, where the message quotes another one, of the first that it quotes;
  /// empty without any. Valid as long as the Error.
  [[nodiscard]] std::string_view id() const noexcept;
  /// what() without kPrefix: for use inside another message. Valid as long as the Error.
  [[nodiscard]] std::string_view reason() const noexcept {
    std::string_view text = what();
    if (text.starts_with(kPrefix)) text.remove_prefix(kPrefix.size());
    return text;
  }

 private:
  Code code_;
};

/// `message` without Error::kPrefix where it starts with it: for messages that arrive as text.
[[nodiscard]] inline std::string reason_of(std::string_view message) {
  if (message.starts_with(Error::kPrefix)) message.remove_prefix(Error::kPrefix.size());
  return std::string(message);
}
/// The message of any exception, without Error::kPrefix.
[[nodiscard]] inline std::string reason_of(const std::exception& error) {
  return reason_of(std::string_view(error.what()));
}

}  // namespace shoal
