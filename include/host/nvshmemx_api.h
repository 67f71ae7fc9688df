// SPDX-License-Identifier: Apache-2.0
// nvshmemx_api.h: the extensions for the host and streams, by a path that programs name.
#pragma once

#include <nvshmem_host.h>
