// SPDX-License-Identifier: Apache-2.0
// forks.hpp: what becomes of worlds and groups in a child that a PE forks.
//
// A child has the objects of its parent but none of its threads, and shares its connections. A
// handler of pthread_atfork therefore closes all worlds in the child by the flag that every call
// checks anyway. It keeps the objects for ever: none of their destructors runs in a child.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "shoal/team.hpp"

namespace shoal::detail {

class WorldState;

/// Keeps `object` in every child that this process forks from now on.
void keep_in_children(std::weak_ptr<const void> object);
/// Does the same for `world`, and clears its member `open` in those children. `pe` is this PE, for
/// messages.
void close_in_children(const std::shared_ptr<const WorldState>& world, std::atomic<bool>& open,
                       Pe pe);
/// True if this process is a child that was forked while `world` was open.
bool is_inherited(const WorldState& world) noexcept;
/// Why `world`, which is not open, takes no calls: "the world is closed", or that this process is
/// a fork of the PE.
std::string why_closed(const WorldState* world);
/// Why a child of PE `pe` cannot use what it has inherited.
std::string describe_fork(Pe pe);

}  // namespace shoal::detail
