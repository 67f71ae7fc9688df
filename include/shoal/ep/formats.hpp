// SPDX-License-Identifier: Apache-2.0
// shoal/ep/formats.hpp: the encodings in which rows travel.
#pragma once

#include <cstdint>

#include <shoal/config.hpp>

namespace shoal::ep {

/// The encoding in which rows of a dispatch travel and arrive, and those of a combine travel (fp8
/// and mxfp8). The sender encodes them, in the kernel that sends them or, for dispatches of normal
/// mode between nodes and its combines on one node, in one before it.
///
/// | name | value of a channel | scale | hidden: a multiple of |
/// |---|---|---|---|
/// | none | bfloat16; in normal mode as in x | | 8 |
/// | fp8 | e4m3 * scale | float32 amax / 448, of 128 channels | 16 |
/// | fp8_power_of_two | e4m3 * scale | the same, rounded up to a power of two | 16 |
/// | fp8_ue8m0 | e4m3 * scale | that power as UE8M0, a byte | 16 |
/// | mxfp8 | e4m3 * scale | UE8M0, 2^ceil(log2(amax / 448)), of 32 channels | 32 |
/// | nvfp4 | e2m1 * scale / global | e4m3, amax / 6 * global, of 16 channels | 64 |
///
/// amax is the largest magnitude of the channels that share the scale. Values are rounded to
/// nearest, ties to even, and saturate. Below an amax of 1e-4, fp8, fp8_power_of_two and fp8_ue8m0
/// use 1e-4; mxfp8 and nvfp4 have no such bound and give channels of zeros the smallest scale. A
/// NaN or an infinity makes all channels that share its scale NaN.
///
/// Largest error of a channel, as a fraction of its amax: fp8 1/28, with power-of-two scales 1/16,
/// for an amax of 1e-4 or more, with mxfp8 of 2^-118 or more; nvfp4 17/96 for an amax * global of
/// 6 * 2^-6 to 6 * 448, which is what normal scales reach.
///
/// Sources: OCP Microscaling Formats 1.0; NVIDIA, NVFP4.
enum class Quantize : std::uint8_t { none = 0, fp8, fp8_power_of_two, fp8_ue8m0, mxfp8, nvfp4 };

/// Where the scales of a low-latency result lie, with N = R * T rows of an expert and G groups of
/// channels that share a scale in a row. Scales of one byte lie four to a word, the first group in
/// the lowest byte, in W = ceil(G / 4) words of a row; bytes without a group are 0.
///
/// | layout | float32 | bytes |
/// |---|---|---|
/// | rows | float32 [L, N, G] | [L, N, G], strides {.., 4 * W, 1} |
/// | columns | float32 [L, N, G] | int32 [L, N, W]; both strides {.., 1, N} |
/// | tiles | | [L, ceil(N / 128), W, 512] |
///
/// columns of words are what DeepGEMM reads on SM100. tiles are those of cuBLASLt and CUTLASS: 128
/// rows by four groups, row r at place 16 * (r % 32) + 4 * (r / 32). Bytes are uint8 for UE8M0 and
/// float8_e4m3 for nvfp4. automatic: tiles for nvfp4, otherwise columns.
///
/// In normal mode the array of UnpackOptions or ExpandOptions has one of these forms, without L.
enum class ScaleLayout : std::uint8_t { automatic = 0, rows, columns, tiles };

}  // namespace shoal::ep
