// SPDX-License-Identifier: Apache-2.0
// The NICs that a world chooses at its start, on described machines.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "checks/world/operations.hpp"
#include "support/built.hpp"
#include "support/world/world_errors.hpp"

namespace shoal::test {
namespace {

/// Shows hwloc a described machine with GPUs and NICs in place of this one, during its lifetime.
struct DescribedMachine {
  explicit DescribedMachine(const std::string& name) {
    setenv("HWLOC_XMLFILE", source_file("tests/data/machines/" + name + ".xml").c_str(), 1);
  }
  ~DescribedMachine() { unsetenv("HWLOC_XMLFILE"); }
};

std::vector<std::string> errors_with_nics(const char* first, const char* second) {
  return errors_of(2, world_settings(), [&](Pe pe, const auto& bootstrap) {
    Settings settings = world_settings();
    settings.host_id = pe == 1 ? "b" : "a";
    settings.transport_between = "ofi";
    settings.plugin_dir = "/nowhere";  // what the NICs are good for is not asked here
    settings.nic_list = pe == 1 ? second : first;
    World::open({settings, bootstrap});
  });
}

// NICs that cannot reach each other are an error that names the rail, before a network waits for
// replies.
TEST(WorldOpen, NamesTheRailThatIsCut) {
  const DescribedMachine machine("two_planes");
  for (const std::string& error : errors_with_nics("mlx5_0", "mlx5_1")) {
    EXPECT_TRUE(error.starts_with("unsupported")) << error;
    EXPECT_TRUE(contains(error, "all PEs failed in phase NIC choice: rail 0 is cut: PE 0 on host"))
        << error;
    EXPECT_TRUE(contains(error, "has mlx5_0:1 on [plane 0], PE 1 on host")) << error;
    EXPECT_TRUE(contains(error, "has mlx5_1:1 on [plane 1], which do not reach each other"))
        << error;
  }
  // With NICs on one plane the start continues, to a network that does not exist.
  for (const std::string& error : errors_with_nics("mlx5_0", "mlx5_2"))
    EXPECT_TRUE(contains(error, "/nowhere/libshoal_transport_ofi.so")) << error;
}

// All PEs report the failure of one PE's NIC choice.
TEST(WorldOpen, OneWrongNicListFailsAll) {
  const DescribedMachine machine("two_planes");
  const auto errors = errors_with_nics("mlx5_0", "mlx5_O");
  for (std::size_t pe = 0; pe < errors.size(); ++pe) {
    EXPECT_TRUE(
        contains(errors[pe],
                 "PE 1 failed in phase NIC choice: SHOAL_NIC_LIST is \"mlx5_O\": no NIC is called "
                 "\"mlx5_O\"; did you mean mlx5_0?"))
        << errors[pe];
    EXPECT_TRUE(errors[pe].starts_with(pe == 1 ? "invalid_argument" : "peer_failed")) << errors[pe];
  }
}

}  // namespace
}  // namespace shoal::test
