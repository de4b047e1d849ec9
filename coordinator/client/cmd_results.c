/* kvfleet results */
#include <math.h>
#include <stddef.h>
#include <string.h>
#include "alloc/policy.h"
#include "coordinator/client/commands.h"
#include "coordinator/client/exit_code.h"
#include "coordinator/client/report.h"
#include "coordinator/client/table.h"

#define AT(field) offsetof(struct settings, field)

/* What a person reads at once. A program that reads JSON or CSV would take a first page for the whole. */
#define TABLE_ROWS 50

static const struct conf_item results_items[] = {
    {"job", 'j', CONF_INT, AT(job), NULL, 1, 9007199254740992.0, "N", "the job"},
    {"failures", 'f', CONF_BOOL, AT(failures), "false", 0, 0, NULL, "list the samples that are not correct"},
    {"samples", 0, CONF_BOOL, AT(samples), "false", 0, 0, NULL, "list all samples"},
    {"sample", 's', CONF_INT, AT(sample), NULL, 1, 9007199254740992.0, "ID",
     "show one sample: prompt, thinking, answer, grade"},
    {"policy", 'p', CONF_TEXT, AT(policy), NULL, 0, 0, "NAME", "only this policy; of a list: with --budget, one cell"},
    {"budget", 'b', CONF_INT, AT(budget), NULL, 1, 1048576, "N", "only this budget"},
    {"limit", 'n', CONF_INT, AT(rows), "-1", -1, 100000000, "N",
     "of a list: at most N rows; 0: all; -1: 50 in the table, all in --json and --csv"},
    {"after", 0, CONF_INT, AT(after), NULL, 1, 9007199254740992.0, "ID", "of a list: go on after this sample"},
    {"csv", 0, CONF_BOOL, AT(csv), "false", 0, 0, NULL, "print CSV"},
    {NULL, 0, CONF_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static int cells_fetch(struct session *session, int64_t job_id, json_t **cells, struct kvf_err *err)
{
    struct session_query query = SESSION_QUERY("cells");

    query.job_id = job_id;
    return session_rows(session, &query, cells, NULL, err);
}

/* The policy as cells are named: `rkv:lambda=0.1` is `rkv`. */
static int policy_named(const struct settings *settings, struct policy *out, struct kvf_err *err)
{
    memset(out, 0, sizeof *out);
    return settings->policy == NULL ? KVF_OK : policy_parse(settings->policy, out, err);
}

/* Leaves the cells that --policy and --budget name. */
static int cells_choose(const struct settings *settings, json_t *cells, struct kvf_err *err)
{
    struct policy wanted;
    int code = policy_named(settings, &wanted, err);

    for (size_t i = 0; code == KVF_OK && i < json_array_size(cells);) {
        const json_t *cell = json_array_get(cells, i);
        const char *policy = view_string(cell, "policy");
        if ((settings->policy != NULL && (policy == NULL || strcmp(policy, wanted.name) != 0)) ||
            (settings->budget != 0 && view_number(cell, "budget_tokens") != (double)settings->budget))
            json_array_remove(cells, i);
        else
            i++;
    }
    return code;
}

/* What --policy and --budget said, as an error repeats it. */
static const char *choice_print(const struct settings *settings, char *text, size_t cap)
{
    char budget[32] = "";

    if (settings->budget != 0) snprintf(budget, sizeof budget, " budget %lld", (long long)settings->budget);
    snprintf(text, cap, "%s%.160s%s", settings->policy == NULL ? "" : " policy ",
             settings->policy == NULL ? "" : settings->policy, budget);
    return text;
}

static int choice_empty(const struct settings *settings, int64_t job_id, struct kvf_err *err)
{
    char choice[256];

    return kvf_fail(err, KVF_ENOTFOUND, "job %lld: it has no cell of%s; kvfleet results --job %lld lists them",
                    (long long)job_id, choice_print(settings, choice, sizeof choice), (long long)job_id);
}

int print_results(const struct command *command, const struct settings *settings, struct session *session,
                  int64_t job_id)
{
    struct kvf_err err;
    json_t *job = NULL, *cells = NULL;
    int exit_code, code = job_fetch(session, job_id, &job, &err);
    bool has_full;

    if (code == KVF_OK) code = cells_fetch(session, job_id, &cells, &err);
    has_full = report_has_full(cells);
    if (code == KVF_OK && (settings->policy != NULL || settings->budget != 0)) {
        code = cells_choose(settings, cells, &err);
        if (code == KVF_OK && json_array_size(cells) == 0) code = choice_empty(settings, job_id, &err);
    }
    if (code == KVF_OK && settings->json)
        code = view_json(json_pack("{s:O, s:o}", "job", job, "cells", view_ordered(report_cell_columns, cells)), stdout,
                         &err);
    else if (code == KVF_OK && settings->csv)
        code = view_csv(report_cell_columns, cells, stdout, &err);
    else if (code == KVF_OK)
        report_table(job, cells, has_full, terminal_width(stdout), stdout);
    exit_code = code == KVF_OK ? report_exit_code(job) : command_fail(command, code, &err);
    json_decref(cells);
    json_decref(job);
    return exit_code;
}

/* The cell that --policy and --budget name; -1 without them. */
static int cell_pick(struct session *session, const struct settings *settings, int64_t job_id, int64_t *cell_id,
                     struct kvf_err *err)
{
    char choice[256];
    json_t *cells = NULL;
    int code;

    *cell_id = -1;
    if (settings->policy == NULL && settings->budget == 0) return KVF_OK;
    code = cells_fetch(session, job_id, &cells, err);
    if (code == KVF_OK) code = cells_choose(settings, cells, err);
    if (code == KVF_OK && json_array_size(cells) == 0) code = choice_empty(settings, job_id, err);
    if (code == KVF_OK && json_array_size(cells) > 1)
        code = kvf_fail(err, KVF_EINVAL, "job %lld:%s fits %zu cells, expected one: give --policy and --budget",
                        (long long)job_id, choice_print(settings, choice, sizeof choice), json_array_size(cells));
    if (code == KVF_OK) *cell_id = json_integer_value(json_object_get(json_array_get(cells, 0), "cell_id"));
    json_decref(cells);
    return code;
}

static int print_samples(const struct settings *settings, struct session *session, int64_t job_id, struct kvf_err *err)
{
    struct session_query query = SESSION_QUERY("samples");
    json_t *rows = NULL, *job = NULL;
    int64_t next = -1;
    /* the job first: an empty list of a job that does not exist would look like a job without failures */
    int code = job_fetch(session, job_id, &job, err);

    json_decref(job);
    if (code == KVF_OK) code = cell_pick(session, settings, job_id, &query.cell_id, err);
    if (code != KVF_OK) return code;
    query.job_id = job_id;
    query.failures = settings->failures;
    query.after = settings->after > 0 ? settings->after : -1;
    query.limit = settings->rows >= 0 ? settings->rows : settings->json || settings->csv ? 0 : TABLE_ROWS;
    code = session_rows(session, &query, &rows, &next, err);
    if (code != KVF_OK) return code;
    if (settings->json) {
        code = view_json(json_pack("{s:I, s:o, s:o}", "job_id", (json_int_t)job_id, "samples",
                                   view_ordered(report_sample_columns, rows), "next",
                                   next < 0 ? json_null() : json_integer(next)),
                         stdout, err);
    } else if (settings->csv) {
        code = view_csv(report_sample_columns, rows, stdout, err);
    } else if (json_array_size(rows) == 0) {
        fprintf(stderr, settings->failures ? "no failures\n" : "no samples\n");
    } else {
        view_table(report_sample_columns, rows, terminal_width(stdout), 3, stdout);
        fflush(stdout);
        fprintf(stderr, "\nkvfleet results --job %lld --sample ID shows one of them\n", (long long)job_id);
    }
    fflush(stdout);
    if (next >= 0 && !settings->json) fprintf(stderr, "there are more: --after %lld\n", (long long)next);
    json_decref(rows);
    return code;
}

static int print_sample(const struct settings *settings, struct session *session, int64_t job_id, struct kvf_err *err)
{
    struct session_query query = SESSION_QUERY("sample");
    json_t *rows = NULL;
    int code;

    query.job_id = job_id;
    query.sample_id = settings->sample;
    query.limit = 1;
    code = session_rows(session, &query, &rows, NULL, err);
    if (code == KVF_ENOTFOUND || (code == KVF_OK && json_array_size(rows) == 0))
        code = kvf_fail(err, KVF_ENOTFOUND, "job %lld: it has no sample %lld with a result", (long long)job_id,
                        (long long)settings->sample);
    else if (code == KVF_OK && settings->json)
        code = view_json(json_pack("{s:O}", "sample", json_array_get(rows, 0)), stdout, err);
    else if (code == KVF_OK)
        report_sample(json_array_get(rows, 0), stdout);
    json_decref(rows);
    return code;
}

static int run_results(const struct command *command, const struct settings *settings, char **rest)
{
    struct session *session = NULL;
    struct kvf_err err;
    int64_t job_id = settings->job;
    int code = KVF_OK, exit_code;

    if (job_id == 0 && rest[0] == NULL) return command_misuse(command, "--job is required");
    if (rest[0] != NULL && (job_id != 0 || rest[1] != NULL)) return command_misuse(command, "expected one job");
    if (settings->json && settings->csv) return command_misuse(command, "--json and --csv exclude each other");
    if (settings->failures + settings->samples + (settings->sample != 0) > 1)
        return command_misuse(command, "--failures, --samples and --sample exclude each other");
    if (settings->sample != 0 && settings->csv)
        return command_misuse(command, "one sample is printed as text or --json");
    if (rest[0] != NULL) code = job_id_parse(rest[0], &job_id, &err);
    if (code == KVF_OK) code = session_begin(settings, NULL, &session, &err);
    if (code != KVF_OK) return command_fail(command, code, &err);
    if (settings->sample != 0 || settings->failures || settings->samples) {
        code = settings->sample != 0 ? print_sample(settings, session, job_id, &err)
                                     : print_samples(settings, session, job_id, &err);
        exit_code = code == KVF_OK ? EXIT_DONE : command_fail(command, code, &err);
    } else {
        exit_code = print_results(command, settings, session, job_id);
    }
    session_close(&session);
    return exit_code;
}

const struct command command_results = {
    .name = "results",
    .arguments = "--job N",
    .summary = "print the table of a job, its failures, or one sample",
    .text = "Without a list: one row a cell, as sweep prints it; also while the job runs. Exit of the table: 0 done, 3 "
            "done with\n"
            "errors, 4 nothing ran, 130 cancelled.",
    .example = "kvfleet results --job 7 --failures --policy rkv --budget 128",
    .items = results_items,
    .fleet = true,
    .run = run_results,
};
