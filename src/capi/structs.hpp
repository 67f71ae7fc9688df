// SPDX-License-Identifier: Apache-2.0
// structs.hpp: reads and writes structs that start with their size, as far as both sides know them.
//
// A header of another version has a prefix of this library's struct, or an extension of it. Structs
// have no padding and grow in units of 8 bytes, so every valid size is a multiple of 8.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "capi/guard.hpp"

namespace shoal::capi {

/// Throws Error{invalid_argument}, naming the struct, unless `size` can be the size of a version of
/// it.
void check_size(const char* name, std::size_t size, std::size_t least);
/// Throws Error{invalid_argument} unless the bytes [known, size) of the struct are zero.
void check_unknown(const char* name, const void* given, std::size_t known, std::size_t size);

/// Options in this library's version of the struct. Members that `given` lacks are those of
/// `defaults`; all of them when `given` is NULL.
template <typename T>
T read_struct(const char* name, const T* given, const T& defaults) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0);
  T known = defaults;
  if (given == nullptr) return known;
  check_size(name, given->size, sizeof given->size);
  std::memcpy(&known, given, std::min(given->size, sizeof(T)));
  check_unknown(name, given, sizeof(T), given->size);
  return known;
}

/// The size of the smallest version of a struct: its size member and, in results, the owner.
template <typename T>
constexpr std::size_t least_size() {
  if constexpr (requires(T result) { result.owner; })
    return offsetof(T, owner) + sizeof(shoal_owner*);
  return sizeof(std::size_t);
}

/// Checks a struct that will receive a result, before the work starts.
template <typename T>
void check_fillable(const char* call, const char* name, const T* out) {
  check_size(name, required(out, call, name).size, least_size<T>());
  if constexpr (requires { out->owner; })
    require(
        out->owner == nullptr, Code::invalid_argument,
        "SHOAL-N880: {}: the {} still holds a result, or was not initialized; release it first, or "
        "start with its _INIT",
        call, name);
}

/// Fills the members that `out` has. Members that only a newer header knows become zero.
template <typename T>
void fill_struct(T* out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0);
  const std::size_t known = std::min(out->size, sizeof(T)), start = sizeof out->size;
  auto* bytes = reinterpret_cast<std::byte*>(out);
  std::memcpy(bytes + start, reinterpret_cast<const std::byte*>(&value) + start, known - start);
  std::memset(bytes + known, 0, out->size - known);
}

}  // namespace shoal::capi
