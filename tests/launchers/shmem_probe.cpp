// SPDX-License-Identifier: Apache-2.0
// shmem_probe: worlds opened by an OpenSHMEM program with SHOAL_BOOTSTRAP=shmem. Prints
// "PE 1 of 3 ok".
#include <shmem.h>

#include <cstdio>
#include <shoal/collective.hpp>
#include <shoal/world.hpp>

namespace {

/// True if this PE received the index of its left neighbour.
bool ring(const shoal::World& world) {
  const int me = world.my_pe(), n = world.n_pes();
  auto box = world.heap().allocate<int>(1);
  world.put_value(box.on((me + 1) % n), 100 + me);
  shoal::barrier(world.team());
  return box[0] == 100 + (me + n - 1) % n && me == shmem_my_pe() && n == shmem_n_pes();
}

}  // namespace

int main() {
  shmem_init();
  int status = 1;
  try {
    shoal::Settings settings = shoal::Settings::from_environment();
    settings.symmetric_size = std::size_t{16} << 20;
    shoal::World first = shoal::World::open({settings, nullptr}),
                 second = shoal::World::open({settings, nullptr});
    status = ring(first) && ring(second) ? 0 : 1;
    second.close();
    first.close();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shmem_probe: %s\n", error.what());
  }
  if (status == 0) std::printf("PE %d of %d ok\n", shmem_my_pe(), shmem_n_pes());
  shmem_finalize();
  return status;
}
