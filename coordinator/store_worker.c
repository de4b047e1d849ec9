#include <string.h>
#include "coordinator/store.h"

int store_run_begin(struct store *store, const char *key_name, const struct msg_hello *hello, int64_t *run_id,
                    struct kvf_err *err)
{
    struct column names, hashes;
    struct pg_params params;
    PGresult *result = NULL;
    int code;

    column_init(&names, COLUMN_TEXT);
    column_init(&hashes, COLUMN_TEXT);
    for (uint32_t i = 0; i < hello->n_models; i++) {
        column_text(&names, hello->models[i].name);
        column_text(&hashes, hello->models[i].hash);
    }
    pg_params_init(&params);
    pg_text(&params, str_of(key_name));
    pg_text(&params, hello->host);
    pg_text(&params, hello->instance);
    pg_int(&params, (int64_t)hello->pid);
    pg_text(&params, hello->version);
    pg_text(&params, hello->revision);
    pg_text(&params, hello->build_flags);
    pg_text(&params, hello->backend);
    pg_text(&params, hello->kernel_set);
    pg_text(&params, hello->device);
    pg_int(&params, (int64_t)hello->threads);
    pg_int(&params, (int64_t)hello->max_batch);
    pg_int(&params, hello->memory_bytes);
    pg_column(&params, &names);
    pg_column(&params, &hashes);
    code = pg_run(
        &store->pg,
        "WITH w AS (INSERT INTO workers (key_name, host) VALUES ($1, $2) "
        "           ON CONFLICT (key_name, host) DO UPDATE SET host = excluded.host RETURNING worker_id) "
        "INSERT INTO runs (worker_id, instance, pid, version, revision, build_flags, backend, kernel_set, device, "
        "                  threads, max_batch, memory_bytes, models) "
        "SELECT worker_id, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, "
        "       (SELECT coalesce(jsonb_agg(jsonb_build_object('name', name, 'hash', hash)), '[]') "
        "        FROM unnest($14, $15) AS m(name, hash)) FROM w "
        "ON CONFLICT (instance) DO UPDATE SET last_seen_at = now(), ended_at = NULL, end_reason = NULL "
        "  WHERE runs.worker_id = excluded.worker_id "
        "RETURNING run_id",
        &params, STORE_TIMEOUT_MS, &result, err);
    pg_params_free(&params);
    column_free(&names);
    column_free(&hashes);
    if (code != KVF_OK) return code;
    if (PQntuples(result) == 0)
        code = kvf_fail(err, KVF_EDENIED, "instance %.*s belongs to another key or host", (int)hello->instance.len,
                        hello->instance.text);
    else
        *run_id = pg_get_int(result, 0, 0);
    PQclear(result);
    return code;
}

int store_run_end(struct store *store, int64_t run_id, struct str reason, struct kvf_err *err)
{
    struct pg_params params;
    int code;

    pg_params_init(&params);
    pg_int(&params, run_id);
    pg_text(&params, reason);
    code = pg_run(&store->pg,
                  "UPDATE runs SET ended_at = now(), end_reason = $2, last_seen_at = greatest(last_seen_at, now()) "
                  "WHERE run_id = $1 AND ended_at IS NULL",
                  &params, STORE_TIMEOUT_MS, NULL, err);
    pg_params_free(&params);
    return code;
}

int store_runs_seen(struct store *store, const int64_t *run_ids, uint32_t n, struct kvf_err *err)
{
    struct pg_params params;
    int code;

    column_clear(&store->runs);
    for (uint32_t i = 0; i < n; i++) column_int(&store->runs, run_ids[i]);
    pg_params_init(&params);
    pg_column(&params, &store->runs);
    code = pg_run(&store->pg, "UPDATE runs SET last_seen_at = now() WHERE run_id = ANY($1)", &params, STORE_TIMEOUT_MS,
                  NULL, err);
    pg_params_free(&params);
    return code;
}
