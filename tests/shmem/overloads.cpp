// SPDX-License-Identifier: Apache-2.0
// The generic forms in C++ are overloads.
#include "generics.c"  // NOLINT(bugprone-suspicious-include)
