// rounds.hpp: how often a test repeats itself.
#pragma once

namespace shoal::test {

/// `n` rounds of made-up cases, a third of them under the thread sanitizer: there each takes 20 times as long, and what
/// it looks for is in every one.
constexpr int rounds(int n) {
#ifdef __SANITIZE_THREAD__
  return (n + 2) / 3;
#else
  return n;
#endif
}

}  // namespace shoal::test
