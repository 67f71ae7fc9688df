// SPDX-License-Identifier: Apache-2.0
// nvshmem_types.h: constants, handles and structures, by a path that programs name.
#pragma once

#include <nvshmem_host.h>
