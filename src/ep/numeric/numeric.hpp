// SPDX-License-Identifier: Apache-2.0
// numeric.hpp: the number formats of expert parallelism, one definition for host and device.
//
// bfloat16, float16, FP8 (e4m3) with scales per 128 channels (plain, powers of two, UE8M0), MXFP8,
// NVFP4, LogFMT-10, and float32 operations with the same bits everywhere. Header only, no memory,
// no torch, no libm. Whole rows on the host: rows.hpp.
#pragma once

#include "ep/numeric/arithmetic.hpp"  // IWYU pragma: export
#include "ep/numeric/elementary.hpp"  // IWYU pragma: export
#include "ep/numeric/float16.hpp"     // IWYU pragma: export
#include "ep/numeric/float8.hpp"      // IWYU pragma: export
#include "ep/numeric/logfmt.hpp"      // IWYU pragma: export
#include "ep/numeric/nvfp4.hpp"       // IWYU pragma: export
#include "ep/numeric/scale.hpp"       // IWYU pragma: export
