// SPDX-License-Identifier: Apache-2.0
// ep.hpp: shared by the files of expert parallelism: launches, and results with their owners.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <utility>
#include <variant>

#include "capi/objects.hpp"
#include "capi/structs.hpp"
#include "capi/tensors.hpp"
#include "shoal/detail/ep_layouts.hpp"

namespace shoal::capi {

ep::Group& group_of(shoal_ep_group* group, const char* call);
const ep::Group& group_of(const shoal_ep_group* group, const char* call);

/// NULL: the defaults.
ep::Launch launch_of(const shoal_ep_launch* given);

/// Throws Error{invalid_argument} unless `value` is 0: a later version may use the member.
void check_reserved(const char* name, std::int32_t value);

/// Owns a C++ result, and its handle, while a C struct points into it.
template <typename Result, typename Handle = std::monostate>
struct Owned final : shoal_owner {
  explicit Owned(Result&& result, Handle&& held = {})
      : value(std::move(result)), handle(std::move(held)) {}
  Result value;
  Handle handle;
};

/// The C++ result behind a struct. Throws Error{invalid_argument} when it holds none.
template <typename Owner>
const Owner& owner_of(const shoal_owner* owner, const char* call, const char* name) {
  const auto* typed = dynamic_cast<const Owner*>(owner);
  require(typed != nullptr, Code::invalid_argument, "SHOAL-N880: {}: {} holds no result", call,
          name);
  return *typed;
}

/// Releases the memory of a result and empties its struct.
template <typename T>
shoal_status release(const char* call, const char* name, T* result, const T& empty) {
  return guarded([&] {
    check_size(name, required(result, call, name).size, least_size<T>());
    const std::unique_ptr<shoal_owner> owner(result->owner);
    fill_struct(result, empty);
  });
}

/// Sizes of a group that results state in C; in C++ they are the sizes of vectors.
struct Counts {
  explicit Counts(const ep::Group& group)
      : ranks(group.team().size()),
        experts(group.options().experts),
        local_experts(group.local_experts()) {}
  std::int32_t ranks, experts, local_experts;
};

}  // namespace shoal::capi

/// An operation on the group's own thread. One of the futures is valid.
struct shoal_ep_future {
  explicit shoal_ep_future(const shoal::ep::Group& group) : counts(group) {}
  const shoal::capi::Counts counts;
  const pid_t process = getpid();  ///< a child that it forks has no thread that ends the operation
  std::future<shoal::ep::detail::AnyDispatched> dispatched{};
  std::future<shoal::ep::Combined> combined{};
};
