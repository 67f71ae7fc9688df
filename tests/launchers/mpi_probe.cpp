// SPDX-License-Identifier: Apache-2.0
// mpi_probe: worlds over MPI communicators (shoal/mpi.hpp): of all ranks, of halves with their
// ranks in reversed order, and several at once. Public headers only. Prints "rank 1 of 4 ok".
#include <cstdio>
#include <cstdlib>
#include <shoal/collective.hpp>
#include <shoal/mpi.hpp>
#include <shoal/world.hpp>

namespace {

shoal::World open(MPI_Comm communicator) {
  shoal::Settings settings = shoal::Settings::from_environment();
  settings.symmetric_size = std::size_t{16} << 20;
  return shoal::World::open({settings, shoal::connect_mpi(communicator, settings)});
}

/// The sum of `value` over the PEs of the world.
long sum(const shoal::World& world, long value) {
  auto box = world.heap().allocate<long>(1), total = world.heap().allocate<long>(1);
  box[0] = value;
  shoal::reduce(world.team(), shoal::DataType::int64, shoal::ReduceOp::sum, total.data(),
                box.data(), 1);
  const long result = total[0];
  shoal::barrier(world.team());
  return result;
}

void expect(const char* what, long got, long expected) {
  if (got == expected) return;
  std::fprintf(stderr, "mpi_probe: %s is %ld, expected %ld\n", what, got, expected);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  try {
    for (int round = 0; round < 2; ++round) open(MPI_COMM_WORLD).close();

    MPI_Comm half = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    shoal::World all = open(MPI_COMM_WORLD), part = open(half);
    const int part_size = (size + 1 - rank % 2) / 2;
    expect("PE in the world of all", all.my_pe(), rank);
    expect("PEs of the half", part.n_pes(), part_size);
    expect("PE in the half, reversed", part.my_pe(), part_size - 1 - rank / 2);
    long expected = 0, expected_part = 0;
    for (int i = 0; i < size; ++i) {
      expected += i;
      expected_part += i % 2 == rank % 2 ? i : 0;
    }
    expect("sum over all", sum(all, rank), expected);
    expect("sum over the half", sum(part, rank), expected_part);
    MPI_Comm_free(&half);
    part.close();
    MPI_Finalize();  // an open world no longer needs MPI
    expect("sum after MPI_Finalize", sum(all, 1), size);
    all.close();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mpi_probe, rank %d: %s\n", rank, error.what());
    return 1;
  }
  std::printf("rank %d of %d ok\n", rank, size);
}
