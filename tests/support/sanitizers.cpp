// SPDX-License-Identifier: Apache-2.0
// What the sanitizers leave out: leaks of libraries that are not ours.

#ifdef __SANITIZE_ADDRESS__

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
}  // NOLINTEND

#endif
