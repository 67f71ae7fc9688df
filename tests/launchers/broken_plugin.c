// SPDX-License-Identifier: Apache-2.0
/* Bootstrap plug-ins with faults, and one without, selected by FAULT. Used by
 * tests/unit/bootstrap/plugin_test.cpp. */
#include <shoal/bootstrap_plugin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  NONE,
  WRONG_VERSION,
  SHORT_TABLE,
  NULL_MEMBER,
  OPEN_FAILS,
  OPEN_ABSENT,
  NO_REASON,
  OPEN_HANGS,
  BROADCAST_HANGS,
  BAD_PE,
  LONG_TEXT,
  TIMES_OUT
};

static void say(shoal_bootstrap_context* context, const char* reason) {
  snprintf(context->reason, sizeof context->reason, "%s", reason);
}

/* PE and number of PEs come from the environment of the test: TEST_PE, TEST_N_PES. */
static int open_job(shoal_bootstrap_context* context, void** job, int32_t* pe, int32_t* n_pes) {
  if (FAULT == OPEN_HANGS) pause();
  if (FAULT == NO_REASON) return SHOAL_BOOTSTRAP_FAILED;
  if (FAULT == OPEN_FAILS || FAULT == OPEN_ABSENT || FAULT == TIMES_OUT) {
    say(context, "the launcher is on strike");
    return FAULT == OPEN_FAILS    ? SHOAL_BOOTSTRAP_FAILED
           : FAULT == OPEN_ABSENT ? SHOAL_BOOTSTRAP_ABSENT
                                  : SHOAL_BOOTSTRAP_TIMEOUT;
  }
  *job = strdup("job");
  *n_pes = 2;
  *pe = FAULT == BAD_PE ? 2 : 1;
  return SHOAL_BOOTSTRAP_OK;
}

/* PE 1 of 2 receives a text that PE 0, which does not exist, could have sent. */
static int broadcast(shoal_bootstrap_context* context, void* job, char* text) {
  (void)context;
  (void)job;
  if (FAULT == BROADCAST_HANGS) pause();
  if (FAULT == LONG_TEXT) {
    memset(text, 'x', SHOAL_BOOTSTRAP_TEXT_SIZE);
  } else {
    strcpy(text, "failed:no%20interface%20fits");
  }
  return SHOAL_BOOTSTRAP_OK;
}

/* Counts calls of close with the job, for the test. */
int broken_plugin_closed = 0;
static void close_job(void* job) {
  broken_plugin_closed += strcmp((char*)job, "job") == 0;
  free(job);
}

const shoal_bootstrap_plugin shoal_bootstrap_plugin_table = {
    FAULT == WRONG_VERSION ? 99 : SHOAL_BOOTSTRAP_PLUGIN_VERSION,
    0,
    FAULT == SHORT_TABLE ? sizeof(shoal_bootstrap_plugin) - sizeof(void*) : sizeof(shoal_bootstrap_plugin),
    "broken",
    "for tests",
    open_job,
    FAULT == NULL_MEMBER ? NULL : broadcast,
    close_job,
};
