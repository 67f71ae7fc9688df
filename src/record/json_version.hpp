// SPDX-License-Identifier: Apache-2.0
// json_version.hpp: the format of records as JSON (`shoal_record`).
#pragma once

namespace shoal::detail::record {

/// Increases with every change of a field.
inline constexpr int kJsonVersion = 3;

}  // namespace shoal::detail::record
