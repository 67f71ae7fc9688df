// SPDX-License-Identifier: Apache-2.0
// error.cpp: exceptions become a status and the message of shoal_last_error.
#include <exception>
#include <new>
#include <string>

#include "capi/guard.hpp"

namespace shoal::capi {
namespace {

struct LastError {
  std::string text;
  const char* message = "";  ///< text.c_str(), or a literal when there was no memory for the text
};
thread_local LastError last_error;

shoal_status keep(shoal_status status, const char* message) noexcept {
  try {
    last_error.text = message;
    last_error.message = last_error.text.c_str();
  } catch (...) {
    last_error.message = "shoal: out of memory while the message was stored";
  }
  return status;
}

}  // namespace

shoal_status record_failure() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return keep(static_cast<shoal_status>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return keep(SHOAL_EXHAUSTED, "shoal: out of memory");
  } catch (const std::exception& error) {
    return keep(SHOAL_INTERNAL, error.what());
  } catch (...) {
    return keep(SHOAL_INTERNAL, "shoal: an exception that is not a std::exception");
  }
}

}  // namespace shoal::capi

const char* shoal_last_error() {
  return shoal::capi::last_error.message;
}

const char* shoal_status_name(shoal_status status) {
  if (status == SHOAL_OK) return "ok";
  if (status == SHOAL_INTERNAL) return "internal";
  if (status < SHOAL_OK || status > SHOAL_INTERNAL) return "unknown";
  return shoal::name_of(static_cast<shoal::Code>(status)).data();  // a literal, zero-terminated
}

shoal_status shoal_version(int32_t* major, int32_t* minor, int32_t* patch) {
  if (major != nullptr) *major = SHOAL_VERSION_MAJOR;
  if (minor != nullptr) *minor = SHOAL_VERSION_MINOR;
  if (patch != nullptr) *patch = SHOAL_VERSION_PATCH;
  return SHOAL_OK;
}
