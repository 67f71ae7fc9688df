// SPDX-License-Identifier: Apache-2.0
// shoal/c/status.h: status codes, version and the message of the last failure.
#ifndef SHOAL_C_STATUS_H
#define SHOAL_C_STATUS_H

#include <stddef.h>  // NOLINT(modernize-deprecated-headers): a C header
#include <stdint.h>  // NOLINT(modernize-deprecated-headers)

#include <shoal/c/version.h>

#if defined(__GNUC__)
#define SHOAL_API __attribute__((visibility("default")))
#else
#define SHOAL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/// SHOAL_OK, or why a call failed (shoal/error.hpp).
typedef int32_t shoal_status;
enum {
  SHOAL_OK = 0,
  SHOAL_INVALID_ARGUMENT = 1,
  SHOAL_EXHAUSTED = 2,
  SHOAL_TIMEOUT = 3,
  SHOAL_PEER_FAILED = 4,
  SHOAL_MISMATCH = 5,
  SHOAL_UNSUPPORTED = 6,
  SHOAL_SYSTEM = 7,
  SHOAL_CLOSED = 8,
  SHOAL_INTERNAL = 9  ///< an exception that is not Shoal's, or another number from a shoal_body
};

/// The message of the last call that failed on this thread, "" when none has. Complete on its own.
/// Valid until the next call on this thread that fails.
SHOAL_API const char* shoal_last_error(void);
/// The name of a status, such as "invalid_argument"; "unknown" for other numbers.
SHOAL_API const char* shoal_status_name(shoal_status status);
/// The version of the loaded library, to compare with SHOAL_VERSION_*. Each may be NULL.
SHOAL_API shoal_status shoal_version(int32_t* major, int32_t* minor, int32_t* patch);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHOAL_C_STATUS_H
