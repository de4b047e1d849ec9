#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/map.h"
#include "coordinator/store.h"
#include "coordinator/store_row.h"

#define PIECE_BYTES (64u << 10) /* of rows: the server works on one while the next is made */

/* What store_turn_write needs while it runs. */
struct writing {
    const struct store_turn *turn;
    struct row_lease *active; /* [n_active] leases of the rows that the database holds as active, by fence */
    uint32_t n_active;
    const struct row_lease **of_row; /* [turn->n_rows] NULL: the row is not written */
    bool careful;
};

/* Leases are locked before they are relied upon. */
int store_turn_prepare(struct store *store, struct kvf_err *err)
{
    static const char *const statements[] = {
        "PREPARE turn_active (bigint[]) AS SELECT fence, job_id, run_id FROM leases "
        "WHERE fence = ANY ($1) AND state = 'active' ORDER BY fence FOR SHARE",
        "PREPARE turn_known (bigint[], bigint[]) AS SELECT r.job_id, r.sample_id FROM unnest($1, $2) AS i(fence, "
        "sample_id) JOIN leases l USING (fence) JOIN results r ON (r.job_id, r.sample_id) = (l.job_id, i.sample_id)",
        "PREPARE turn_done (bigint[]) AS UPDATE leases SET state = 'done', ended_at = now() "
        "WHERE fence = ANY ($1) AND state = 'active'",
        "PREPARE turn_lend (bigint[], bigint[], text[]) AS INSERT INTO leases (job_id, run_id, sample_ids, state) "
        "SELECT job_id, run_id, sample_ids::bigint[], 'active' FROM unnest($1, $2, $3) WITH ORDINALITY AS "
        "i(job_id, run_id, sample_ids, n) ORDER BY n RETURNING fence, run_id, sample_ids[1]"};
    int code = KVF_OK;

    for (size_t i = 0; i < sizeof statements / sizeof *statements && code == KVF_OK; i++)
        code = pg_run(&store->pg, statements[i], NULL, STORE_TIMEOUT_MS, NULL, err);
    return code;
}

/* ---- the statements ---- */

static void list_print(FILE *sql, const int64_t *numbers, uint32_t n)
{
    fprintf(sql, "'{");
    for (uint32_t i = 0; i < n; i++) fprintf(sql, "%s%" PRId64, i == 0 ? "" : ",", numbers[i]);
    fprintf(sql, "}'");
}

static void known_print(FILE *sql, const struct store_turn *turn)
{
    fprintf(sql, "EXECUTE turn_known('{");
    for (uint32_t i = 0; i < turn->n_rows; i++) fprintf(sql, "%s%" PRId64, i == 0 ? "" : ",", turn->rows[i].fence);
    fprintf(sql, "}','{");
    for (uint32_t i = 0; i < turn->n_rows; i++)
        fprintf(sql, "%s%" PRIu64, i == 0 ? "" : ",", turn->rows[i].result->sample_id);
    fprintf(sql, "}');");
}

static void lend_print(FILE *sql, const struct store_turn *turn)
{
    fprintf(sql, "EXECUTE turn_lend('{");
    for (uint32_t i = 0; i < turn->n_leases; i++)
        fprintf(sql, "%s%" PRId64, i == 0 ? "" : ",", turn->leases[i]->job->job_id);
    fprintf(sql, "}','{");
    for (uint32_t i = 0; i < turn->n_leases; i++)
        fprintf(sql, "%s%" PRId64, i == 0 ? "" : ",", turn->leases[i]->run_id);
    fprintf(sql, "}','{");
    for (uint32_t i = 0; i < turn->n_leases; i++) {
        const struct queue_lease *lease = turn->leases[i];
        fprintf(sql, "%s", i == 0 ? "\"{" : ",\"{");
        for (uint32_t k = 0; k < lease->n_samples; k++)
            fprintf(sql, "%s%" PRId64, k == 0 ? "" : ",", lease->job->samples[lease->samples[k]].sample_id);
        fprintf(sql, "}\"");
    }
    fprintf(sql, "}');");
}

static char *turn_sql(const struct store *store, const struct writing *writing)
{
    const struct store_turn *turn = writing->turn;
    char *text = NULL;
    size_t len = 0;
    FILE *sql = open_memstream(&text, &len);

    if (sql == NULL) return NULL;
    if (turn->n_fences > 0) {
        fprintf(sql, "EXECUTE turn_active(");
        list_print(sql, turn->fences, turn->n_fences);
        fprintf(sql, ");");
    }
    if (writing->careful) known_print(sql, turn);
    if (turn->n_rows > 0) fprintf(sql, "%s", store->copy_sql);
    if (turn->n_done > 0) {
        fprintf(sql, "EXECUTE turn_done(");
        list_print(sql, turn->done, turn->n_done);
        fprintf(sql, ");");
    }
    if (turn->n_leases > 0) lend_print(sql, turn);
    if (fclose(sql) == 0) return text;
    free(text);
    return NULL;
}

/* ---- their answers ---- */

static int active_order(const void *left, const void *right)
{
    int64_t a = ((const struct row_lease *)left)->fence, b = ((const struct row_lease *)right)->fence;

    return a < b ? -1 : a > b;
}

static const struct row_lease *active_find(const struct writing *writing, int64_t fence)
{
    struct row_lease wanted = {.fence = fence};

    return bsearch(&wanted, writing->active, writing->n_active, sizeof wanted, active_order);
}

static void active_read(struct writing *writing, const PGresult *result)
{
    const struct row_lease *last = NULL;

    writing->n_active = 0;
    for (int i = 0; i < PQntuples(result); i++)
        writing->active[writing->n_active++] =
            (struct row_lease){pg_get_int(result, i, 0), pg_get_int(result, i, 1), pg_get_int(result, i, 2)};
    for (uint32_t i = 0; i < writing->turn->n_rows; i++) {
        if (last == NULL || last->fence != writing->turn->rows[i].fence)
            last = active_find(writing, writing->turn->rows[i].fence);
        writing->of_row[i] = last;
    }
}

/* Leaves out the rows whose sample has one already, in the database or in front of it in the turn. */
static int known_read(struct writing *writing, const PGresult *result)
{
    struct map known = {0};
    int code = KVF_OK;

    for (int i = 0; i < PQntuples(result) && code == KVF_OK; i++) {
        int64_t key[2] = {pg_get_int(result, i, 0), pg_get_int(result, i, 1)};
        code = map_put(&known, key, sizeof key, writing);
    }
    for (uint32_t i = 0; i < writing->turn->n_rows && code == KVF_OK; i++) {
        int64_t key[2] = {0, (int64_t)writing->turn->rows[i].result->sample_id};
        if (writing->of_row[i] == NULL) continue;
        key[0] = writing->of_row[i]->job_id;
        if (map_get(&known, key, sizeof key) != NULL)
            writing->of_row[i] = NULL;
        else
            code = map_put(&known, key, sizeof key, writing);
    }
    map_free(&known);
    return code;
}

/* RETURNING gives the rows in the order in which they were made; what a fence stands for is looked at nevertheless. */
static bool fences_read(const struct store_turn *turn, const PGresult *result)
{
    if ((uint32_t)PQntuples(result) != turn->n_leases) return false;
    for (uint32_t i = 0; i < turn->n_leases; i++) {
        const struct queue_lease *lease = turn->leases[i];
        if (pg_get_int(result, (int)i, 1) != lease->run_id ||
            pg_get_int(result, (int)i, 2) != lease->job->samples[lease->samples[0]].sample_id)
            return false;
        turn->granted[i] = pg_get_int(result, (int)i, 0);
    }
    return true;
}

static int rows_copy(struct store *store, const struct writing *writing, bool grades, struct kvf_err *err)
{
    struct copy *copy = &store->copy;
    int code = KVF_OK;

    copy_begin(copy);
    for (uint32_t i = 0; i < writing->turn->n_rows && code == KVF_OK && !copy->failed; i++) {
        const struct store_row *row = &writing->turn->rows[i];
        if (writing->of_row[i] == NULL) continue;
        if (grades)
            row_write_grade(copy, writing->of_row[i], row->result);
        else
            row_write_result(copy, writing->of_row[i], row->cell_id, row->result);
        if (copy->len < PIECE_BYTES || copy->failed) continue;
        code = pg_copy_put(&store->pg, copy->data, copy->len, err);
        copy_clear(copy);
    }
    copy_end(copy);
    if (code == KVF_OK && !copy->failed) code = pg_copy_put(&store->pg, copy->data, copy->len, err);
    if (code == KVF_OK) code = pg_copy_end(&store->pg, copy->failed ? "the coordinator is out of memory" : NULL, err);
    return code;
}

/* The answers come in the order of the statements, and each kind can be told from the others by what was asked for. */
static int turn_run(struct store *store, struct writing *writing, const char *sql, struct kvf_err *err)
{
    const struct store_turn *turn = writing->turn;
    bool active_due = turn->n_fences > 0, known_due = writing->careful, failed = false, confused = false;
    int code = pg_start(&store->pg, sql, STORE_TIMEOUT_MS, err), copies = 0;

    while (code == KVF_OK) {
        PGresult *result = NULL;
        ExecStatusType status;
        code = pg_next(&store->pg, &result, err);
        if (code != KVF_OK || result == NULL) break;
        status = PQresultStatus(result);
        if (status == PGRES_TUPLES_OK && active_due) {
            active_read(writing, result);
            active_due = false;
        } else if (status == PGRES_TUPLES_OK && known_due) {
            failed = known_read(writing, result) != KVF_OK;
            known_due = false;
        } else if (status == PGRES_TUPLES_OK) {
            confused = !fences_read(turn, result);
        }
        PQclear(result);
        if (status == PGRES_COPY_IN)
            code = failed ? pg_copy_end(&store->pg, "the coordinator is out of memory", err)
                          : rows_copy(store, writing, copies++ > 0, err);
    }
    if (code != KVF_OK || !confused) return code;
    /* committed, but who has which lease is not known: only a reload of everything tells */
    pg_close(&store->pg);
    return kvf_fail(err, KVF_EUNAVAIL, "leases: the database answered with others than were written");
}

/* COPY is the cheapest way into a table, but it knows no ON CONFLICT: a row that is there already fails the whole. That
 * is rare, as what is known to be stored is not written again, and then the turn is written once more with a look at
 * what is there. Only this connection writes, so nothing comes between the look and the rows. */
int store_turn_write(struct store *store, struct store_turn *turn, struct kvf_err *err)
{
    struct writing writing = {.turn = turn};
    int code = KVF_ECONFLICT;

    turn->n_fenced = 0;
    writing.active = calloc((size_t)turn->n_fences + 1, sizeof *writing.active);
    writing.of_row = calloc((size_t)turn->n_rows + 1, sizeof *writing.of_row);
    for (int attempt = 0; attempt < 2 && code == KVF_ECONFLICT; attempt++) {
        char *sql;
        writing.careful = attempt > 0 && turn->n_rows > 0;
        sql = turn_sql(store, &writing);
        code = sql == NULL || writing.active == NULL || writing.of_row == NULL
                   ? kvf_fail(err, KVF_ENOMEM, "store: out of memory")
                   : turn_run(store, &writing, sql, err);
        free(sql);
    }
    for (uint32_t i = 0; i < turn->n_fences && code == KVF_OK; i++)
        if (active_find(&writing, turn->fences[i]) == NULL) turn->fenced[turn->n_fenced++] = turn->fences[i];
    free(writing.active);
    free(writing.of_row);
    return code;
}
