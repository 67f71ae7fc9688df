// SPDX-License-Identifier: Apache-2.0
// ep.hpp: what the files of expert parallelism share: launches, and results with their owners.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <utility>
#include <variant>

#include "capi/objects.hpp"
#include "capi/structs.hpp"
#include "capi/tensors.hpp"

namespace shoal::capi {

ep::Group& group_of(shoal_ep_group* group, const char* call);
const ep::Group& group_of(const shoal_ep_group* group, const char* call);

/// NULL: the defaults.
ep::Launch launch_of(const shoal_ep_launch* given);

/// Members that are there to fill gaps: they may mean something in a later version.
void check_reserved(const char* name, std::int32_t value);

/// Keeps a result of C++, and the handle in it, for as long as the struct of C points into it.
template <typename Result, typename Handle = std::monostate>
struct Owned final : shoal_owner {
  explicit Owned(Result&& result, Handle&& held = {})
      : value(std::move(result)), handle(std::move(held)) {}
  Result value;
  Handle handle;
};

/// The C++ result behind a struct; throws Error{invalid_argument} where it holds none.
template <typename Owner>
const Owner& owner_of(const shoal_owner* owner, const char* call, const char* name) {
  const auto* typed = dynamic_cast<const Owner*>(owner);
  require(typed != nullptr, Code::invalid_argument, "{}: {} holds no result", call, name);
  return *typed;
}

/// Gives the memory of a result back and empties its struct.
template <typename T>
shoal_status release(const char* call, const char* name, T* result, const T& empty) {
  return guarded([&] {
    check_size(name, required(result, call, name).size, least_size<T>());
    const std::unique_ptr<shoal_owner> owner(result->owner);
    fill_struct(result, empty);
  });
}

/// What C++ leaves to the sizes of its vectors.
struct Counts {
  explicit Counts(const ep::Group& group)
      : ranks(group.team().size()), local_experts(group.local_experts()) {}
  std::int32_t ranks, local_experts;
};

}  // namespace shoal::capi

/// An operation on the group's own thread.
struct shoal_ep_future {
  explicit shoal_ep_future(const shoal::ep::Group& group) : counts(group) {}
  const shoal::capi::Counts counts;
  std::future<shoal::ep::Dispatched> dispatched{};
  std::future<shoal::ep::Combined> combined{};
};
