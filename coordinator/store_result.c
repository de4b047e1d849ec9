#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/store.h"

/* ---- columns of a result, from the message table ---- */

enum field_kind { FIELD_INT, FIELD_REAL, FIELD_TEXT, FIELD_NUMERIC };
struct result_field {
    const char *name;
    enum field_kind kind;
    size_t place;
};
#define FIELD_U(key, field, min, max)                                                                                  \
    {#field, (uint64_t)(max) > INT64_MAX ? FIELD_NUMERIC : FIELD_INT, offsetof(struct rec_result, field)},
#define FIELD_M(key, field)      {#field, FIELD_INT, offsetof(struct rec_result, field)},
#define FIELD_F(key, field)      {#field, FIELD_REAL, offsetof(struct rec_result, field)},
#define FIELD_S(key, field, max) {#field, FIELD_TEXT, offsetof(struct rec_result, field)},
#define FIELD_NONE(...)
static const struct result_field fields[] = {
    REC_RESULT(FIELD_U, FIELD_NONE, FIELD_M, FIELD_F, FIELD_S, FIELD_S, FIELD_NONE, FIELD_NONE)};
#define N_FIELDS ((int)(sizeof fields / sizeof *fields))

/* By their place, because a row asks for each of its fields. Columns of type integer: */
#define PLACE(field) offsetof(struct rec_result, field)
static const size_t narrow[] = {PLACE(attempt),         PLACE(prompt_tokens), PLACE(output_tokens),
                                PLACE(thinking_tokens), PLACE(compactions),   PLACE(batch_max)};
/* Fields that belong to the table of grades, and its columns; results has a column for each other one. */
static const struct {
    size_t place;
    const char *column;
} graded[] = {{PLACE(grade), "verdict"},
              {PLACE(grade_reason), "reason"},
              {PLACE(extracted), "extracted"},
              {PLACE(grader), "grader"}};

static bool is_narrow(const struct result_field *field)
{
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        if (field->place == narrow[i]) return true;
    return false;
}

static const char *grade_column(const struct result_field *field)
{
    for (size_t i = 0; i < sizeof graded / sizeof *graded; i++)
        if (field->place == graded[i].place) return graded[i].column;
    return NULL;
}

/* What stands in front of the message's fields in a row of each table. */
enum { RESULT_KEYS = 4, GRADE_KEYS = 2, N_GRADED = sizeof graded / sizeof *graded };

int store_copy_init(struct store *store, struct kvf_err *err)
{
    size_t len = 0;
    FILE *sql = open_memstream(&store->copy_sql, &len);

    if (sql == NULL) return kvf_fail(err, KVF_ENOMEM, "store: out of memory");
    fprintf(sql, "COPY results (job_id, run_id, fence, cell_id");
    for (int i = 0; i < N_FIELDS; i++)
        if (grade_column(&fields[i]) == NULL) fprintf(sql, ", %s", fields[i].name);
    fprintf(sql, ") FROM STDIN (FORMAT binary);COPY grades (job_id, sample_id");
    for (int i = 0; i < N_FIELDS; i++)
        if (grade_column(&fields[i]) != NULL) fprintf(sql, ", %s", grade_column(&fields[i]));
    fprintf(sql, ") FROM STDIN (FORMAT binary);");
    return fclose(sql) == 0 ? KVF_OK : kvf_fail(err, KVF_ENOMEM, "store: out of memory");
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

    if (!str_in(result->finish, finishes))
        return kvf_fail(err, KVF_EINVAL, "sample %" PRIu64 ": unknown finish '%.*s'", result->sample_id,
                        (int)result->finish.len, result->finish.text);
    if (!str_in(result->grade, grades))
        return kvf_fail(err, KVF_EINVAL, "sample %" PRIu64 ": unknown grade '%.*s'", result->sample_id,
                        (int)result->grade.len, result->grade.text);
    for (int i = 0; i < N_FIELDS; i++) {
        int64_t value, most;
        if (fields[i].kind == FIELD_REAL) {
            double real = *(const double *)((const char *)result + fields[i].place);
            if (!isnan(real) && fabs(real) > (double)MEASURE_MAX)
                return kvf_fail(err, KVF_EINVAL, "sample %" PRIu64 ": %s: expected at most %g, got %g",
                                result->sample_id, fields[i].name, (double)MEASURE_MAX, real);
        }
        if (fields[i].kind != FIELD_INT || fields[i].place == PLACE(output_hash)) continue;
        value = *(const int64_t *)((const char *)result + fields[i].place);
        most = is_narrow(&fields[i]) ? INT32_MAX : MEASURE_MAX;
        if (value != MSG_NULL_INT && (value < 0 || value > most))
            return kvf_fail(err, KVF_EINVAL, "sample %" PRIu64 ": %s: expected 0 to %" PRId64 ", got %" PRId64,
                            result->sample_id, fields[i].name, most, value);
    }
    return KVF_OK;
}

/* ---- a batch of rows ---- */

/* Of a lease that the database holds as active. */
struct held {
    int64_t fence, job_id, run_id;
};
struct batch {
    const struct store_row *rows; /* [n] */
    uint32_t n;
    struct held *held; /* [n_held] by fence */
    uint32_t n_held;
    const struct held **of_row; /* [n] NULL: the row is not written */
};

#define PIECE_BYTES (64u << 10) /* of rows: the server works on one while the next is made */

static int held_order(const void *left, const void *right)
{
    int64_t a = ((const struct held *)left)->fence, b = ((const struct held *)right)->fence;

    return a < b ? -1 : a > b;
}

static void held_read(struct batch *batch, const PGresult *result)
{
    const struct held *last = NULL;

    for (int i = 0; i < PQntuples(result); i++)
        batch->held[batch->n_held++] =
            (struct held){pg_get_int(result, i, 0), pg_get_int(result, i, 1), pg_get_int(result, i, 2)};
    for (uint32_t i = 0; i < batch->n; i++) {
        struct held wanted = {.fence = batch->rows[i].fence};
        if (last == NULL || last->fence != wanted.fence)
            last = bsearch(&wanted, batch->held, batch->n_held, sizeof wanted, held_order);
        batch->of_row[i] = last;
    }
}

/* Leaves out the rows whose sample has one already, in the database or in front of it in the batch. */
static int known_read(struct batch *batch, const PGresult *result)
{
    struct map known = {0};
    int code = KVF_OK;

    for (int i = 0; i < PQntuples(result) && code == KVF_OK; i++) {
        int64_t key[2] = {pg_get_int(result, i, 0), pg_get_int(result, i, 1)};
        code = map_put(&known, key, sizeof key, batch);
    }
    for (uint32_t i = 0; i < batch->n && code == KVF_OK; i++) {
        int64_t key[2] = {0, (int64_t)batch->rows[i].result->sample_id};
        if (batch->of_row[i] == NULL) continue;
        key[0] = batch->of_row[i]->job_id;
        if (map_get(&known, key, sizeof key) != NULL)
            batch->of_row[i] = NULL;
        else
            code = map_put(&known, key, sizeof key, batch);
    }
    map_free(&known);
    return code;
}

static void field_write(struct copy *copy, const struct result_field *field, const struct rec_result *result)
{
    const void *value = (const char *)result + field->place;

    switch (field->kind) {
    case FIELD_INT:
        if (is_narrow(field))
            copy_narrow(copy, *(const int64_t *)value);
        else
            copy_int(copy, *(const int64_t *)value);
        break;
    case FIELD_REAL:
        copy_real(copy, *(const double *)value);
        break;
    case FIELD_TEXT:
        copy_text(copy, *(const struct str *)value);
        break;
    case FIELD_NUMERIC:
        copy_numeric(copy, *(const uint64_t *)value);
        break;
    }
}

static void row_write(struct copy *copy, const struct held *held, const struct store_row *row, bool grades)
{
    if (grades) {
        copy_row(copy, GRADE_KEYS + N_GRADED);
        copy_int(copy, held->job_id);
        copy_int(copy, (int64_t)row->result->sample_id);
    } else {
        copy_row(copy, RESULT_KEYS + N_FIELDS - N_GRADED);
        copy_int(copy, held->job_id);
        copy_int(copy, held->run_id);
        copy_int(copy, held->fence);
        copy_int(copy, row->cell_id);
    }
    for (int i = 0; i < N_FIELDS; i++)
        if ((grade_column(&fields[i]) != NULL) == grades) field_write(copy, &fields[i], row->result);
}

static int rows_copy(struct store *store, const struct batch *batch, bool grades, struct kvf_err *err)
{
    struct copy *copy = &store->copy;
    int code = KVF_OK;

    copy_begin(copy);
    for (uint32_t i = 0; i < batch->n && code == KVF_OK && !copy->failed; i++) {
        if (batch->of_row[i] == NULL) continue;
        row_write(copy, batch->of_row[i], &batch->rows[i], grades);
        if (copy->len < PIECE_BYTES || copy->failed) continue;
        code = pg_copy_put(&store->pg, copy->data, copy->len, err);
        copy_clear(copy);
    }
    copy_end(copy);
    if (code == KVF_OK && !copy->failed) code = pg_copy_put(&store->pg, copy->data, copy->len, err);
    if (code == KVF_OK) code = pg_copy_end(&store->pg, copy->failed ? "the coordinator is out of memory" : NULL, err);
    return code;
}

static void list_print(FILE *sql, const int64_t *numbers, uint32_t n)
{
    fprintf(sql, "'{");
    for (uint32_t i = 0; i < n; i++) fprintf(sql, "%s%" PRId64, i == 0 ? "" : ",", numbers[i]);
    fprintf(sql, "}'::bigint[]");
}

/* Locks the leases that are active, takes the rows of these, ends those that are over. */
static char *batch_sql(const struct store *store, const struct batch *batch, const int64_t *fences, uint32_t n_fences,
                       const int64_t *done, uint32_t n_done, bool careful)
{
    char *text = NULL;
    size_t len = 0;
    FILE *sql = open_memstream(&text, &len);

    if (sql == NULL) return NULL;
    fprintf(sql, "SELECT fence, job_id, run_id FROM leases WHERE state = 'active' AND fence = ANY (");
    list_print(sql, fences, n_fences);
    fprintf(sql, ") ORDER BY fence FOR SHARE;");
    if (careful) {
        fprintf(sql, "SELECT r.job_id, r.sample_id FROM unnest('{");
        for (uint32_t i = 0; i < batch->n; i++) fprintf(sql, "%s%" PRId64, i == 0 ? "" : ",", batch->rows[i].fence);
        fprintf(sql, "}'::bigint[], '{");
        for (uint32_t i = 0; i < batch->n; i++)
            fprintf(sql, "%s%" PRIu64, i == 0 ? "" : ",", batch->rows[i].result->sample_id);
        fprintf(sql, "}'::bigint[]) AS i(fence, sample_id) JOIN leases l USING (fence) "
                     "JOIN results r ON (r.job_id, r.sample_id) = (l.job_id, i.sample_id);");
    }
    if (batch->n > 0) fprintf(sql, "%s", store->copy_sql);
    if (n_done > 0) {
        fprintf(sql, "UPDATE leases SET state = 'done', ended_at = now() WHERE state = 'active' AND fence = ANY (");
        list_print(sql, done, n_done);
        fprintf(sql, ")");
    }
    if (fclose(sql) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* The answers of the statements of batch_sql in their order. */
static int batch_run(struct store *store, struct batch *batch, const char *sql, bool careful, struct kvf_err *err)
{
    int code = pg_start(&store->pg, sql, STORE_TIMEOUT_MS, err), copies = 0;
    bool careless = false;

    for (int at = 0; code == KVF_OK; at++) {
        PGresult *result = NULL;
        bool rows_wanted;
        code = pg_next(&store->pg, &result, err);
        if (code != KVF_OK || result == NULL) break;
        rows_wanted = PQresultStatus(result) == PGRES_COPY_IN;
        if (at == 0)
            held_read(batch, result);
        else if (at == 1 && careful)
            careless = known_read(batch, result) != KVF_OK;
        PQclear(result);
        if (!rows_wanted) continue;
        code = careless ? pg_copy_end(&store->pg, "the coordinator is out of memory", err)
                        : rows_copy(store, batch, copies++ > 0, err);
    }
    return code;
}

/* COPY is the cheapest way into a table: against one statement that takes the rows from arrays it is a quarter of the
 * server's time a row. It knows no ON CONFLICT, so that a row that is there already fails the batch; that is rare (what
 * is known to be stored is not written again), and then the batch is written once more with a look at what is there.
 * Only this connection writes, so nothing can come between the look and the rows. */
int store_results(struct store *store, const int64_t *fences, uint32_t n_fences, const struct store_row *rows,
                  uint32_t n, const int64_t *done, uint32_t n_done, int64_t **fenced, uint32_t *n_fenced,
                  struct kvf_err *err)
{
    struct batch batch = {.rows = rows, .n = n};
    int code = KVF_ECONFLICT;

    *n_fenced = 0;
    *fenced = calloc((size_t)n_fences + 1, sizeof **fenced);
    batch.held = calloc((size_t)n_fences + 1, sizeof *batch.held);
    batch.of_row = calloc((size_t)n + 1, sizeof *batch.of_row);
    for (int careful = 0; careful < 2 && code == KVF_ECONFLICT; careful++) {
        char *sql = batch_sql(store, &batch, fences, n_fences, done, n_done, careful);
        batch.n_held = 0;
        code = sql == NULL || *fenced == NULL || batch.held == NULL || batch.of_row == NULL
                   ? kvf_fail(err, KVF_ENOMEM, "store: out of memory")
                   : batch_run(store, &batch, sql, careful, err);
        free(sql);
    }
    for (uint32_t i = 0; i < n_fences && code == KVF_OK; i++) {
        struct held wanted = {.fence = fences[i]};
        if (bsearch(&wanted, batch.held, batch.n_held, sizeof wanted, held_order) == NULL)
            (*fenced)[(*n_fenced)++] = fences[i];
    }
    free(batch.held);
    free(batch.of_row);
    if (code != KVF_OK) {
        free(*fenced);
        *fenced = NULL;
    }
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
