// SPDX-License-Identifier: Apache-2.0
// nvshmem_api.h: the functions of nvshmem.h for the host, by a path that programs name.
#pragma once

#include <nvshmem_host.h>
