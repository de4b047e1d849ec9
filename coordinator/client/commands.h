/* commands.h: what main.c dispatches to, one struct a command; cmd_<family>.c defines them. Shared steps of commands.
 */
#ifndef KVF_COMMANDS_H
#define KVF_COMMANDS_H

#include <jansson.h>
#include "coordinator/client/session.h"
#include "coordinator/client/settings.h"

extern const struct command command_sweep, command_submit, command_status, command_watch, command_cancel,
    command_results, command_calibrate, command_generate, command_workers, command_keys, command_policies;

/* Opens a session with the settings' coordinator, keys and timeout; `stop` may be NULL. */
KVF_MUSTCHECK int session_begin(const struct settings *settings, const volatile sig_atomic_t *stop,
                                struct session **out, struct kvf_err *err);
/* The v_job row of a job; KVF_ENOTFOUND says its number. */
KVF_MUSTCHECK int job_fetch(struct session *session, int64_t job_id, json_t **job, struct kvf_err *err);
/* "NUMBER" as a job id. */
KVF_MUSTCHECK int job_id_parse(const char *text, int64_t *job_id, struct kvf_err *err);

/* Follows a job to its end, then prints the table (or JSON, CSV) when `table`; returns the exit code. */
int follow_job(const struct command *command, const struct settings *settings, struct session *session, int64_t job_id,
               bool table);
/* Prints the table of a job (or its JSON or CSV) on stdout; returns the exit code. */
int print_results(const struct command *command, const struct settings *settings, struct session *session,
                  int64_t job_id);

#endif
