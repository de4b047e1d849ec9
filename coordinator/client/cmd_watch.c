/* kvfleet watch, and what sweep does after it submitted */
#include <stdlib.h>
#include <string.h>
#include "coordinator/client/commands.h"
#include "coordinator/client/exit_code.h"
#include "coordinator/client/interrupt.h"
#include "coordinator/client/report.h"
#include "coordinator/client/watch.h"

int session_begin(const struct settings *settings, const volatile sig_atomic_t *stop, struct session **out,
                  struct kvf_err *err)
{
    struct session_options options = {settings->coordinator, settings->keys, settings->key, settings->timeout_ms, stop};

    return session_open(&options, out, err);
}

int job_id_parse(const char *text, int64_t *job_id, struct kvf_err *err)
{
    char *end;
    long long value = strtoll(text, &end, 10);

    if (end == text || *end != '\0' || value < 1 || strlen(text) > 18)
        return kvf_fail(err, KVF_EINVAL, "expected a job's number, got '%s'", text);
    *job_id = value;
    return KVF_OK;
}

int job_fetch(struct session *session, int64_t job_id, json_t **job, struct kvf_err *err)
{
    struct session_query query = SESSION_QUERY("job");
    json_t *rows = NULL;
    int code;

    *job = NULL;
    query.job_id = job_id;
    query.limit = 1;
    code = session_rows(session, &query, &rows, NULL, err);
    if (code == KVF_OK) *job = json_incref(json_array_get(rows, 0));
    json_decref(rows);
    if (code == KVF_ENOTFOUND || (code == KVF_OK && *job == NULL))
        return kvf_fail(err, KVF_ENOTFOUND, "job %lld: there is no such job; kvfleet status lists them",
                        (long long)job_id);
    return code;
}

int follow_job(const struct command *command, const struct settings *settings, struct session *session, int64_t job_id,
               bool table)
{
    struct watch_options options = {job_id, "", settings->timeout_ms, settings->json && !table};
    struct kvf_err err;
    json_t *job = NULL;
    int code = job_fetch(session, job_id, &job, &err), exit_code;

    if (code == KVF_OK) {
        options.title = view_string(job, "title") == NULL ? "" : view_string(job, "title");
        code = watch_job(session, &options, &err);
        json_decref(job);
    }
    if (interrupt_seen != 0) {
        fprintf(stderr,
                "interrupted: job %lld goes on without you\n  kvfleet watch %lld    follows it again\n"
                "  kvfleet cancel %lld   ends it and keeps what is done\n",
                (long long)job_id, (long long)job_id, (long long)job_id);
        return EXIT_CANCELLED;
    }
    if (code != KVF_OK) return command_fail(command, code, &err);
    if (table) return print_results(command, settings, session, job_id);
    code = job_fetch(session, job_id, &job, &err);
    if (code != KVF_OK) return command_fail(command, code, &err);
    exit_code = report_exit_code(job);
    json_decref(job);
    fprintf(stderr, "kvfleet results --job %lld shows the table\n", (long long)job_id);
    return exit_code;
}

static int run_watch(const struct command *command, const struct settings *settings, char **rest)
{
    struct session *session = NULL;
    struct kvf_err err;
    int64_t job_id;
    int code, exit_code;

    if (rest[0] == NULL || rest[1] != NULL) return command_misuse(command, "expected the number of one job");
    code = job_id_parse(rest[0], &job_id, &err);
    if (code != KVF_OK) return command_fail(command, code, &err);
    interrupt_catch();
    code = session_begin(settings, &interrupt_seen, &session, &err);
    if (code != KVF_OK) return command_fail(command, code, &err);
    exit_code = follow_job(command, settings, session, job_id, false);
    session_close(&session);
    return exit_code;
}

const struct command command_watch = {
    .name = "watch",
    .arguments = "JOB",
    .summary = "follow a job until it ends",
    .text = "On a terminal a live view, in a pipe a line now and then (both on stderr); with --json an object a line "
            "on stdout.\n"
            "While the coordinator is away it is tried again for --timeout. Exit: 0 done, 3 done with errors, 4 "
            "nothing ran,\n"
            "69 coordinator away for too long, 130 cancelled or interrupted.",
    .example = "kvfleet watch 7",
    .items = NULL,
    .fleet = true,
    .run = run_watch,
};
