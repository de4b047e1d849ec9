#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/store.h"

/* ---- columns of a result, from the message table ---- */

struct result_column {
    const char *name;
    enum column_kind kind;
    size_t offset;
};
#define COLUMN_U(key, field, min, max)                                                                                 \
    {#field, (uint64_t)(max) > INT64_MAX ? COLUMN_NUMERIC : COLUMN_INT, offsetof(struct rec_result, field)},
#define COLUMN_M(key, field)      {#field, COLUMN_INT, offsetof(struct rec_result, field)},
#define COLUMN_F(key, field)      {#field, COLUMN_REAL, offsetof(struct rec_result, field)},
#define COLUMN_S(key, field, max) {#field, COLUMN_TEXT, offsetof(struct rec_result, field)},
#define COLUMN_NONE(...)
static const struct result_column columns[] = {
    REC_RESULT(COLUMN_U, COLUMN_NONE, COLUMN_M, COLUMN_F, COLUMN_S, COLUMN_S, COLUMN_NONE, COLUMN_NONE)};
#define N_COLUMNS ((int)(sizeof columns / sizeof *columns))

/* Fields of the message that belong to the table of grades; the table of results has a column for each other one. */
static bool is_grade(const char *name)
{
    static const char *const names[] = {"grade", "grade_reason", "extracted", "grader"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

int store_columns_init(struct store *store, struct kvf_err *err)
{
    store->n_columns = N_COLUMNS + 2; /* fence and cell */
    store->columns = calloc((size_t)store->n_columns, sizeof *store->columns);
    if (store->columns == NULL) return kvf_fail(err, KVF_ENOMEM, "store: out of memory");
    column_init(&store->columns[0], COLUMN_INT);
    column_init(&store->columns[1], COLUMN_INT);
    for (int i = 0; i < N_COLUMNS; i++) column_init(&store->columns[i + 2], columns[i].kind);
    return KVF_OK;
}

static void row_append(struct store *store, const struct store_row *row)
{
    column_int(&store->columns[0], row->fence);
    column_int(&store->columns[1], row->cell_id);
    for (int i = 0; i < N_COLUMNS; i++) {
        const void *field = (const char *)row->result + columns[i].offset;
        struct column *column = &store->columns[i + 2];
        switch (column->kind) {
        case COLUMN_INT:
            column_int(column, *(const int64_t *)field);
            break;
        case COLUMN_REAL:
            column_real(column, *(const double *)field);
            break;
        case COLUMN_TEXT:
            column_text(column, *(const struct str *)field);
            break;
        case COLUMN_NUMERIC:
            column_numeric(column, *(const uint64_t *)field);
            break;
        }
    }
}

/* ---- one row, before it meets the tables ---- */

static bool str_in(struct str value, const char *const *names)
{
    for (; *names != NULL; names++)
        if (value.len == strlen(*names) && memcmp(value.text, *names, value.len) == 0) return true;
    return false;
}

/* No time and no size comes near; sums over many rows stay within bigint. */
#define MEASURE_MAX (INT64_C(1) << 50)

int store_result_check(const struct rec_result *result, struct kvf_err *err)
{
    static const char *const finishes[] = {"stop", "stop_string", "length", "loop", "oom", "cancelled", "error", NULL};
    static const char *const grades[] = {"correct", "wrong", "unanswered", "truncated", "error", NULL};
    static const char *const narrow[] = {"prompt_tokens", "output_tokens", "thinking_tokens",
                                         "compactions",   "batch_max",     NULL};

    if (!str_in(result->finish, finishes))
        return kvf_fail(err, KVF_EINVAL, "sample %" PRIu64 ": unknown finish '%.*s'", result->sample_id,
                        (int)result->finish.len, result->finish.text);
    if (!str_in(result->grade, grades))
        return kvf_fail(err, KVF_EINVAL, "sample %" PRIu64 ": unknown grade '%.*s'", result->sample_id,
                        (int)result->grade.len, result->grade.text);
    for (int i = 0; i < N_COLUMNS; i++) {
        int64_t value, most;
        if (columns[i].kind == COLUMN_REAL) {
            double real = *(const double *)((const char *)result + columns[i].offset);
            if (!isnan(real) && fabs(real) > (double)MEASURE_MAX)
                return kvf_fail(err, KVF_EINVAL, "sample %" PRIu64 ": %s: expected at most %g, got %g",
                                result->sample_id, columns[i].name, (double)MEASURE_MAX, real);
        }
        if (columns[i].kind != COLUMN_INT || strcmp(columns[i].name, "output_hash") == 0) continue;
        value = *(const int64_t *)((const char *)result + columns[i].offset);
        most = str_in(str_of(columns[i].name), narrow) ? INT32_MAX : MEASURE_MAX;
        if (value != MSG_NULL_INT && (value < 0 || value > most))
            return kvf_fail(err, KVF_EINVAL, "sample %" PRIu64 ": %s: expected 0 to %" PRId64 ", got %" PRId64,
                            result->sample_id, columns[i].name, most, value);
    }
    return KVF_OK;
}

/* ---- the statement ---- */

static const char *sql_type(enum column_kind kind)
{
    static const char *const names[] = {[COLUMN_INT] = "bigint[]",
                                        [COLUMN_REAL] = "float8[]",
                                        [COLUMN_TEXT] = "text[]",
                                        [COLUMN_NUMERIC] = "numeric[]"};

    return names[kind];
}

/* The list of columns that one of the two tables takes: names with a prefix, or the parameters that they come from. $1
 * are the fences of the batch, $2 those that end, $3 and $4 fence and cell of each row, then the columns of the
 * message. */
enum { LIST_NAMES, LIST_PARAMS };
static void list_print(FILE *sql, int what, bool grades, const char *prefix)
{
    for (int i = 0; i < N_COLUMNS; i++) {
        if (is_grade(columns[i].name) != grades) continue;
        if (what == LIST_PARAMS)
            fprintf(sql, ", $%d::%s", i + 5, sql_type(columns[i].kind));
        else
            fprintf(sql, ", %s%s", prefix, columns[i].name);
    }
}

/* Locks the leases that are active and writes the rows of these, unless they are there already: sent again, they and
 * their grades stay as they are. All parts see the tables as they were before the statement. The lease's row is locked
 * before it is updated, because the update reads it from `held`. Against ON CONFLICT, which would do the same, this
 * takes two thirds of the time: speculative insertion costs a lock and a second WAL record for each row, and only this
 * connection writes. */
static char *results_sql(void)
{
    static const char absent[] = "WHERE NOT EXISTS (SELECT FROM results r WHERE r.job_id = h.job_id AND r.sample_id = "
                                 "i.sample_id)), ";
    char *text = NULL;
    size_t len = 0;
    FILE *sql = open_memstream(&text, &len);

    if (sql == NULL) return NULL;
    fprintf(sql, "WITH held AS MATERIALIZED (SELECT fence, job_id, run_id FROM leases "
                 "WHERE fence = ANY ($1::bigint[]) AND state = 'active' FOR SHARE), "
                 "stored AS (INSERT INTO results (job_id, run_id, fence, cell_id");
    list_print(sql, LIST_NAMES, false, "");
    fprintf(sql, ") SELECT h.job_id, h.run_id, i.fence, i.cell_id");
    list_print(sql, LIST_NAMES, false, "i.");
    fprintf(sql, " FROM unnest($3::bigint[], $4::bigint[]");
    list_print(sql, LIST_PARAMS, false, "");
    fprintf(sql, ") AS i(fence, cell_id");
    list_print(sql, LIST_NAMES, false, "");
    fprintf(sql, ") JOIN held h USING (fence) %s", absent);
    fprintf(sql, "graded AS (INSERT INTO grades (job_id, sample_id, verdict, reason, extracted, grader) "
                 "SELECT h.job_id, i.sample_id, i.grade, i.grade_reason, i.extracted, i.grader "
                 "FROM unnest($3::bigint[], $5::bigint[]");
    list_print(sql, LIST_PARAMS, true, "");
    fprintf(sql, ") AS i(fence, sample_id");
    list_print(sql, LIST_NAMES, true, "");
    fprintf(sql, ") JOIN held h USING (fence) %s", absent);
    fprintf(sql, "ended AS (UPDATE leases l SET state = 'done', ended_at = now() FROM held h "
                 "WHERE l.fence = h.fence AND l.fence = ANY ($2::bigint[])) "
                 "SELECT fence FROM unnest($1::bigint[]) AS f(fence) WHERE fence NOT IN (SELECT fence FROM held)");
    if (fclose(sql) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

int store_prepare_results(struct store *store, struct kvf_err *err)
{
    char *sql = results_sql();
    int code = sql == NULL ? kvf_fail(err, KVF_ENOMEM, "store: out of memory")
                           : pg_prepare(&store->pg, "results", sql, STORE_TIMEOUT_MS, err);

    free(sql);
    return code;
}

int store_results(struct store *store, const int64_t *fences, uint32_t n_fences, const struct store_row *rows,
                  uint32_t n, const int64_t *done, uint32_t n_done, int64_t **fenced, uint32_t *n_fenced,
                  struct kvf_err *err)
{
    struct pg_params params;
    PGresult *result = NULL;
    int code;

    *fenced = NULL;
    *n_fenced = 0;
    for (int i = 0; i < store->n_columns; i++) column_clear(&store->columns[i]);
    column_clear(&store->fences);
    column_clear(&store->ids);
    for (uint32_t i = 0; i < n; i++) row_append(store, &rows[i]);
    for (uint32_t i = 0; i < n_fences; i++) column_int(&store->fences, fences[i]);
    for (uint32_t i = 0; i < n_done; i++) column_int(&store->ids, done[i]);
    pg_params_init(&params);
    pg_column(&params, &store->fences);
    pg_column(&params, &store->ids);
    for (int i = 0; i < store->n_columns; i++) pg_column(&params, &store->columns[i]);
    code = pg_run_prepared(&store->pg, "results", &params, STORE_TIMEOUT_MS, &result, err);
    pg_params_free(&params);
    if (code != KVF_OK) return code;
    *fenced = calloc((size_t)PQntuples(result) + 1, sizeof **fenced);
    if (*fenced == NULL)
        code = kvf_fail(err, KVF_ENOMEM, "store: out of memory");
    else
        for (int i = 0; i < PQntuples(result); i++) (*fenced)[(*n_fenced)++] = pg_get_int(result, i, 0);
    PQclear(result);
    return code;
}

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

/* ---- leases ---- */

static struct str samples_text(const struct queue_lease *lease, char *out)
{
    size_t len = 0;

    for (uint32_t i = 0; i < lease->n_samples; i++)
        len += (size_t)sprintf(out + len, "%s%" PRId64, i == 0 ? "{" : ",",
                               lease->job->samples[lease->samples[i]].sample_id);
    out[len++] = '}';
    return (struct str){out, (uint32_t)len};
}

/* RETURNING gives the rows in the order in which they were made; what a fence stands for is looked at nevertheless. */
static int fences_read(struct queue_lease *const *leases, uint32_t n, const PGresult *result, int64_t *fences,
                       struct kvf_err *err)
{
    for (uint32_t i = 0; i < n; i++) {
        int64_t first = leases[i]->job->samples[leases[i]->samples[0]].sample_id;
        if ((uint32_t)PQntuples(result) != n || pg_get_int(result, (int)i, 1) != leases[i]->run_id ||
            pg_get_int(result, (int)i, 2) != first)
            return kvf_fail(err, KVF_ECORRUPT, "leases: the database answered with others than were written");
        fences[i] = pg_get_int(result, (int)i, 0);
    }
    return KVF_OK;
}

int store_leases_grant(struct store *store, struct queue_lease *const *leases, uint32_t n, int64_t *fences,
                       struct kvf_err *err)
{
    char text[QUEUE_LEASE_SAMPLES * 21 + 2];
    struct pg_params params;
    PGresult *result = NULL;
    int code;

    column_clear(&store->ids);
    column_clear(&store->runs);
    column_clear(&store->texts);
    for (uint32_t i = 0; i < n; i++) {
        column_int(&store->ids, leases[i]->job->job_id);
        column_int(&store->runs, leases[i]->run_id);
        column_text(&store->texts, samples_text(leases[i], text));
    }
    pg_params_init(&params);
    pg_column(&params, &store->ids);
    pg_column(&params, &store->runs);
    pg_column(&params, &store->texts);
    code = pg_run(&store->pg,
                  "INSERT INTO leases (job_id, run_id, sample_ids, state) "
                  "SELECT job_id, run_id, sample_ids::bigint[], 'active' "
                  "FROM unnest($1, $2, $3) WITH ORDINALITY AS i(job_id, run_id, sample_ids, n) ORDER BY n "
                  "RETURNING fence, run_id, sample_ids[1]",
                  &params, STORE_TIMEOUT_MS, &result, err);
    pg_params_free(&params);
    if (code != KVF_OK) return code;
    code = fences_read(leases, n, result, fences, err);
    PQclear(result);
    return code;
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
