/* kvfleet status, kvfleet workers, kvfleet cancel */
#include <stddef.h>
#include <string.h>
#include "coordinator/client/commands.h"
#include "coordinator/client/exit_code.h"
#include "coordinator/client/format.h"
#include "coordinator/client/progress.h"
#include "coordinator/client/table.h"
#include "coordinator/client/view.h"

#define AT(field) offsetof(struct settings, field)

static const struct conf_item status_items[] = {
    {"limit", 'n', CONF_INT, AT(rows), "20", 0, 100000000, "N", "at most N jobs; 0: all"},
    {"after", 0, CONF_INT, AT(after), NULL, 1, 9007199254740992.0, "N", "go on after this job"},
    {"csv", 0, CONF_BOOL, AT(csv), "false", 0, 0, NULL, "print CSV"},
    {NULL, 0, CONF_BOOL, 0, NULL, 0, 0, NULL, NULL},
};
static const struct conf_item workers_items[] = {
    {"csv", 0, CONF_BOOL, AT(csv), "false", 0, 0, NULL, "print CSV"},
    {NULL, 0, CONF_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static const struct view_column job_columns[] = {
    {"job_id", "job", VIEW_ID, NULL, false},
    {"state", "state", VIEW_TEXT, NULL, false},
    {"title", "title", VIEW_SHORT, NULL, false},
    {"model_name", "model", VIEW_SHORT, NULL, false},
    {"dataset_name", "data set", VIEW_SHORT, NULL, false},
    {"n_cells", "cells", VIEW_COUNT, NULL, false},
    {"done", "done", VIEW_COUNT, NULL, false},
    {"n_samples", "samples", VIEW_COUNT, NULL, false},
    {"errors", "errors", VIEW_COUNT, NULL, false},
    {"created_at", "created", VIEW_TIME, NULL, false},
    {"wall_s", "took", VIEW_DURATION, NULL, false},
    {"tokens_per_s", "tok/s", VIEW_COUNT, NULL, false},
    {NULL, NULL, VIEW_HIDDEN, NULL, false},
};
static const struct view_column worker_columns[] = {
    {"run_id", "run", VIEW_ID, NULL, false},
    {"worker", "worker", VIEW_TEXT, NULL, false},
    {"host", "host", VIEW_SHORT, NULL, false},
    {"pid", "pid", VIEW_ID, NULL, false},
    {"state", "state", VIEW_TEXT, NULL, false},
    {"backend", "backend", VIEW_TEXT, NULL, false},
    {"kernel_set", "kernels", VIEW_TEXT, NULL, false},
    {"device", "device", VIEW_SHORT, NULL, false},
    {"threads", "threads", VIEW_COUNT, NULL, false},
    {"max_batch", "batch", VIEW_COUNT, NULL, false},
    {"samples", "samples", VIEW_COUNT, NULL, false},
    {"tokens", "tokens", VIEW_COUNT, NULL, false},
    {"version", "version", VIEW_TEXT, NULL, false},
    {"last_seen_at", "last seen", VIEW_TIME, NULL, false},
    {"end_reason", "ended by", VIEW_SHORT, NULL, true},
    {NULL, NULL, VIEW_HIDDEN, NULL, false},
};

/* One job in full: its row as lines, and how far it is. */
static void job_print(const json_t *job, const json_t *progress_row)
{
    struct table *table = table_new();
    struct progress progress;
    char text[512];

    table_column(table, "", TABLE_LEFT);
    table_column(table, "", TABLE_LEFT);
    for (const struct view_column *column = job_columns; column->key != NULL; column++) {
        struct view_column whole = *column; /* one job has the room */
        if (whole.kind == VIEW_SHORT) whole.kind = VIEW_TEXT;
        table_cell(table, column->header);
        table_cell(table, view_format(&whole, job, text, sizeof text));
    }
    table_print(table, 0, 0, stdout);
    table_free(&table);
    if (progress_row == NULL || progress_parse(progress_row, &progress, NULL) != KVF_OK) return;
    progress_line(&progress, text, sizeof text);
    printf("\n%s\n", text);
    progress_free(&progress);
}

/* The row that the list has for it. */
static int job_csv(json_t *job, struct kvf_err *err)
{
    json_t *rows = json_pack("[O]", job);
    int code;

    if (rows == NULL) return kvf_fail(err, KVF_ENOMEM, "CSV: out of memory");
    code = view_csv(job_columns, rows, stdout, err);
    json_decref(rows);
    return code;
}

static int status_job(const struct settings *settings, struct session *session, const char *text, struct kvf_err *err)
{
    struct session_query query = SESSION_QUERY("progress");
    json_t *job = NULL, *rows = NULL, *progress;
    int64_t job_id;
    int code = job_id_parse(text, &job_id, err);

    if (code == KVF_OK) code = job_fetch(session, job_id, &job, err);
    if (code != KVF_OK) return code;
    query.job_id = job_id;
    query.limit = 1;
    /* a job that ended long ago may have no progress in the coordinator's memory */
    code = session_rows(session, &query, &rows, NULL, err);
    if (code == KVF_ENOTFOUND) code = KVF_OK;
    progress = json_array_get(rows, 0);
    if (code == KVF_OK && settings->json)
        code = view_json(
            json_pack("{s:O, s:o}", "job", job, "progress", progress == NULL ? json_null() : json_incref(progress)),
            stdout, err);
    else if (code == KVF_OK && settings->csv)
        code = job_csv(job, err);
    else if (code == KVF_OK)
        job_print(job, progress);
    json_decref(rows);
    json_decref(job);
    return code;
}

static int print_list(const struct settings *settings, const char *name, const struct view_column *columns,
                      const json_t *rows, int64_t next, struct kvf_err *err)
{
    int code = KVF_OK;

    if (settings->json)
        return view_json(json_pack("{s:o, s:o}", name, view_ordered(columns, rows), "next",
                                   next < 0 ? json_null() : json_integer(next)),
                         stdout, err);
    if (settings->csv)
        code = view_csv(columns, rows, stdout, err);
    else if (json_array_size(rows) == 0)
        fprintf(stderr, "no %s\n", name);
    else
        view_table(columns, rows, terminal_width(stdout), 2, stdout);
    fflush(stdout);
    if (next >= 0) fprintf(stderr, "there are more: --after %lld\n", (long long)next);
    return code;
}

static int run_status(const struct command *command, const struct settings *settings, char **rest)
{
    struct session_query query = SESSION_QUERY("jobs");
    struct session *session = NULL;
    struct kvf_err err;
    json_t *rows = NULL;
    int64_t next = -1;
    int code;

    if (rest[0] != NULL && rest[1] != NULL) return command_misuse(command, "expected one job at most");
    if (settings->json && settings->csv) return command_misuse(command, "--json and --csv exclude each other");
    code = session_begin(settings, NULL, &session, &err);
    if (code == KVF_OK && rest[0] != NULL) {
        code = status_job(settings, session, rest[0], &err);
    } else if (code == KVF_OK) {
        query.limit = settings->rows;
        query.after = settings->after > 0 ? settings->after : -1;
        code = session_rows(session, &query, &rows, &next, &err);
        if (code == KVF_OK) code = print_list(settings, "jobs", job_columns, rows, next, &err);
    }
    json_decref(rows);
    session_close(&session);
    return code == KVF_OK ? EXIT_DONE : command_fail(command, code, &err);
}

static int run_workers(const struct command *command, const struct settings *settings, char **rest)
{
    struct session_query query = SESSION_QUERY("workers");
    struct session *session = NULL;
    struct kvf_err err;
    json_t *rows = NULL;
    int64_t next = -1;
    int code;

    if (rest[0] != NULL) return command_misuse(command, "'%s' is not a flag", rest[0]);
    if (settings->json && settings->csv) return command_misuse(command, "--json and --csv exclude each other");
    code = session_begin(settings, NULL, &session, &err);
    if (code == KVF_OK) code = session_rows(session, &query, &rows, &next, &err);
    if (code == KVF_OK) code = print_list(settings, "workers", worker_columns, rows, next, &err);
    json_decref(rows);
    session_close(&session);
    return code == KVF_OK ? EXIT_DONE : command_fail(command, code, &err);
}

static int run_cancel(const struct command *command, const struct settings *settings, char **rest)
{
    struct session *session = NULL;
    struct wire_message answer;
    struct msg_cancel cancel;
    struct kvf_err err;
    int64_t job_id;
    int code;

    if (rest[0] == NULL || rest[1] != NULL) return command_misuse(command, "expected the number of one job");
    code = job_id_parse(rest[0], &job_id, &err);
    if (code == KVF_OK) code = session_begin(settings, NULL, &session, &err);
    if (code == KVF_OK) {
        msg_init(MSG_CANCEL_TYPE, &cancel);
        cancel.job_id = (uint64_t)job_id;
        code = session_call(session, MSG_CANCEL_TYPE, &cancel, MSG_JOB_TYPE, &answer, &err);
    }
    if (code == KVF_OK) {
        const struct msg_job *job = answer.in.body;
        char state[32];
        snprintf(state, sizeof state, "%.*s", (int)job->state.len, job->state.text);
        if (settings->json)
            code = view_json(json_pack("{s:I, s:s}", "job_id", (json_int_t)job_id, "state", state), stdout, &err);
        else if (strcmp(state, "cancelled") == 0)
            fprintf(stderr, "job %lld is cancelled; what was done is kept: kvfleet results --job %lld\n",
                    (long long)job_id, (long long)job_id);
        else
            fprintf(stderr, "job %lld had already ended: %s\n", (long long)job_id, state);
        wire_message_free(&answer);
    }
    session_close(&session);
    return code == KVF_OK ? EXIT_DONE : command_fail(command, code, &err);
}

const struct command command_status = {
    .name = "status",
    .arguments = "[JOB]",
    .summary = "list the jobs, or show one",
    .text = NULL,
    .example = "kvfleet status 7",
    .items = status_items,
    .fleet = true,
    .run = run_status,
};
const struct command command_workers = {
    .name = "workers",
    .arguments = "",
    .summary = "list the workers: what they run on and what they did",
    .text = NULL,
    .example = "kvfleet workers --json",
    .items = workers_items,
    .fleet = true,
    .run = run_workers,
};
const struct command command_cancel = {
    .name = "cancel",
    .arguments = "JOB",
    .summary = "end a job and keep what is done",
    .text = "May be said again: a job that has ended stays as it is.",
    .example = "kvfleet cancel 7",
    .items = NULL,
    .fleet = true,
    .run = run_cancel,
};
