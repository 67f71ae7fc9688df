// SPDX-License-Identifier: Apache-2.0
// world_local.hpp: reads and writes of this PE's part of the heap by the host, on the host or in
// GPU memory.
#pragma once

#include <cstring>
#include <vector>

#include "pe/memory.hpp"
#include "shoal/world.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal::test {

inline bool in_gpu_memory(const World& world) {
  return state_of(world).memory().cuda() != nullptr;
}

/// This PE's copy of the array: read in place on the host, fetched from a GPU.
template <typename T>
std::vector<T> local(const World& world, const SymmetricArray<T>& array) {
  std::vector<T> values(array.size());
  if (in_gpu_memory(world)) {
    world.get(std::span(values), array.on(world.my_pe()));
  } else if (!values.empty()) {
    std::memcpy(values.data(), array.data(), array.size() * sizeof(T));
  }
  return values;
}

template <typename T>
T local(const World& world, const SymmetricArray<T>& array, std::size_t index) {
  return in_gpu_memory(world) ? world.get_value(array.on(world.my_pe())[index]) : array[index];
}

template <typename T>
void set_local(const World& world, const SymmetricArray<T>& array, std::size_t index,
               std::type_identity_t<T> value) {
  if (in_gpu_memory(world)) {
    world.put_value(array.on(world.my_pe())[index], value);
  } else {
    array[index] = value;
  }
}

}  // namespace shoal::test
