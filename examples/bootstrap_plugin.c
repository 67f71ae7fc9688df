// SPDX-License-Identifier: Apache-2.0
/* A user-written bootstrap plug-in: PEs find each other through files in a shared folder.
 *
 *   cc -shared -fPIC -I include examples/bootstrap_plugin.c -o folder_plugin.so
 *   export SHOAL_BOOTSTRAP=plugin:$PWD/folder_plugin.so FOLDER=$(mktemp -d) FOLDER_N_PES=2
 *   FOLDER_PE=0 ./program & FOLDER_PE=1 ./program
 *
 * docs/internals/bootstrap.md explains it. A plug-in needs only the one header: neither Shoal's
 * library nor C++. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <shoal/bootstrap_plugin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct job {
  const char* folder;
  long pe;
  long n_pes;
};

/* PEs open their worlds in the same order, so a counter names each world. Calls are serialized. */
static unsigned long worlds = 0;

static int failed(shoal_bootstrap_context* context, int status, const char* what, const char* why) {
  snprintf(context->reason, sizeof context->reason, "%.300s: %.200s", what, why);
  return status;
}

static int open_job(shoal_bootstrap_context* context, void** job, int32_t* pe, int32_t* n_pes) {
  const char *folder = getenv("FOLDER"), *my_pe = getenv("FOLDER_PE"),
             *count = getenv("FOLDER_N_PES");
  if (folder == NULL || my_pe == NULL || count == NULL)
    return failed(context, SHOAL_BOOTSTRAP_ABSENT, "not set", "FOLDER, FOLDER_PE or FOLDER_N_PES");
  struct job* opened = malloc(sizeof *opened);
  if (opened == NULL) return failed(context, SHOAL_BOOTSTRAP_FAILED, "malloc", strerror(errno));
  opened->folder = folder;
  opened->pe = strtol(my_pe, NULL, 10);
  opened->n_pes = strtol(count, NULL, 10);
  *job = opened;
  *pe = (int32_t)opened->pe;
  *n_pes = (int32_t)opened->n_pes;
  return SHOAL_BOOTSTRAP_OK;
}

/* The text is a secret: the file is readable by this user only, and renamed when complete. */
static int publish(shoal_bootstrap_context* context, const char* name, const char* text) {
  char unfinished[1024 + 8];
  snprintf(unfinished, sizeof unfinished, "%s.new", name);
  const int file = open(unfinished, O_WRONLY | O_CREAT | O_EXCL, 0600);
  if (file < 0) return failed(context, SHOAL_BOOTSTRAP_FAILED, unfinished, strerror(errno));
  const ssize_t written = write(file, text, strlen(text));
  if (close(file) != 0 || written != (ssize_t)strlen(text) || rename(unfinished, name) != 0)
    return failed(context, SHOAL_BOOTSTRAP_FAILED, name, strerror(errno));
  return SHOAL_BOOTSTRAP_OK;
}

/* Polls for the file until it exists or the timeout has passed. */
static int look_up(shoal_bootstrap_context* context, const char* name, char* text) {
  const struct timespec pause = {0, 2 * 1000 * 1000};
  for (int64_t waited_ms = 0; waited_ms < context->timeout_ms; waited_ms += 2) {
    const int file = open(name, O_RDONLY);
    if (file >= 0) {
      const ssize_t count = read(file, text, SHOAL_BOOTSTRAP_TEXT_SIZE - 1);
      close(file);
      if (count < 0) return failed(context, SHOAL_BOOTSTRAP_FAILED, name, strerror(errno));
      text[count] = '\0';
      return SHOAL_BOOTSTRAP_OK;
    }
    if (errno != ENOENT) return failed(context, SHOAL_BOOTSTRAP_FAILED, name, strerror(errno));
    nanosleep(&pause, NULL);
  }
  return failed(context, SHOAL_BOOTSTRAP_TIMEOUT, name, "PE 0 has not written it");
}

static int broadcast(shoal_bootstrap_context* context, void* job, char* text) {
  const struct job* own = job;
  char name[1024];
  snprintf(name, sizeof name, "%s/world-%lu", own->folder, worlds++);
  return own->pe == 0 ? publish(context, name, text) : look_up(context, name, text);
}

static void close_job(void* job) {
  free(job);
}

const shoal_bootstrap_plugin shoal_bootstrap_plugin_table = {
    .version = SHOAL_BOOTSTRAP_PLUGIN_VERSION,
    .flags = 0,
    .size = sizeof(shoal_bootstrap_plugin),
    .name = "folder",
    .description = "files in $FOLDER",
    .open = open_job,
    .broadcast = broadcast,
    .close = close_job,
};
