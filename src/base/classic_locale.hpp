// SPDX-License-Identifier: Apache-2.0
// classic_locale.hpp: the locale "C" for calls of libraries that parse texts.
#pragma once

#include <locale.h>

namespace shoal {

/// Gives the calling thread the locale "C" while it exists. UCX, for example, does not understand
/// its own defaults in a locale with a decimal comma, nor its own names in a Turkish one.
class ClassicLocale {
 public:
  ClassicLocale() : classic_(newlocale(LC_ALL_MASK, "C", nullptr)), before_(uselocale(classic_)) {}
  ~ClassicLocale() {
    uselocale(before_);
    if (classic_ != nullptr) freelocale(classic_);
  }
  ClassicLocale(const ClassicLocale&) = delete;
  ClassicLocale& operator=(const ClassicLocale&) = delete;

 private:
  locale_t classic_;  ///< null, without effect, where there is no memory for it
  locale_t before_;
};

}  // namespace shoal
