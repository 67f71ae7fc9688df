// SPDX-License-Identifier: Apache-2.0
// collective.cpp: collectives over teams.
#include "shoal/collective.hpp"

#include "capi/objects.hpp"

namespace shoal::capi {
namespace {

const Team& team_of(const shoal_team* team, const char* call) {
  return required(team, call, "team").value;
}

std::span<const std::size_t> per_pe(const Team& team, const size_t* numbers, const char* call,
                                    const char* name) {
  return {&required(numbers, call, name), static_cast<std::size_t>(team.size())};
}

DataType dtype_of(std::int32_t dtype, const char* call) {
  return enumeration(dtype, DataType::float64, call, "dtype");
}

ReduceOp op_of(std::int32_t op, const char* call) {
  return enumeration(op, ReduceOp::bit_xor, call, "op");
}

}  // namespace
}  // namespace shoal::capi

using namespace shoal::capi;

shoal_status shoal_barrier(const shoal_team* team) {
  return guarded([&] { shoal::barrier(team_of(team, "shoal_barrier")); });
}

shoal_status shoal_sync(const shoal_team* team) {
  return guarded([&] { shoal::sync(team_of(team, "shoal_sync")); });
}

shoal_status shoal_broadcast(const shoal_team* team, void* target, const void* source, size_t bytes,
                             int32_t root) {
  return guarded([&] {
    shoal::broadcast_bytes(team_of(team, "shoal_broadcast"), target, source, bytes, root);
  });
}

shoal_status shoal_all_gather(const shoal_team* team, void* target, const void* source,
                              size_t bytes) {
  return guarded(
      [&] { shoal::all_gather_bytes(team_of(team, "shoal_all_gather"), target, source, bytes); });
}

shoal_status shoal_all_to_all(const shoal_team* team, void* target, const void* source,
                              size_t bytes) {
  return guarded(
      [&] { shoal::all_to_all_bytes(team_of(team, "shoal_all_to_all"), target, source, bytes); });
}

shoal_status shoal_all_to_all_v(const shoal_team* team, void* target, const size_t* receive_bytes,
                                const size_t* receive_offsets, const void* source,
                                const size_t* send_bytes, const size_t* send_offsets) {
  const char* call = "shoal_all_to_all_v";
  return guarded([&] {
    const shoal::Team& pes = team_of(team, call);
    shoal::all_to_all_v_bytes(pes, target, per_pe(pes, receive_bytes, call, "receive_bytes"),
                              per_pe(pes, receive_offsets, call, "receive_offsets"), source,
                              per_pe(pes, send_bytes, call, "send_bytes"),
                              per_pe(pes, send_offsets, call, "send_offsets"));
  });
}

shoal_status shoal_reduce(const shoal_team* team, int32_t dtype, int32_t op, void* target,
                          const void* source, size_t count) {
  const char* call = "shoal_reduce";
  return guarded([&] {
    shoal::reduce(team_of(team, call), dtype_of(dtype, call), op_of(op, call), target, source,
                  count);
  });
}

shoal_status shoal_reduce_scatter(const shoal_team* team, int32_t dtype, int32_t op, void* target,
                                  const void* source, size_t count) {
  const char* call = "shoal_reduce_scatter";
  return guarded([&] {
    shoal::reduce_scatter(team_of(team, call), dtype_of(dtype, call), op_of(op, call), target,
                          source, count);
  });
}
