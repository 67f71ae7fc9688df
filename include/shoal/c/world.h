// SPDX-License-Identifier: Apache-2.0
// shoal/c/world.h: settings, worlds, unique ids, PEs as threads (shoal/world.hpp,
// shoal/bootstrap.hpp).
#ifndef SHOAL_C_WORLD_H
#define SHOAL_C_WORLD_H

#include <shoal/c/status.h>

#ifdef __cplusplus
extern "C" {
#endif

// Settings (docs/reference/settings.md).

typedef struct shoal_settings shoal_settings;

/// The defaults, or the defaults overridden by the SHOAL_* variables of the environment. End them
/// with shoal_settings_destroy.
SHOAL_API shoal_status shoal_settings_create(shoal_settings** settings);
SHOAL_API shoal_status shoal_settings_from_environment(shoal_settings** settings);
/// Sets one setting. name and value are those of the environment: "SHOAL_TIMEOUT_MS", "5000"; the
/// NVSHMEM_* aliases work too.
SHOAL_API shoal_status shoal_settings_set(shoal_settings* settings, const char* name,
                                          const char* value);
/// Writes the value as zero-terminated text to `text`, which has room for `capacity` bytes. Secrets
/// are "(set)" or "(not set)". SHOAL_INVALID_ARGUMENT when the room is too small, stating the need.
SHOAL_API shoal_status shoal_settings_get(const shoal_settings* settings, const char* name,
                                          char* text, size_t capacity);
SHOAL_API shoal_status shoal_settings_destroy(shoal_settings* settings);

// World.

typedef struct shoal_world shoal_world;
typedef struct shoal_unique_id shoal_unique_id;

/// Collective. settings: NULL for those of the environment, as shoal-run sets them.
SHOAL_API shoal_status shoal_world_open(const shoal_settings* settings, shoal_world** world);
/// Ends the world after a barrier. Collective. Objects made from it can only be destroyed
/// afterwards. Does nothing on a closed world.
SHOAL_API shoal_status shoal_world_close(shoal_world* world);
/// Frees the handle. A world that is still open ends without a barrier.
SHOAL_API shoal_status shoal_world_destroy(shoal_world* world);
/// This PE, and the number of PEs.
SHOAL_API shoal_status shoal_world_pe(const shoal_world* world, int32_t* pe);
SHOAL_API shoal_status shoal_world_n_pes(const shoal_world* world, int32_t* n_pes);

/// For launchers: makes an id in one process, which keeps the object until all PEs have opened the
/// world. Pass the text to all PEs by any means; they set SHOAL_UNIQUE_ID to it, SHOAL_PE and
/// SHOAL_N_PES. The text is a secret.
SHOAL_API shoal_status shoal_unique_id_create(const shoal_settings* settings, shoal_unique_id** id);
/// *text is valid as long as the object.
SHOAL_API shoal_status shoal_unique_id_text(const shoal_unique_id* id, const char** text);
SHOAL_API shoal_status shoal_unique_id_destroy(shoal_unique_id* id);

/// The body of one PE of shoal_run_threads. It may close the world but not destroy it. Returns
/// SHOAL_OK, the status of a call that failed, or any other number.
typedef shoal_status (*shoal_body)(shoal_world* world, void* context);
/// Runs body(world, context) on n_pes threads (1 to 512) of this process, one PE each. Returns the
/// first failure, with its message. settings: NULL for the defaults.
SHOAL_API shoal_status shoal_run_threads(int32_t n_pes, const shoal_settings* settings,
                                         shoal_body body, void* context);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHOAL_C_WORLD_H
