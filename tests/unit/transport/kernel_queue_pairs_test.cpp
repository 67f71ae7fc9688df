// SPDX-License-Identifier: Apache-2.0
// How many queue pairs kernels have for each peer.
#include "transport/kernel_queue_pairs.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace shoal::transport {
namespace {

TEST(KernelQueuePairs, AreFourUnlessTheNicHasFewer) {
  const Settings settings;
  EXPECT_EQ(queue_pairs_for_kernels(settings, std::numeric_limits<std::int64_t>::max()), 4);
  for (const std::int64_t others : {1, 16, 17, 22, 64, 65, 200})
    EXPECT_EQ(queue_pairs_for_kernels(settings, 64 / others),
              others <= 16 ? 4 : (others <= 21 ? 3 : (others <= 32 ? 2 : 1)))
        << others;
}

TEST(KernelQueuePairs, AreAsTheSettingSays) {
  Settings settings;
  settings.gda_queue_pairs = 7;
  EXPECT_EQ(queue_pairs_for_kernels(settings, 1), 7);
}

}  // namespace
}  // namespace shoal::transport
