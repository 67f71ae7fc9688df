// SPDX-License-Identifier: Apache-2.0
// world.cpp: worlds, unique ids, and PEs as threads.
#include <string>

#include "capi/objects.hpp"

namespace shoal::capi {
namespace {

/// Runs the body of one PE of shoal_run_threads. Throws its failure, with the same code and
/// message.
void run_body(World& world, shoal_body body, void* context) {
  shoal_world handle{world};
  const shoal_status status = body(&handle, context);
  if (status == SHOAL_OK) return;
  std::string message = reason_of(shoal_last_error());
  if (message.empty())
    message = fmt::format("SHOAL-N889: shoal_run_threads: a body returned {}", status);
  const bool known = status > SHOAL_OK && status < SHOAL_INTERNAL;
  if (!known) throw std::runtime_error(Error(Code::system, message).what());
  throw Error(static_cast<Code>(status), message);
}

}  // namespace
}  // namespace shoal::capi

using namespace shoal::capi;

shoal_status shoal_world_open(const shoal_settings* settings, shoal_world** world) {
  return guarded([&] {
    shoal_world*& out = required(world, "shoal_world_open", "world");
    shoal::WorldOptions options;
    options.settings = settings != nullptr ? settings->value : shoal::Settings::from_environment();
    out = new shoal_world{shoal::World::open(std::move(options))};
  });
}

shoal_status shoal_world_close(shoal_world* world) {
  return guarded([&] { required(world, "shoal_world_close", "world").value.close(); });
}

shoal_status shoal_world_destroy(shoal_world* world) {
  return destroy(world);
}

shoal_status shoal_world_pe(const shoal_world* world, int32_t* pe) {
  const char* call = "shoal_world_pe";
  return guarded([&] { required(pe, call, "pe") = required(world, call, "world").value.my_pe(); });
}

shoal_status shoal_world_n_pes(const shoal_world* world, int32_t* n_pes) {
  const char* call = "shoal_world_n_pes";
  return guarded(
      [&] { required(n_pes, call, "n_pes") = required(world, call, "world").value.n_pes(); });
}

shoal_status shoal_unique_id_create(const shoal_settings* settings, shoal_unique_id** id) {
  return guarded([&] {
    shoal_unique_id*& out = required(id, "shoal_unique_id_create", "id");
    auto made = shoal::UniqueId::create(settings != nullptr ? settings->value
                                                            : shoal::Settings::from_environment());
    std::string text = made.to_string();
    out = new shoal_unique_id{std::move(made), std::move(text)};
  });
}

shoal_status shoal_unique_id_text(const shoal_unique_id* id, const char** text) {
  const char* call = "shoal_unique_id_text";
  return guarded([&] { required(text, call, "text") = required(id, call, "id").text.c_str(); });
}

shoal_status shoal_unique_id_destroy(shoal_unique_id* id) {
  return destroy(id);
}

shoal_status shoal_run_threads(int32_t n_pes, const shoal_settings* settings, shoal_body body,
                               void* context) {
  return guarded([&] {
    shoal::require(body != nullptr, shoal::Code::invalid_argument,
                   "SHOAL-N888: shoal_run_threads: body is NULL");
    shoal::run_threads(n_pes, settings != nullptr ? settings->value : shoal::Settings{},
                       [&](shoal::World& world) { run_body(world, body, context); });
  });
}
