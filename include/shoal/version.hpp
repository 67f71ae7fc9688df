// SPDX-License-Identifier: Apache-2.0
// shoal/version.hpp: the version that a program was compiled with, and the one that it runs with.
//
//   static_assert(shoal::kVersion >= shoal::Version{0, 2, 0});
//   if (shoal::loaded_version() < shoal::kVersion) std::puts("an older libshoal is loaded");
//
// docs/reference/compatibility.md says which versions work together. The preprocessor has
// SHOAL_VERSION_MAJOR, SHOAL_VERSION_MINOR, SHOAL_VERSION_PATCH, and SHOAL_VERSION as text.
#pragma once

#include <compare>

#include <shoal/c/version.h>  // IWYU pragma: export
#include <shoal/config.hpp>

namespace shoal {

/// A version of Shoal, ordered by its numbers from left to right. The names avoid major and minor,
/// which are macros where <sys/sysmacros.h> is included.
struct Version {
  int major_number = 0;
  int minor_number = 0;
  int patch_number = 0;

  friend constexpr auto operator<=>(const Version&, const Version&) = default;
};

/// The version of these headers.
inline constexpr Version kVersion{SHOAL_VERSION_MAJOR, SHOAL_VERSION_MINOR, SHOAL_VERSION_PATCH};

/// The version of the loaded libshoal.
[[nodiscard]] Version loaded_version() noexcept;

}  // namespace shoal
