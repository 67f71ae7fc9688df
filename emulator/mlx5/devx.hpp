// SPDX-License-Identifier: Apache-2.0
// devx.hpp: objects that clients create by device commands in memory of their own.
#pragma once

#include <infiniband/mlx5dv.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "base/mlx5/command_format.hpp"
#include "verbs/objects.hpp"

namespace shoal::emulator {

using namespace mlx5;  // of commands

/// Registered memory of a client, which commands name by number.
struct Umem {
  mlx5dv_devx_umem base{};
  Context* context = nullptr;
  std::byte* memory = nullptr;
  std::uint64_t bytes = 0;
};

/// A page of doorbell registers, and the queue pairs that use it.
struct Uar {
  mlx5dv_devx_uar base{};
  Context* context = nullptr;
  Pages page;
  std::set<std::uint32_t> pairs;  ///< guarded by the lock of the NIC
};

/// Object that mlx5dv_devx_obj_create made.
struct DevxObject {
  enum class Kind : std::uint8_t { queue_pair, completion_queue, memory_key };

  Context* context = nullptr;
  Kind kind = Kind::queue_pair;
  std::uint32_t number = 0;  ///< of a memory key: the whole key
  Uar* uar = nullptr;        ///< of a queue pair
  Connection connection;     ///< of a queue pair
  std::uint32_t log_receives = 0, log_blocks = 0;
  std::array<std::byte, qp_context::kPathBytes> path{};  ///< as the client gave it
};

/// Umems, doorbell pages and queue pairs by their numbers, which are those of the process.
class DevxTables {
 public:
  static DevxTables& get();

  std::mutex mutex;
  std::map<std::uint32_t, Umem*> umems;
  std::map<std::uint32_t, Uar*> uars;
  std::uint32_t next = 1;
};

/// Executes a command that creates an object. On success `object` is set and the response names it.
Status create_object(Context& context, std::span<const std::byte> in, std::span<std::byte> out,
                     std::unique_ptr<DevxObject>& object);
/// Executes a command on `object`.
Status modify_object(DevxObject& object, std::span<const std::byte> in);
Status query_object(DevxObject& object, std::span<const std::byte> in, std::span<std::byte> out);
Status destroy_object(DevxObject& object);
/// Executes a command that has no object.
Status execute(Context& context, std::span<const std::byte> in, std::span<std::byte> out);

}  // namespace shoal::emulator
