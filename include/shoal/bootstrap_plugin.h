// SPDX-License-Identifier: Apache-2.0
/* shoal/bootstrap_plugin.h: what a bootstrap plug-in is: how the PEs of a job learn who they are
 * and find PE 0.
 *
 * A launcher has started n processes and can tell each its number and pass a short text from
 * process 0 to all others. That is all that Shoal needs to know from it: PE 0 opens a socket, the
 * text says where and with which key, and from then on the PEs use Shoal's own control plane
 * (authenticated, with deadlines, aware of PEs that end).
 *
 * A plug-in is a shared library that exports one object of this type under this name:
 *
 *   const shoal_bootstrap_plugin shoal_bootstrap_plugin_table = {SHOAL_BOOTSTRAP_PLUGIN_VERSION,
 * sizeof(...), ...};
 *
 * and is asked for by SHOAL_BOOTSTRAP=plugin:/path/to/file.so. Shoal's own plug-ins (mpi, shmem,
 * pmi, pmi2, pmix) use nothing but this header. examples/bootstrap_plugin.c is a complete one;
 * docs/internals/bootstrap.md explains.
 *
 * For every world that a process opens, each PE makes these calls, one after another and never two
 * at a time: open, broadcast (skipped where n_pes is 1 or something has failed), close (where open
 * has succeeded). Several worlds of one process are opened one after another, on all PEs in the
 * same order, and may live at the same time: a plug-in whose library can be initialised only once
 * keeps it until the process ends. The plug-in's file is never unloaded.
 *
 * C11 and C++. Plain data and functions only: a plug-in need not be built with the compiler that
 * built Shoal. No exception and no longjmp may leave a function of the table.
 */
#ifndef SHOAL_BOOTSTRAP_PLUGIN_H
#define SHOAL_BOOTSTRAP_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Shoal loads plug-ins with its own version only. Members added at the end of a struct keep the
 * version: `size` says how many there are. */
#define SHOAL_BOOTSTRAP_PLUGIN_VERSION 1u

/* Room for the text that broadcast carries, with the zero at its end. It has only letters, digits
 * and . : [ ] % _ -, which every launcher's key-value store can hold. */
#define SHOAL_BOOTSTRAP_TEXT_SIZE 256
/* Room for the sentence that says why a call failed, with the zero at its end. */
#define SHOAL_BOOTSTRAP_REASON_SIZE 512

/* Results of a call. All but SHOAL_BOOTSTRAP_OK come with a sentence in `reason`. */
typedef enum shoal_bootstrap_status {
  SHOAL_BOOTSTRAP_OK = 0,
  SHOAL_BOOTSTRAP_FAILED = 1, /* the launcher or its library reported an error */
  SHOAL_BOOTSTRAP_TIMEOUT =
      2, /* timeout_ms passed; the reason names who did not come, where that is known */
  SHOAL_BOOTSTRAP_ABSENT = 3 /* open only: no launcher that this plug-in knows has started this
                                process, or the launcher's library is not installed. With
                                SHOAL_BOOTSTRAP=automatic the next plug-in is tried. */
} shoal_bootstrap_status;

/* Passed to every call; Shoal's, valid during the call. */
typedef struct shoal_bootstrap_context {
  size_t size;
  int64_t timeout_ms; /* how long this call may wait for other PEs (SHOAL_BOOTSTRAP_TIMEOUT_MS) */
  /* The environment variable `name` where Shoal knows it as a launcher's, else NULL; valid as long
   * as the context. For Shoal's own plug-ins, which leave reading the environment to one place;
   * getenv will do as well. */
  const char* (*variable)(const struct shoal_bootstrap_context* context, const char* name);
  const void* variables;                    /* for the function above */
  char reason[SHOAL_BOOTSTRAP_REASON_SIZE]; /* filled in by the plug-in when a call fails */
} shoal_bootstrap_context;

/* Flags of a table. */
enum {
  /* All calls come from the thread that opens the world, because the library below demands it.
   * Without this flag they may come from different threads (one at a time), and Shoal gives up on a
   * call that has not returned by its deadline: the world fails with Error{timeout}, the call's
   * thread is left behind. With the flag Shoal has to wait for the plug-in, which should keep to
   * timeout_ms as far as its library lets it. */
  SHOAL_BOOTSTRAP_SAME_THREAD = 1u
};

/* The table. */
typedef struct shoal_bootstrap_plugin {
  uint32_t version; /* SHOAL_BOOTSTRAP_PLUGIN_VERSION */
  uint32_t flags;
  size_t size; /* sizeof(shoal_bootstrap_plugin) */
  const char* name;
  const char* description; /* for shoal-info: what it stands on, such as "Open MPI 4.1.4" */

  /* Says who this process is: *pe from 0 to *n_pes - 1, different on each, the same after every
   * open. *job is handed to the calls below. May wait for the other PEs. */
  int (*open)(shoal_bootstrap_context* context, void** job, int32_t* pe, int32_t* n_pes);

  /* Collective: `text` of PE 0 replaces `text` on all others. SHOAL_BOOTSTRAP_TEXT_SIZE bytes,
   * zero-terminated. */
  int (*broadcast)(shoal_bootstrap_context* context, void* job, char* text);

  /* Frees what open made; the launcher's library stays initialised if it cannot be initialised
   * again. Not collective: it is called on each PE when that PE's world stands or has failed; not
   * after a call that was given up. */
  void (*close)(void* job);
} shoal_bootstrap_plugin;

/* The symbol that Shoal looks up. */
#define SHOAL_BOOTSTRAP_PLUGIN_SYMBOL "shoal_bootstrap_plugin_table"
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
extern const shoal_bootstrap_plugin shoal_bootstrap_plugin_table;

#ifdef __cplusplus
}
#endif

#endif /* SHOAL_BOOTSTRAP_PLUGIN_H */
