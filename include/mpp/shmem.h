// SPDX-License-Identifier: Apache-2.0
// mpp/shmem.h: the name of shmem.h before OpenSHMEM.
#include <shmem.h>
