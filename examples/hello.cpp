// SPDX-License-Identifier: Apache-2.0
// Every PE greets its neighbour, then sends 16 tokens through 4 experts a PE and gets their answers
// back, summed.
#include <cstdio>
#include <shoal/collective.hpp>
#include <shoal/ep/group.hpp>
#include <shoal/world.hpp>

int main() {
  shoal::World world = shoal::World::open();  // one PE, or as many as shoal-run started
  const int me = world.my_pe(), n = world.n_pes();

  auto box = world.heap().allocate<int>(1);  // symmetric: every PE has one
  world.put_value(box.on((me + 1) % n), 100 + me);
  shoal::barrier(world.team());
  std::printf("PE %d of %d got %d\n", me, n, box[0]);

  using shoal::DataType;
  shoal::ep::Group ep(
      world.team(),
      {.max_tokens = 16, .hidden = 64, .top_k = 2, .experts = 4 * n, .dtype = DataType::float32});
  std::vector<float> x(16 * 64, 1.0F + static_cast<float>(me));
  std::vector<std::int64_t>
      topk;  // token t asks for experts t and t + 4: with several PEs they live on different ones
  for (int t = 0; t < 16; ++t)
    topk.insert(topk.end(), {t % (4 * n), n > 1 ? (t + 4) % (4 * n) : -1});

  auto routing = ep.route({topk.data(), DataType::int64, {16, 2}});
  auto received = ep.dispatch({x.data(), DataType::float32, {16, 64}}, routing);
  // Experts work here, in place, on received.x [received.rows, 64]; these answer what they were
  // asked.
  auto combined = ep.combine(received.x, received.handle);
  std::printf("PE %d received %d rows; token 0 came back as %g\n", me,
              static_cast<int>(received.rows), combined.x.as<float>()[0]);
  received = {};
  ep.close();
  world.close();
}
