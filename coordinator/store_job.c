#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/seed.h"
#include "coordinator/store.h"

static bool str_is(struct str value, const char *text)
{
    return value.len == strlen(text) && memcmp(value.text, text, value.len) == 0;
}

static int job_missing(int64_t job_id, struct kvf_err *err)
{
    return kvf_fail(err, KVF_ENOTFOUND, "job %" PRId64 ": there is no such job", job_id);
}

/* ---- a job and its cells, in one statement ---- */

int store_job_create(struct store *store, const struct msg_submit *submit, const char *submitted_by, int64_t *job_id,
                     struct kvf_err *err)
{
    static const enum column_kind kinds[] = {COLUMN_TEXT, COLUMN_INT, COLUMN_INT, COLUMN_REAL,
                                             COLUMN_REAL, COLUMN_INT, COLUMN_INT, COLUMN_TEXT};
    struct column cells[sizeof kinds / sizeof *kinds];
    struct pg_params params;
    PGresult *result = NULL;
    int code;

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) column_init(&cells[i], kinds[i]);
    for (uint32_t i = 0; i < submit->n_cells; i++) {
        const struct rec_cell *cell = &submit->cells[i];
        bool full = str_is(cell->policy, "full");
        column_text(&cells[0], cell->policy);
        column_int(&cells[1], full ? MSG_NULL_INT : (int64_t)cell->budget_tokens);
        column_int(&cells[2], full ? MSG_NULL_INT : (int64_t)cell->interval_tokens);
        column_real(&cells[3], cell->temperature);
        column_real(&cells[4], cell->top_p);
        column_int(&cells[5], (int64_t)cell->top_k);
        column_int(&cells[6], (int64_t)cell->max_new_tokens);
        column_text(&cells[7], cell->template_name);
    }
    pg_params_init(&params);
    pg_text(&params, submit->content_hash);
    pg_text(&params, submit->title);
    pg_text(&params, submit->model_name);
    pg_text(&params, submit->model_hash);
    pg_text(&params, submit->dataset_name);
    pg_text(&params, submit->dataset_hash);
    pg_text(&params, submit->profile);
    pg_int(&params, (int64_t)submit->repeats);
    pg_numeric(&params, submit->seed);
    pg_int(&params, (int64_t)submit->n_problems);
    pg_int(&params, (int64_t)(submit->n_problems * submit->repeats * submit->n_cells));
    pg_int(&params, (int64_t)submit->max_attempts);
    pg_int(&params, (int64_t)submit->skipped_lines);
    pg_text(&params, submit->spec);
    pg_text(&params, str_of(submitted_by));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) pg_column(&params, &cells[i]);
    code = pg_run(
        &store->pg,
        "WITH j AS (INSERT INTO jobs (content_hash, title, state, model_name, model_hash, dataset_name, "
        "             dataset_hash, profile, repeats, seed, n_problems, n_samples, max_attempts, skipped_lines, "
        "             spec, submitted_by) "
        "           SELECT $1, $2, 'receiving', $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14::jsonb, $15 "
        "           RETURNING job_id), "
        "c AS (INSERT INTO cells (job_id, ordinal, policy, budget_tokens, interval_tokens, temperature, top_p, "
        "                         top_k, max_new_tokens, template_name) "
        "      SELECT job_id, i.ordinal, policy, budget_tokens, interval_tokens, temperature, top_p, top_k, "
        "             max_new_tokens, template_name "
        "      FROM j, unnest($16, $17, $18, $19, $20, $21, $22, $23) WITH ORDINALITY AS i(policy, budget_tokens, "
        "        interval_tokens, temperature, top_p, top_k, max_new_tokens, template_name, ordinal) "
        "      ORDER BY i.ordinal) "
        "SELECT job_id FROM j",
        &params, STORE_TIMEOUT_MS, &result, err);
    pg_params_free(&params);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) column_free(&cells[i]);
    if (code != KVF_OK) return code;
    *job_id = pg_get_int(result, 0, 0);
    PQclear(result);
    return KVF_OK;
}

int store_job_unfinished(struct store *store, struct str content_hash, int64_t *job_id, struct kvf_err *err)
{
    struct pg_params params;
    PGresult *result = NULL;
    int code;

    pg_params_init(&params);
    pg_text(&params, content_hash);
    code = pg_run(&store->pg,
                  "SELECT job_id FROM jobs WHERE content_hash = $1 AND state IN ('receiving', 'queued', 'running') "
                  "ORDER BY job_id DESC LIMIT 1",
                  &params, STORE_TIMEOUT_MS, &result, err);
    pg_params_free(&params);
    if (code != KVF_OK) return code;
    if (PQntuples(result) == 0)
        code = kvf_fail(err, KVF_ENOTFOUND, "no unfinished job with that content");
    else
        *job_id = pg_get_int(result, 0, 0);
    PQclear(result);
    return code;
}

int store_job_look(struct store *store, int64_t job_id, struct store_job *out, struct kvf_err *err)
{
    struct pg_params params;
    PGresult *result = NULL;
    int code;

    pg_params_init(&params);
    pg_int(&params, job_id);
    code =
        pg_run(&store->pg,
               "SELECT state, (SELECT count(*) FROM problems p WHERE p.job_id = j.job_id), n_problems, repeats, seed, "
               "       (SELECT count(*) FROM cells c WHERE c.job_id = j.job_id), "
               "       CASE WHEN state IN ('receiving', 'queued') THEN (SELECT count(*) FROM samples s WHERE s.job_id "
               "= j.job_id) END "
               "FROM jobs j WHERE job_id = $1",
               &params, STORE_TIMEOUT_MS, &result, err);
    pg_params_free(&params);
    if (code != KVF_OK) return code;
    if (PQntuples(result) == 0) {
        code = job_missing(job_id, err);
    } else {
        *out = (struct store_job){.job_id = job_id,
                                  .received = (uint64_t)pg_get_int(result, 0, 1),
                                  .n_problems = (uint64_t)pg_get_int(result, 0, 2),
                                  .repeats = (uint64_t)pg_get_int(result, 0, 3),
                                  .seed = strtoull(PQgetvalue(result, 0, 4), NULL, 10),
                                  .n_cells = (uint64_t)pg_get_int(result, 0, 5),
                                  .made = PQgetisnull(result, 0, 6) ? 0 : (uint64_t)pg_get_int(result, 0, 6)};
        snprintf(out->state, sizeof out->state, "%s", PQgetvalue(result, 0, 0));
    }
    PQclear(result);
    return code;
}

/* ---- problems and samples ---- */

int store_problems_add(struct store *store, int64_t job_id, uint64_t first, const struct rec_problem *problems,
                       uint32_t n, struct kvf_err *err)
{
    static const enum column_kind kinds[] = {COLUMN_TEXT, COLUMN_TEXT, COLUMN_INT, COLUMN_TEXT, COLUMN_TEXT};
    struct column columns[sizeof kinds / sizeof *kinds];
    struct pg_params params;
    int code;

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) column_init(&columns[i], kinds[i]);
    for (uint32_t i = 0; i < n; i++) {
        column_text(&columns[0], problems[i].name);
        column_text(&columns[1], problems[i].content_hash);
        column_int(&columns[2], (int64_t)problems[i].ordinal);
        column_text(&columns[3], problems[i].problem);
        column_text(&columns[4], problems[i].answer);
    }
    pg_params_init(&params);
    pg_int(&params, job_id);
    pg_int(&params, (int64_t)first - 1); /* WITH ORDINALITY counts from 1 */
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) pg_column(&params, &columns[i]);
    code =
        pg_run(&store->pg,
               "INSERT INTO problems (job_id, problem_no, name, content_hash, ordinal, problem, answer) "
               "SELECT $1, $2 + i.n, name, content_hash, ordinal, problem, answer "
               "FROM unnest($3, $4, $5, $6, $7) WITH ORDINALITY AS i(name, content_hash, ordinal, problem, answer, n) "
               "ON CONFLICT DO NOTHING",
               &params, STORE_TIMEOUT_MS, NULL, err);
    pg_params_free(&params);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) column_free(&columns[i]);
    return code;
}

/* Number, hash and ordinal of the problems that the next chunk needs. */
static int problems_read(struct store *store, const struct store_job *job, uint64_t from, uint64_t n, PGresult **out,
                         struct kvf_err *err)
{
    struct pg_params params;
    int code;

    pg_params_init(&params);
    pg_int(&params, job->job_id);
    pg_int(&params, (int64_t)from);
    pg_int(&params, (int64_t)n);
    code = pg_run(&store->pg,
                  "SELECT content_hash, ordinal FROM problems WHERE job_id = $1 AND problem_no >= $2 ORDER BY "
                  "problem_no LIMIT $3",
                  &params, STORE_TIMEOUT_MS, out, err);
    pg_params_free(&params);
    return code;
}

int store_samples_make(struct store *store, struct store_job *job, struct kvf_err *err)
{
    uint64_t pairs = job->n_problems * job->repeats, at = job->made / job->n_cells, end, first;
    struct column problem, repeat, seed;
    struct pg_params params;
    PGresult *result = NULL;
    int code;

    end = at + (STORE_CHUNK_SAMPLES + job->n_cells - 1) / job->n_cells;
    if (end > pairs) end = pairs;
    if (at >= end) return KVF_OK;
    first = at / job->repeats;
    code = problems_read(store, job, first, (end - 1) / job->repeats - first + 1, &result, err);
    if (code != KVF_OK) return code;
    column_init(&problem, COLUMN_INT);
    column_init(&repeat, COLUMN_INT);
    column_init(&seed, COLUMN_NUMERIC);
    for (uint64_t pair = at; pair < end; pair++) {
        int row = (int)(pair / job->repeats - first);
        if (row >= PQntuples(result)) {
            code = kvf_fail(err, KVF_ECONFLICT, "job %" PRId64 ": problem %" PRIu64 " is missing", job->job_id,
                            pair / job->repeats);
            break;
        }
        column_int(&problem, (int64_t)(pair / job->repeats));
        column_int(&repeat, (int64_t)(pair % job->repeats));
        column_numeric(&seed, sample_seed(str_of(PQgetvalue(result, row, 0)), (uint64_t)pg_get_int(result, row, 1),
                                          pair % job->repeats, job->seed));
    }
    PQclear(result);
    if (code == KVF_OK) {
        pg_params_init(&params);
        pg_int(&params, job->job_id);
        pg_column(&params, &problem);
        pg_column(&params, &repeat);
        pg_column(&params, &seed);
        /* problem by problem, so that the cells advance together and a cancelled sweep has pairs to compare */
        code = pg_run(&store->pg,
                      "INSERT INTO samples (job_id, cell_id, problem_no, repeat, seed) "
                      "SELECT $1, c.cell_id, i.problem_no, i.repeat, i.seed "
                      "FROM unnest($2, $3, $4) WITH ORDINALITY AS i(problem_no, repeat, seed, n) "
                      "JOIN cells c ON c.job_id = $1 ORDER BY i.n, c.ordinal ON CONFLICT DO NOTHING",
                      &params, STORE_TIMEOUT_MS, NULL, err);
        pg_params_free(&params);
    }
    column_free(&problem);
    column_free(&repeat);
    column_free(&seed);
    if (code == KVF_OK) job->made = end * job->n_cells;
    return code;
}

/* ---- states ---- */

static int job_run(struct store *store, int64_t job_id, const char *sql, PGresult **out, struct kvf_err *err)
{
    struct pg_params params;
    int code;

    pg_params_init(&params);
    pg_int(&params, job_id);
    code = pg_run(&store->pg, sql, &params, STORE_TIMEOUT_MS, out, err);
    pg_params_free(&params);
    return code;
}

int store_job_queue(struct store *store, int64_t job_id, struct kvf_err *err)
{
    return job_run(store, job_id, "UPDATE jobs SET state = 'queued' WHERE job_id = $1 AND state = 'receiving'", NULL,
                   err);
}

int store_job_start(struct store *store, int64_t job_id, struct kvf_err *err)
{
    return job_run(store, job_id,
                   "UPDATE jobs SET state = 'running', started_at = now() WHERE job_id = $1 AND state = 'queued'", NULL,
                   err);
}

int store_job_queued(struct store *store, int64_t after, struct store_job *out, struct kvf_err *err)
{
    PGresult *result = NULL;
    int64_t job_id;
    int code =
        job_run(store, after, "SELECT min(job_id) FROM jobs WHERE state = 'queued' AND job_id > $1", &result, err);

    if (code != KVF_OK) return code;
    job_id = pg_get_int(result, 0, 0);
    PQclear(result);
    if (job_id == MSG_NULL_INT) return kvf_fail(err, KVF_ENOTFOUND, "no queued job after %" PRId64, after);
    return store_job_look(store, job_id, out, err);
}

int store_job_finish(struct store *store, int64_t job_id, enum queue_job_state *state, struct kvf_err *err)
{
    PGresult *result = NULL;
    int code = job_run(store, job_id,
                       "UPDATE jobs j SET finished_at = now(), state = CASE WHEN EXISTS (SELECT FROM results r "
                       "  WHERE r.job_id = $1 AND r.finish = 'error') THEN 'done_with_errors' ELSE 'done' END "
                       "WHERE job_id = $1 AND state = 'running' "
                       "  AND (SELECT count(*) FROM results r WHERE r.job_id = $1) = n_samples "
                       "RETURNING state",
                       &result, err);

    if (code != KVF_OK) return code;
    if (PQntuples(result) == 0)
        code = kvf_fail(err, KVF_ENOTFOUND,
                        "job %" PRId64 ": cannot be finished: results are missing or it does not run", job_id);
    else
        *state = strcmp(PQgetvalue(result, 0, 0), "done") == 0 ? JOB_DONE : JOB_DONE_WITH_ERRORS;
    PQclear(result);
    return code;
}

int store_job_cancel(struct store *store, int64_t job_id, struct store_job *out, struct kvf_err *err)
{
    PGresult *result = NULL;
    /* the row is written in any case, because what RETURNING gives is then the newest state and not the snapshot's */
    int code = job_run(
        store, job_id,
        "WITH j AS (UPDATE jobs SET finished_at = coalesce(finished_at, now()), "
        "             state = CASE WHEN state IN ('receiving', 'queued', 'running') THEN 'cancelled' ELSE state END "
        "           WHERE job_id = $1 RETURNING job_id, state), "
        "l AS (UPDATE leases SET state = 'revoked', ended_at = now() "
        "      WHERE job_id = (SELECT job_id FROM j WHERE state = 'cancelled') AND state = 'active') "
        "SELECT state, (SELECT count(*) FROM problems p WHERE p.job_id = $1) FROM j",
        &result, err);

    if (code != KVF_OK) return code;
    if (PQntuples(result) == 0) {
        code = job_missing(job_id, err);
    } else {
        *out = (struct store_job){.job_id = job_id, .received = (uint64_t)pg_get_int(result, 0, 1)};
        snprintf(out->state, sizeof out->state, "%s", PQgetvalue(result, 0, 0));
    }
    PQclear(result);
    return code;
}
