// SPDX-License-Identifier: Apache-2.0
// Suppressions of the sanitizers: leaks of libraries that are not ours, and forked children.

#ifdef __SANITIZE_ADDRESS__
#include <unistd.h>

namespace {
const pid_t started = getpid();
}

// The names are those that the sanitizer looks for.
extern "C" {  // NOLINTBEGIN
/// libfabric 1.17: its provider net does not free all that it takes.
const char* __lsan_default_suppressions() {
  return "leak:libfabric.so";
}
/// Tests compare what programs print.
const char* __lsan_default_options() {
  return "print_suppressions=0";
}
/// No search for leaks in a forked child that ends by exit(): fork() does not copy the parent's
/// other threads, so that all that their stacks point to counts as leaked in the child.
int __lsan_is_turned_off() {
  return getpid() != started;
}
}  // NOLINTEND

#endif
