#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/store.h"

#define PAGE_SAMPLES 50000 /* as in the statement below */

/* Runs `sql` for job $1 with $2 as the place to go on after. */
static int page_read(struct store *store, const char *sql, int64_t job_id, int64_t after, PGresult **out,
                     struct kvf_err *err)
{
    struct pg_params params;
    int code;

    pg_params_init(&params);
    pg_int(&params, job_id);
    if (after != MSG_NULL_INT) pg_int(&params, after);
    code = pg_run(&store->pg, sql, &params, STORE_TIMEOUT_MS, out, err);
    pg_params_free(&params);
    return code;
}

static int no_memory(const struct queue_job *job, struct kvf_err *err)
{
    return kvf_fail(err, KVF_ENOMEM, "job %" PRId64 ": out of memory", job->job_id);
}

static struct str text_read(struct arena *texts, const PGresult *result, int row, int column)
{
    return arena_copy(texts, PQgetvalue(result, row, column), (size_t)PQgetlength(result, row, column));
}

static int job_read(struct store *store, struct queue_job *job, int64_t now_ms, struct kvf_err *err)
{
    PGresult *result = NULL;
    int code = page_read(store,
                         "SELECT model_hash, profile, max_attempts, n_samples, n_problems, "
                         "(extract(epoch FROM now() - started_at) * 1000)::bigint FROM jobs WHERE job_id = $1",
                         job->job_id, MSG_NULL_INT, &result, err);

    if (code != KVF_OK) return code;
    if (PQntuples(result) == 0) {
        code = kvf_fail(err, KVF_ENOTFOUND, "job %" PRId64 ": there is no such job", job->job_id);
    } else {
        snprintf(job->model_hash, sizeof job->model_hash, "%s", PQgetvalue(result, 0, 0));
        if (!PQgetisnull(result, 0, 1) && (job->profile = strdup(PQgetvalue(result, 0, 1))) == NULL)
            code = no_memory(job, err);
        job->max_attempts = (int)pg_get_int(result, 0, 2);
        job->total = pg_get_int(result, 0, 3);
        job->n_problems = (uint32_t)pg_get_int(result, 0, 4);
        job->started_ms = now_ms - (PQgetisnull(result, 0, 5) ? 0 : pg_get_int(result, 0, 5));
    }
    PQclear(result);
    return code;
}

static int cells_read(struct store *store, struct queue_job *job, struct kvf_err *err)
{
    PGresult *result = NULL;
    int code = page_read(store,
                         "SELECT c.cell_id, c.policy, coalesce(c.budget_tokens, 0), coalesce(c.interval_tokens, 1), "
                         "  c.temperature, c.top_p, c.top_k, c.max_new_tokens, c.template_name, coalesce(r.done, 0), "
                         "  coalesce(r.errors, 0), coalesce(r.correct, 0), coalesce(r.tokens, 0), "
                         "  (SELECT n_problems::bigint * repeats FROM jobs j WHERE j.job_id = $1) "
                         "FROM cells c LEFT JOIN (SELECT r.cell_id, count(*) AS done, "
                         "    count(*) FILTER (WHERE finish = 'error') AS errors, sum(output_tokens) AS tokens, "
                         "    count(*) FILTER (WHERE EXISTS (SELECT FROM grades g WHERE (g.job_id, g.sample_id) = "
                         "      (r.job_id, r.sample_id) AND g.verdict = 'correct')) AS correct "
                         "  FROM results r WHERE r.job_id = $1 GROUP BY r.cell_id) r USING (cell_id) "
                         "WHERE c.job_id = $1 ORDER BY c.ordinal",
                         job->job_id, MSG_NULL_INT, &result, err);

    if (code != KVF_OK) return code;
    job->n_cells = (uint32_t)PQntuples(result);
    job->cells = calloc(job->n_cells + 1, sizeof *job->cells);
    for (uint32_t i = 0; i < job->n_cells && job->cells != NULL; i++) {
        struct queue_cell *cell = &job->cells[i];
        int row = (int)i;
        cell->spec = (struct rec_cell){.cell_id = (uint64_t)pg_get_int(result, row, 0),
                                       .policy = text_read(&job->texts, result, row, 1),
                                       .budget_tokens = (uint64_t)pg_get_int(result, row, 2),
                                       .interval_tokens = (uint64_t)pg_get_int(result, row, 3),
                                       .temperature = strtod(PQgetvalue(result, row, 4), NULL),
                                       .top_p = strtod(PQgetvalue(result, row, 5), NULL),
                                       .top_k = (uint64_t)pg_get_int(result, row, 6),
                                       .max_new_tokens = (uint64_t)pg_get_int(result, row, 7),
                                       .template_name = text_read(&job->texts, result, row, 8)};
        if (cell->spec.policy.text == NULL || cell->spec.template_name.text == NULL) code = no_memory(job, err);
        cell->done = pg_get_int(result, row, 9);
        cell->errors = pg_get_int(result, row, 10);
        cell->correct = pg_get_int(result, row, 11);
        cell->total = pg_get_int(result, row, 13);
        job->done += cell->done;
        job->errors += cell->errors;
        job->tokens += pg_get_int(result, row, 12);
        if (cell->spec.budget_tokens == 0)
            snprintf(cell->label, sizeof cell->label, "%s", PQgetvalue(result, row, 1));
        else
            snprintf(cell->label, sizeof cell->label, "%s b=%" PRIu64, PQgetvalue(result, row, 1),
                     cell->spec.budget_tokens);
    }
    if (job->cells == NULL) code = no_memory(job, err);
    PQclear(result);
    return code;
}

static int problems_read(struct store *store, struct queue_job *job, struct kvf_err *err)
{
    uint32_t have = 0;

    job->problems = calloc(job->n_problems + 1, sizeof *job->problems);
    if (job->problems == NULL) return no_memory(job, err);
    while (have < job->n_problems) {
        PGresult *result = NULL;
        int code = page_read(store,
                             "SELECT problem, answer FROM problems WHERE job_id = $1 AND problem_no >= $2 "
                             "ORDER BY problem_no LIMIT 500",
                             job->job_id, have, &result, err);
        int n = code == KVF_OK ? PQntuples(result) : 0;
        if (code != KVF_OK) return code;
        if (n == 0 || have + (uint32_t)n > job->n_problems)
            code = kvf_fail(err, KVF_ECORRUPT, "job %" PRId64 ": expected %" PRIu32 " problems, got %" PRIu32,
                            job->job_id, job->n_problems, have + (uint32_t)n);
        for (int i = 0; i < n && code == KVF_OK; i++, have++) {
            job->problems[have].problem = text_read(&job->problem_texts, result, i, 0);
            job->problems[have].answer = text_read(&job->problem_texts, result, i, 1);
            if (job->problems[have].problem.text == NULL || job->problems[have].answer.text == NULL)
                code = no_memory(job, err);
        }
        PQclear(result);
        if (code != KVF_OK) return code;
    }
    return KVF_OK;
}

static int cell_of(const struct queue_job *job, int64_t cell_id, uint32_t *guess)
{
    for (uint32_t i = 0; i < job->n_cells; i++) {
        uint32_t at = (*guess + i) % job->n_cells; /* samples come cell by cell */
        if ((int64_t)job->cells[at].spec.cell_id != cell_id) continue;
        *guess = at + 1;
        return (int)at;
    }
    return -1;
}

static int samples_read(struct store *store, struct queue_job *job, struct kvf_err *err)
{
    int64_t left = job->total - job->done;
    int64_t after = 0;
    uint32_t guess = 0;
    int n = PAGE_SAMPLES;

    job->samples = calloc((size_t)(left > 0 ? left : 0) + 1, sizeof *job->samples);
    if (job->samples == NULL) return no_memory(job, err);
    while (n == PAGE_SAMPLES) {
        PGresult *result = NULL;
        int code =
            page_read(store,
                      "SELECT s.sample_id, s.cell_id, s.problem_no, s.seed FROM samples s WHERE s.job_id = $1 "
                      "AND s.sample_id > $2 AND NOT EXISTS (SELECT FROM results r WHERE (r.job_id, r.sample_id) = "
                      "(s.job_id, s.sample_id)) ORDER BY s.sample_id LIMIT 50000",
                      job->job_id, after, &result, err);
        if (code != KVF_OK) return code;
        n = PQntuples(result);
        for (int i = 0; i < n && code == KVF_OK; i++) {
            int cell = cell_of(job, pg_get_int(result, i, 1), &guess);
            int64_t problem = pg_get_int(result, i, 2);
            after = pg_get_int(result, i, 0);
            if (job->n_samples >= left || cell < 0 || problem < 0 || problem >= (int64_t)job->n_problems)
                code = kvf_fail(err, KVF_ECORRUPT, "job %" PRId64 ": sample %" PRId64 " does not fit its job",
                                job->job_id, after);
            else
                job->samples[job->n_samples++] =
                    (struct queue_sample){.sample_id = after,
                                          .seed = strtoull(PQgetvalue(result, i, 3), NULL, 10),
                                          .cell = (uint32_t)cell,
                                          .problem = (uint32_t)problem,
                                          .state = SAMPLE_PENDING};
        }
        PQclear(result);
        if (code != KVF_OK) return code;
    }
    if (job->n_samples == left) return KVF_OK;
    return kvf_fail(err, KVF_ECORRUPT, "job %" PRId64 ": expected %" PRId64 " samples without a result, got %" PRIu32,
                    job->job_id, left, job->n_samples);
}

static int sample_order(const void *left, const void *right)
{
    int64_t a = ((const struct queue_sample *)left)->sample_id, b = ((const struct queue_sample *)right)->sample_id;

    return a < b ? -1 : a > b;
}

/* Attempts are the leases that ended without being handed back. */
static int attempts_read(struct store *store, struct queue_job *job, struct kvf_err *err)
{
    PGresult *result = NULL;
    int code = page_read(store,
                         "SELECT u.id, count(*) FROM leases l CROSS JOIN LATERAL unnest(l.sample_ids) AS u(id) "
                         "WHERE l.job_id = $1 AND l.state IN ('done', 'expired', 'revoked') AND NOT EXISTS "
                         "(SELECT FROM results r WHERE r.job_id = $1 AND r.sample_id = u.id) GROUP BY u.id",
                         job->job_id, MSG_NULL_INT, &result, err);

    if (code != KVF_OK) return code;
    for (int i = 0; i < PQntuples(result); i++) {
        struct queue_sample wanted = {.sample_id = pg_get_int(result, i, 0)};
        struct queue_sample *sample =
            bsearch(&wanted, job->samples, job->n_samples, sizeof *job->samples, sample_order);
        if (sample != NULL) sample->attempts = (uint16_t)pg_get_int(result, i, 1);
    }
    PQclear(result);
    return KVF_OK;
}

/* Newest first: a sample that failed and was lent again stands in two active leases, and the later one has it. A lease
 * of which every sample has a result has nothing to go on with: it ends. */
static int leases_adopt(struct store *store, struct queue *queue, struct queue_job *job, int64_t now_ms,
                        struct kvf_err *err)
{
    PGresult *result = NULL;
    int code = page_read(
        store,
        "SELECT l.fence, l.run_id, array_to_string(l.sample_ids, ' '), EXISTS (SELECT FROM "
        "unnest(l.sample_ids) AS u(id) WHERE NOT EXISTS (SELECT FROM results r WHERE r.job_id = $1 "
        "AND r.sample_id = u.id)) FROM leases l WHERE l.job_id = $1 AND l.state = 'active' ORDER BY l.fence DESC",
        job->job_id, MSG_NULL_INT, &result, err);

    if (code != KVF_OK) return code;
    for (int i = 0; i < PQntuples(result) && code == KVF_OK; i++) {
        int64_t fence = pg_get_int(result, i, 0), ids[QUEUE_LEASE_SAMPLES];
        char *at = PQgetvalue(result, i, 2);
        uint32_t n = 0;
        while (*at != '\0' && n < QUEUE_LEASE_SAMPLES) ids[n++] = strtoll(at, &at, 10);
        if (strcmp(PQgetvalue(result, i, 3), "t") == 0)
            code = queue_lease_adopt(queue, job, pg_get_int(result, i, 1), fence, ids, n, now_ms, err);
        else
            code = store_leases_end(store, &fence, 1, "done", err);
    }
    PQclear(result);
    return code;
}

int store_load_job(struct store *store, struct queue *queue, int64_t job_id, int64_t now_ms, struct kvf_err *err)
{
    struct queue_job *job = calloc(1, sizeof *job);
    int code;

    if (job == NULL) return kvf_fail(err, KVF_ENOMEM, "job %" PRId64 ": out of memory", job_id);
    job->job_id = job_id;
    job->state = JOB_RUNNING;
    code = job_read(store, job, now_ms, err);
    if (code == KVF_OK) code = cells_read(store, job, err);
    if (code == KVF_OK) code = problems_read(store, job, err);
    if (code == KVF_OK) code = samples_read(store, job, err);
    if (code == KVF_OK) code = attempts_read(store, job, err);
    if (code != KVF_OK) {
        queue_job_free(job);
        return code;
    }
    code = queue_job_add(queue, job, err);
    if (code != KVF_OK) return code;
    code = leases_adopt(store, queue, job, now_ms, err);
    if (code == KVF_OK)
        queue_job_open(job);
    else
        queue_job_drop(queue, job); /* whoever finds it in the queue takes it for loaded */
    return code;
}

int store_load(struct store *store, struct queue *queue, int64_t now_ms, struct kvf_err *err)
{
    PGresult *result = NULL;
    int code = pg_run(&store->pg, "SELECT job_id FROM jobs WHERE state = 'running' ORDER BY job_id", NULL,
                      STORE_TIMEOUT_MS, &result, err);

    if (code != KVF_OK) return code;
    for (int i = 0; i < PQntuples(result) && code == KVF_OK; i++)
        code = store_load_job(store, queue, pg_get_int(result, i, 0), now_ms, err);
    PQclear(result);
    return code;
}
