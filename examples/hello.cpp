// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <shoal/collective.hpp>
#include <shoal/ep/group.hpp>
#include <shoal/world.hpp>
int main() {                          // each PE sends a number, then one token to two experts
  auto world = shoal::World::open();  // one PE, or as many as shoal-run started
  const int me = world.my_pe(), n = world.n_pes();
  auto box = world.heap().allocate<int>(1);  // symmetric memory: one int on every PE
  world.put_value(box.on((me + 1) % n), 100 + me);
  shoal::barrier(world.team());
  using enum shoal::DataType;
  shoal::ep::Group ep(
      world.team(),
      {.max_tokens = 1, .hidden = 64, .top_k = 2, .experts = 2 * n, .dtype = float32});
  const float x[64] = {1.0F + static_cast<float>(me)};                // [1, 64]
  const std::int64_t topk_idx[2] = {2 * me, (2 * me + 3) % (2 * n)};  // on two PEs, if there are
  auto received = ep.dispatch({x, float32, {1, 64}}, ep.route({topk_idx, int64, {1, 2}}));
  auto sum = ep.combine(received.x, received.handle).x;  // experts would first change received.x
  std::printf("PE %d of %d got %d and %g\n", me, n, box[0], sum.as<float>()[0]);
}  // destructors release everything
