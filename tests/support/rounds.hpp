// SPDX-License-Identifier: Apache-2.0
// rounds.hpp: how often a test repeats what it checks.
#pragma once

namespace shoal::test {

/// `few` under the thread sanitizer, which makes a round trip up to 50 times slower and sees a race
/// from the order of two accesses, not from their collision.
template <typename T>
constexpr T rounds([[maybe_unused]] T many, [[maybe_unused]] T few) {
#ifdef __SANITIZE_THREAD__
  return few;
#else
  return many;
#endif
}

}  // namespace shoal::test
