// SPDX-License-Identifier: Apache-2.0
// print_error.hpp: how a PE body tells its test with which error it ended.
#pragma once

#include <cstdio>
#include <string>

#include "shoal/error.hpp"

namespace shoal::test {

/// "code=timeout" and the message, on standard output.
inline void print_error(const Error& error) {
  std::printf("code=%s\n%s\n", std::string(name_of(error.code())).c_str(), error.what());
  std::fflush(stdout);
}

}  // namespace shoal::test
