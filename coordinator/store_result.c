#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/store.h"

/* ---- what is settled, and what ends ---- */

int store_batch_known(struct store *store, int64_t fence, const struct rec_result *results, uint32_t n, bool *known,
                      struct kvf_err *err)
{
    struct pg_params params;
    PGresult *result = NULL;
    int code;

    column_clear(&store->ids);
    for (uint32_t i = 0; i < n; i++) column_int(&store->ids, (int64_t)results[i].sample_id);
    pg_params_init(&params);
    pg_int(&params, fence);
    pg_column(&params, &store->ids);
    code = pg_run(&store->pg,
                  "SELECT l.state = 'done' OR NOT EXISTS (SELECT FROM unnest($2) AS i(id) WHERE NOT EXISTS "
                  "  (SELECT FROM results r WHERE r.job_id = l.job_id AND r.sample_id = i.id)) "
                  "FROM leases l WHERE l.fence = $1",
                  &params, STORE_TIMEOUT_MS, &result, err);
    pg_params_free(&params);
    if (code != KVF_OK) return code;
    *known = PQntuples(result) == 1 && strcmp(PQgetvalue(result, 0, 0), "t") == 0;
    PQclear(result);
    return KVF_OK;
}

int store_leases_end(struct store *store, const int64_t *fences, uint32_t n, const char *state, struct kvf_err *err)
{
    struct pg_params params;
    int code;

    column_clear(&store->fences);
    for (uint32_t i = 0; i < n; i++) column_int(&store->fences, fences[i]);
    pg_params_init(&params);
    pg_column(&params, &store->fences);
    pg_text(&params, str_of(state));
    code =
        pg_run(&store->pg, "UPDATE leases SET state = $2, ended_at = now() WHERE fence = ANY ($1) AND state = 'active'",
               &params, STORE_TIMEOUT_MS, NULL, err);
    pg_params_free(&params);
    return code;
}

int store_exhausted(struct store *store, const struct queue_job *job, struct kvf_err *err)
{
    struct column cells, attempts, seeds;
    struct pg_params params;
    int code;

    column_init(&cells, COLUMN_INT);
    column_init(&attempts, COLUMN_INT);
    column_init(&seeds, COLUMN_NUMERIC);
    column_clear(&store->ids);
    for (uint32_t i = 0; i < job->n_exhausted; i++) {
        const struct queue_sample *sample = &job->samples[job->exhausted[i]];
        column_int(&store->ids, sample->sample_id);
        column_int(&cells, (int64_t)job->cells[sample->cell].spec.cell_id);
        column_int(&attempts, sample->attempts);
        column_numeric(&seeds, sample->seed);
    }
    pg_params_init(&params);
    pg_int(&params, job->job_id);
    pg_column(&params, &store->ids);
    pg_column(&params, &cells);
    pg_column(&params, &attempts);
    pg_column(&params, &seeds);
    code = pg_run(
        &store->pg,
        "WITH stored AS (INSERT INTO results (job_id, sample_id, cell_id, run_id, fence, attempt, finish, error, seed) "
        "  SELECT $1, i.sample_id, i.cell_id, NULL, coalesce(l.fence, 0), i.attempts, 'error', "
        "         format('given up after %s attempts; the last (lease %s, worker %s): %s', i.attempts, l.fence, "
        "l.worker, "
        "                CASE l.state WHEN 'expired' THEN 'the lease expired without a result: the worker died or "
        "hung' "
        "                             WHEN 'revoked' THEN 'what the worker sent was not acceptable' "
        "                             ELSE 'the worker reported an error' END), i.seed "
        "  FROM unnest($2, $3, $4, $5) AS i(sample_id, cell_id, attempts, seed) "
        "  LEFT JOIN LATERAL (SELECT x.fence, x.state, w.key_name || '@' || w.host || ':' || u.pid AS worker "
        "                     FROM leases x JOIN runs u USING (run_id) JOIN workers w USING (worker_id) "
        "                     WHERE x.job_id = $1 AND i.sample_id = ANY (x.sample_ids) "
        "                     ORDER BY x.fence DESC LIMIT 1) l ON true "
        "  ON CONFLICT DO NOTHING RETURNING sample_id) "
        "INSERT INTO grades (job_id, sample_id, grader, verdict, reason) "
        "SELECT $1, sample_id, 'none', 'error', 'not_run' FROM stored ON CONFLICT DO NOTHING",
        &params, STORE_TIMEOUT_MS, NULL, err);
    pg_params_free(&params);
    column_free(&cells);
    column_free(&attempts);
    column_free(&seeds);
    return code;
}
