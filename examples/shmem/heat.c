// SPDX-License-Identifier: Apache-2.0 heat.c: heat along a rod, in slices. In each step a PE puts
// its edge cells to its neighbours, with a signal that carries the number of the step, and computes
// when their cells have arrived. Two copies of the edge cells alternate, so that a neighbour may be
// one step ahead.
#include <math.h>
#include <shmem.h>
#include <stdio.h>

enum { kCells = 100, kSteps = 2000 };

static double cells[2][kCells + 2];  // of this PE; the first and the last are the neighbours'
static double edges[2][2];           // by parity of the step: from the left, from the right
static uint64_t arrived[2];          // from the left, from the right: the last step
static double total, hottest;

int main(void) {
  shmem_init();
  const int me = shmem_my_pe(), n = shmem_n_pes();
  const int left = me - 1, right = me + 1;
  if (me == 0) cells[0][1] = 1000;  // everything else is cold

  for (uint64_t step = 1; step <= kSteps; ++step) {
    const double* now = cells[(step + 1) % 2];
    double* next = cells[step % 2];
    double* from = edges[step % 2];
    if (left >= 0)
      shmem_double_put_signal(&from[1], &now[1], 1, &arrived[1], step, SHMEM_SIGNAL_SET, left);
    if (right < n)
      shmem_double_put_signal(&from[0], &now[kCells], 1, &arrived[0], step, SHMEM_SIGNAL_SET,
                              right);
    if (left >= 0) shmem_signal_wait_until(&arrived[0], SHMEM_CMP_GE, step);
    if (right < n) shmem_signal_wait_until(&arrived[1], SHMEM_CMP_GE, step);
    // The ends of the rod are insulated.
    const double before = left >= 0 ? from[0] : now[1];
    const double after = right < n ? from[1] : now[kCells];
    for (int i = 1; i <= kCells; ++i) {
      const double low = i == 1 ? before : now[i - 1];
      const double high = i == kCells ? after : now[i + 1];
      next[i] = now[i] + 0.25 * (low - 2 * now[i] + high);
    }
  }

  const double* result = cells[kSteps % 2];
  for (int i = 1; i <= kCells; ++i) {
    total += result[i];
    if (result[i] > hottest) hottest = result[i];
  }
  shmem_double_sum_reduce(SHMEM_TEAM_WORLD, &total, &total, 1);
  shmem_double_max_reduce(SHMEM_TEAM_WORLD, &hottest, &hottest, 1);
  if (me == 0) printf("total %.6f, hottest cell %.6f\n", total, hottest);
  const int conserved = fabs(total - 1000) < 1e-6;
  shmem_finalize();
  return conserved ? 0 : 1;
}
