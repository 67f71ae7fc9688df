// SPDX-License-Identifier: Apache-2.0
// rounds.hpp: how often a test repeats what it checks.
#pragma once

namespace shoal::test {

/// `few` under a sanitizer. The thread sanitizer makes a round trip up to 50 times slower and sees
/// a race from the order of two accesses, not from their collision; the address sanitizer sees a
/// wrong access the first time.
template <typename T>
constexpr T rounds([[maybe_unused]] T many, [[maybe_unused]] T few) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return few;
#else
  return many;
#endif
}

}  // namespace shoal::test
