// SPDX-License-Identifier: Apache-2.0
// module.hpp: the transport verbs over the fake libibverbs.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/plugin.hpp"
#include "checks/transport/pair.hpp"
#include "fake_ibverbs/fake_ibverbs.hpp"
#include "support/built.hpp"
#include "transport/module.hpp"

namespace shoal::test {

/// Skips its tests in a build without the transport.
class WithFakeVerbs : public testing::Test {
 protected:
  void SetUp() override {
    if (*kFakeIbverbs == '\0') GTEST_SKIP() << "this build has no transport verbs";
    void* const library = dlopen(kFakeIbverbs, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    reset = reinterpret_cast<FakeVerbsReset>(dlsym(library, "fake_ibverbs_reset"));
    counts = reinterpret_cast<FakeVerbsCount>(dlsym(library, "fake_ibverbs_counts"));
    stall = reinterpret_cast<FakeVerbsStall>(dlsym(library, "fake_ibverbs_stall"));
    const Plugin plugin = load_plugin(Settings(), "transport_verbs", transport::kModuleSymbol);
    ASSERT_NE(plugin.symbol, nullptr) << plugin.reason;
    module = static_cast<const transport::Module*>(plugin.symbol);
    ASSERT_EQ(module->version, transport::kModuleVersion);
    reset({});
  }
  void TearDown() override {
    if (counts != nullptr) EXPECT_EQ(counts().objects_left, 0u);
  }

  static Settings settings(std::int64_t depth = 64, std::size_t chunk = 20'000) {
    Settings settings = pair_settings(depth, chunk);
    settings.verbs_library = kFakeIbverbs;
    return settings;
  }

  FakeVerbsReset reset = nullptr;
  FakeVerbsCount counts = nullptr;
  FakeVerbsStall stall = nullptr;
  const transport::Module* module = nullptr;
};

}  // namespace shoal::test
