/* The store against a real database: KVF_DB (the coordinator's connection string) and KVF_DB_OWNER (the owner's), of a
 * throw-away database that deploy/migrate has prepared. Without them, tests/with_database.sh makes one and runs this
 * again. */
#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "coordinator/seed.h"
#include "coordinator/store.h"

#define N_PROBLEMS 4
#define HASH_A     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static struct store store;
static struct queue queue;
static struct kvf_err err;
static PGconn *owner;
static int64_t run_id, job_id;
static struct queue_worker *worker;

#define OK(call) ck_assert_msg((call) == KVF_OK, "%s", err.text)

static int64_t number(const char *sql)
{
    PGresult *result = PQexec(owner, sql);
    int64_t value;

    ck_assert_msg(PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1, "%s: %s", sql,
                  PQerrorMessage(owner));
    value = pg_get_int(result, 0, 0);
    PQclear(result);
    return value;
}

static void run_sql(const char *sql)
{
    PGresult *result = PQexec(owner, sql);

    ck_assert_msg(PQresultStatus(result) == PGRES_COMMAND_OK || PQresultStatus(result) == PGRES_TUPLES_OK, "%s: %s",
                  sql, PQerrorMessage(owner));
    PQclear(result);
}

static int open_store(struct store *which, struct kvf_err *why)
{
    bool stale;
    int code;

    while ((code = store_open(which, 100, &stale, why)) == KVF_EAGAIN) continue;
    return code;
}

static void begin_run(const char *instance)
{
    struct rec_model model = {str_of("m"), str_of(HASH_A)};
    struct msg_hello hello;

    msg_init(MSG_HELLO_TYPE, &hello);
    hello.instance = str_of(instance);
    hello.host = str_of("h");
    hello.pid = 1;
    hello.version = hello.revision = hello.build_flags = hello.backend = hello.kernel_set = hello.device = str_of("t");
    hello.threads = hello.max_batch = 1;
    hello.models = &model;
    hello.n_models = 1;
    OK(store_run_begin(&store, "worker", &hello, &run_id, &err));
    OK(queue_worker_add(&queue, run_id, &model, 1, &worker, &err));
}

/* Two cells, N_PROBLEMS problems, two repeats: 16 samples. */
static void make_job(int max_attempts)
{
    struct rec_cell cells[2] = {{.policy = str_of("full"),
                                 .interval_tokens = 32,
                                 .top_p = 1,
                                 .max_new_tokens = 10,
                                 .template_name = str_of("auto")},
                                {.policy = str_of("rkv"),
                                 .budget_tokens = 96,
                                 .interval_tokens = 32,
                                 .temperature = 0.5,
                                 .top_p = 0.9,
                                 .max_new_tokens = 10,
                                 .template_name = str_of("auto")}};
    struct rec_problem problems[N_PROBLEMS];
    struct msg_submit submit;
    struct store_job job;

    msg_init(MSG_SUBMIT_TYPE, &submit);
    submit.content_hash = submit.model_hash = submit.dataset_hash = str_of(HASH_A);
    submit.title = submit.model_name = submit.dataset_name = str_of("t");
    submit.repeats = 2;
    submit.seed = UINT64_MAX;
    submit.n_problems = N_PROBLEMS;
    submit.cells = cells;
    submit.n_cells = 2;
    submit.spec = str_of("{\"a\": 1}");
    submit.max_attempts = (uint64_t)max_attempts;
    OK(store_job_create(&store, &submit, "client", &job_id, &err));
    for (int i = 0; i < N_PROBLEMS; i++)
        problems[i] = (struct rec_problem){str_of("n"), str_of(HASH_A), (uint64_t)i, str_of("p\0q"), str_of("7")};
    OK(store_problems_add(&store, job_id, 0, problems, 3, &err));
    OK(store_problems_add(&store, job_id, 2, problems + 2, 2, &err)); /* one of them again */
    OK(store_job_look(&store, job_id, &job, &err));
    ck_assert_str_eq(job.state, "receiving");
    ck_assert_uint_eq(job.received, N_PROBLEMS);
    ck_assert_uint_eq(job.seed, UINT64_MAX);
    OK(store_job_queue(&store, job_id, &err));
    OK(store_samples_make(&store, &job, &err));
    ck_assert_uint_eq(job.made, 16);
    OK(store_job_start(&store, job_id, &err));
    OK(store_load_job(&store, &queue, job_id, 0, &err));
}

static void setup(void)
{
    OK(store_init(&store, getenv("KVF_DB"), -1, &err));
    OK(open_store(&store, &err));
    queue_init(&queue, 60000, 5000, 0);
    owner = PQconnectdb(getenv("KVF_DB_OWNER"));
    ck_assert_int_eq(PQstatus(owner), CONNECTION_OK);
    run_sql("UPDATE jobs SET state = 'cancelled' WHERE state IN ('receiving', 'queued', 'running')");
}

static void teardown(void)
{
    queue_free(&queue);
    store_free(&store);
    PQfinish(owner);
}

static struct queue_lease *lend(uint32_t credit)
{
    struct queue_lease *lease;
    int64_t fence;
    struct store_turn turn = {.leases = &lease, .granted = &fence};

    queue_worker_ready(&queue, worker, credit, NULL, 0, 1000000); /* long after any other lease was granted */
    turn.n_leases = queue_grant(&queue, &lease, 1);
    ck_assert_uint_eq(turn.n_leases, 1);
    OK(store_turn_write(&store, &turn, &err));
    OK(queue_lease_confirm(&queue, lease, fence, 0, &err));
    return lease;
}

static void fill(struct rec_result *row, const struct queue_lease *lease, uint32_t i)
{
    const struct queue_sample *sample = &lease->job->samples[lease->samples[i]];

    rec_result_init(row);
    row->sample_id = (uint64_t)sample->sample_id;
    row->attempt = 1;
    row->seed = sample->seed;
    row->finish = str_of("stop");
    row->text = (struct str){"a\0b", 3};
    row->output_tokens = 5;
    row->output_hash = -3;
    row->batch_mean = 1.25;
    row->grade = str_of("correct");
    row->grader = str_of("boxed-text/1");
}

static int64_t cell_of(const struct queue_lease *lease, uint32_t i)
{
    return (int64_t)lease->job->cells[lease->job->samples[lease->samples[i]].cell].spec.cell_id;
}

static uint32_t put(const struct queue_lease *lease, uint32_t from, uint32_t n, bool done)
{
    struct rec_result results[32];
    struct store_row rows[32];
    int64_t fenced = 0;
    struct store_turn turn = {.rows = rows,
                              .n_rows = n,
                              .fences = &lease->fence,
                              .n_fences = 1,
                              .done = &lease->fence,
                              .n_done = done,
                              .fenced = &fenced};

    for (uint32_t i = 0; i < n; i++) {
        fill(&results[i], lease, from + i);
        rows[i] = (struct store_row){lease->fence, cell_of(lease, from + i), &results[i]};
    }
    OK(store_turn_write(&store, &turn, &err));
    if (turn.n_fenced == 1) ck_assert_int_eq(fenced, lease->fence);
    return turn.n_fenced;
}

START_TEST(second_coordinator)
{
    struct store other;
    struct kvf_err why = {""};
    bool stale = true;
    int code;

    OK(store_init(&other, getenv("KVF_DB"), -1, &err));
    while ((code = store_open(&other, 100, &stale, &why)) == KVF_EAGAIN) continue;
    ck_assert_int_eq(code, KVF_ECONFLICT);
    ck_assert_ptr_nonnull(strstr(why.text, "another coordinator"));
    ck_assert_ptr_nonnull(strstr(why.text, store.application));
    pg_close(&store.pg); /* the lock goes with the connection */
    while ((code = store_open(&other, 100, &stale, &why)) == KVF_EAGAIN || code == KVF_ECONFLICT) continue;
    ck_assert_int_eq(code, KVF_OK);
    ck_assert_int_gt(other.epoch, store.epoch);
    store_free(&other);
}
END_TEST

START_TEST(lost_connection)
{
    begin_run("lost");
    run_sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'kvfleet-coordinator %'");
    ck_assert_int_eq(store_run_end(&store, run_id, str_of("x"), &err), KVF_EUNAVAIL);
    ck_assert(!store_is_open(&store));
    ck_assert_int_eq(store_run_end(&store, run_id, str_of("x"), &err), KVF_EUNAVAIL);
    OK(open_store(&store, &err));
    OK(store_run_end(&store, run_id, str_of("x"), &err));
}
END_TEST

START_TEST(schema)
{
    pg_close(&store.pg);
    run_sql("INSERT INTO schema_migrations (version, name, sha256) VALUES (99, 'later', '')");
    ck_assert_int_eq(open_store(&store, &err), KVF_EUNSUPPORTED);
    ck_assert_str_eq(err.text, "database schema 99 is newer than this program (4): use a newer kvfleet-coordinator");
    run_sql("DELETE FROM schema_migrations WHERE version = 99");
    OK(open_store(&store, &err));
}
END_TEST

static const char *state_of(int64_t id)
{
    static struct store_job job;

    OK(store_job_look(&store, id, &job, &err));
    return job.state;
}

START_TEST(states_before_the_first_sample)
{
    struct store_job job;
    int64_t first, found;

    begin_run("states");
    make_job(3);
    first = job_id;
    ck_assert_str_eq(state_of(first), "running");
    OK(store_job_queue(&store, first, &err)); /* not back */
    ck_assert_str_eq(state_of(first), "running");
    ck_assert_int_eq(store_job_queued(&store, 0, &job, &err), KVF_ENOTFOUND);

    run_sql("UPDATE jobs SET state = 'receiving', started_at = NULL WHERE state = 'running'");
    OK(store_job_start(&store, first, &err)); /* not past queued */
    ck_assert_str_eq(state_of(first), "receiving");
    OK(store_job_queue(&store, first, &err));
    ck_assert_str_eq(state_of(first), "queued");
    ck_assert_int_eq(number("SELECT count(*) FROM v_job WHERE state = 'queued' AND started_at IS NULL"), 1);
    OK(store_job_queued(&store, 0, &job, &err));
    ck_assert_int_eq(job.job_id, first);
    ck_assert_uint_eq(job.made, 16);
    ck_assert_uint_eq(job.n_cells, 2);
    ck_assert_int_eq(store_job_queued(&store, first, &job, &err), KVF_ENOTFOUND);
    OK(store_job_unfinished(&store, str_of(HASH_A), &found, &err));
    ck_assert_int_eq(found, first);
    OK(store_job_cancel(&store, first, &job, &err));
    ck_assert_str_eq(job.state, "cancelled");
    ck_assert_int_eq(store_job_queued(&store, 0, &job, &err), KVF_ENOTFOUND);
}
END_TEST

START_TEST(samples)
{
    begin_run("samples");
    make_job(3);
    ck_assert_int_eq(number("SELECT count(*) FROM samples WHERE job_id = (SELECT max(job_id) FROM jobs)"), 16);
    /* equal (problem, repeat), equal seed in every cell; else different */
    ck_assert_int_eq(number("SELECT count(DISTINCT seed) FROM samples WHERE job_id = (SELECT max(job_id) FROM jobs)"),
                     8);
    ck_assert_int_eq(number("SELECT max(n) FROM (SELECT count(DISTINCT seed) AS n FROM samples WHERE job_id = (SELECT "
                            "max(job_id) FROM jobs) GROUP BY problem_no, repeat) x"),
                     1);
    ck_assert_uint_eq(queue_job_find(&queue, job_id)->samples[2].seed, sample_seed(str_of(HASH_A), 0, 1, UINT64_MAX));
    ck_assert_int_eq(
        number("SELECT count(*) FROM cells WHERE job_id = (SELECT max(job_id) FROM jobs) AND budget_tokens IS NULL "
               "AND interval_tokens IS NULL AND policy = 'full'"),
        1);
}
END_TEST

START_TEST(results_and_fences)
{
    struct queue_lease *lease;
    struct rec_result row;
    bool known;

    begin_run("results");
    make_job(3);
    lease = lend(8);
    ck_assert_uint_eq(put(lease, 0, 4, false), 0);
    ck_assert_uint_eq(put(lease, 0, 8, false), 0); /* four of them again */
    ck_assert_int_eq(number("SELECT count(*) FROM results WHERE job_id = (SELECT max(job_id) FROM jobs)"), 8);
    ck_assert_int_eq(
        number("SELECT count(*) FROM grades WHERE job_id = (SELECT max(job_id) FROM jobs) AND verdict = 'correct'"), 8);
    ck_assert_int_eq(
        number("SELECT count(*) FROM results WHERE prompt_tokens IS NULL AND error IS NULL AND min_margin IS NULL AND "
               "text = 'a' || chr(65533) || 'b' AND output_hash = -3 AND batch_mean = 1.25 AND output_tokens = 5 AND "
               "job_id = (SELECT max(job_id) FROM jobs)"),
        8);
    ck_assert_int_eq(
        number("SELECT count(*) FROM results r JOIN samples s USING (job_id, sample_id) WHERE r.seed = s.seed AND "
               "r.cell_id = s.cell_id AND r.job_id = (SELECT max(job_id) FROM jobs)"),
        8);
    fill(&row, lease, 0);
    OK(store_batch_known(&store, lease->fence, &row, 1, &known, &err));
    ck_assert(known);
    ck_assert_uint_eq(put(lease, 0, 8, true), 0);
    ck_assert_int_eq(number("SELECT count(*) FROM leases WHERE state = 'done' AND ended_at IS NOT NULL AND job_id = "
                            "(SELECT max(job_id) FROM jobs)"),
                     1);
    ck_assert_uint_eq(put(lease, 0, 1, false), 1); /* it has ended */
    lease = lend(8);
    OK(store_leases_end(&store, &lease->fence, 1, "expired", &err));
    ck_assert_uint_eq(put(lease, 0, lease->n_samples, true), 1);
    ck_assert_int_eq(number("SELECT count(*) FROM results WHERE job_id = (SELECT max(job_id) FROM jobs)"), 8);
    fill(&row, lease, 0);
    OK(store_batch_known(&store, lease->fence, &row, 1, &known, &err));
    ck_assert(!known);
    ck_assert_int_eq(
        number("SELECT count(*) FROM leases WHERE state = 'expired' AND job_id = (SELECT max(job_id) FROM jobs)"), 1);
}
END_TEST

/* Two leases in one turn, one of them ended, a sample twice, a new lease: each row counts for itself. */
START_TEST(a_turn_with_everything)
{
    struct queue_lease *good, *ended, *next;
    struct rec_result results[9];
    struct store_row rows[9];
    int64_t fences[2], fenced[2], granted;
    struct store_turn turn = {.rows = rows,
                              .n_rows = 9,
                              .fences = fences,
                              .n_fences = 2,
                              .done = fences,
                              .n_done = 2,
                              .leases = &next,
                              .fenced = fenced,
                              .granted = &granted};

    begin_run("turn");
    make_job(3);
    good = lend(4);
    ended = lend(4);
    ck_assert_uint_eq(good->n_samples + ended->n_samples, 8);
    OK(store_leases_end(&store, &ended->fence, 1, "expired", &err));
    for (uint32_t i = 0; i < 9; i++) {
        const struct queue_lease *lease = i >= 4 && i < 8 ? ended : good;
        fill(&results[i], lease, i % 4);
        rows[i] = (struct store_row){lease->fence, cell_of(lease, i % 4), &results[i]};
    }
    fences[0] = ended->fence;
    fences[1] = good->fence;
    queue_worker_ready(&queue, worker, 4, NULL, 0, 1000000);
    turn.n_leases = queue_grant(&queue, &next, 1);
    OK(store_turn_write(&store, &turn, &err));
    ck_assert_uint_eq(turn.n_fenced, 1);
    ck_assert_int_eq(fenced[0], ended->fence);
    ck_assert_int_gt(granted, ended->fence);
    OK(queue_lease_confirm(&queue, next, granted, 0, &err));
    ck_assert_int_eq(number("SELECT count(*) FROM results WHERE job_id = (SELECT max(job_id) FROM jobs)"), 4);
    ck_assert_int_eq(number("SELECT count(*) FROM grades WHERE job_id = (SELECT max(job_id) FROM jobs)"), 4);
    ck_assert_int_eq(
        number("SELECT count(*) FROM results r JOIN leases l USING (fence, job_id, run_id) WHERE r.job_id = "
               "(SELECT max(job_id) FROM jobs) AND l.state = 'done'"),
        4);
    ck_assert_int_eq(number("SELECT count(*) FROM leases WHERE state = 'expired' AND job_id = (SELECT max(job_id) FROM "
                            "jobs)"),
                     1);
    /* refused by the database: nothing of it is there, the connection is good */
    turn.n_leases = turn.n_done = 0;
    turn.n_rows = 2;
    fill(&results[0], next, 0);
    fill(&results[1], next, 1);
    rows[0] = (struct store_row){granted, cell_of(next, 0), &results[0]};
    rows[1] = (struct store_row){granted, cell_of(next, 1), &results[1]};
    results[1].text = str_of("\xff");
    turn.fences = &granted;
    turn.n_fences = 1;
    ck_assert_int_eq(store_turn_write(&store, &turn, &err), KVF_ECORRUPT);
    ck_assert_int_eq(number("SELECT count(*) FROM results WHERE job_id = (SELECT max(job_id) FROM jobs)"), 4);
    results[1].text = str_of("x");
    OK(store_turn_write(&store, &turn, &err));
    ck_assert_int_eq(number("SELECT count(*) FROM results WHERE job_id = (SELECT max(job_id) FROM jobs)"), 6);
}
END_TEST

START_TEST(load_counts_what_happened)
{
    struct queue_lease *done, *active, *expired;
    struct queue_job *job;
    int64_t active_fence, done_n, active_n, expired_n;

    begin_run("load");
    make_job(5);
    done = lend(4);
    expired = lend(4);
    active = lend(4);
    done_n = done->n_samples;
    active_n = active->n_samples;
    expired_n = expired->n_samples;
    active_fence = active->fence;
    ck_assert_uint_eq(put(done, 0, done->n_samples, true), 0);
    OK(store_leases_end(&store, &expired->fence, 1, "expired", &err));
    ck_assert_uint_eq(put(active, 0, 1, false), 0);
    queue_reset(&queue, 0);
    OK(store_load(&store, &queue, 0, &err));
    job = queue_job_find(&queue, job_id);
    ck_assert_ptr_nonnull(job);
    ck_assert_msg(queue_check(&queue, &err) == KVF_OK, "%s", err.text);
    ck_assert_int_eq(job->done, done_n + 1);
    ck_assert_int_eq(job->tokens, 5 * (done_n + 1));
    ck_assert_int_eq(job->n_leases, 1);
    ck_assert_ptr_eq(queue_lease_find(&queue, active_fence)->worker, worker);
    ck_assert_int_eq(queue_lease_find(&queue, active_fence)->n_open, active_n - 1);
    ck_assert_int_eq(job->n_pending, 16 - done_n - active_n);
    for (uint32_t i = 0, once = 0; i < job->n_samples; i++) {
        once += job->samples[i].state == SAMPLE_PENDING && job->samples[i].attempts == 1;
        if (i + 1 == job->n_samples) ck_assert_uint_eq(once, expired_n);
    }
}
END_TEST

/* The last step of a load writes: while it cannot, the job is not in the queue at all. */
START_TEST(a_load_is_all_or_nothing)
{
    struct queue_lease *settled, *open;
    int64_t open_fence;

    begin_run("half");
    make_job(3);
    settled = lend(4);
    open = lend(4);
    open_fence = open->fence;
    ck_assert_uint_eq(put(settled, 0, settled->n_samples, false), 0); /* active, with nothing left to do */
    queue_reset(&queue, 0);
    OK(pg_run(&store.pg, "SET lock_timeout = '50ms'", NULL, 1000, NULL, &err));
    run_sql("BEGIN");
    run_sql("LOCK TABLE leases IN SHARE MODE"); /* may be read, not written */
    ck_assert_int_eq(store_load_job(&store, &queue, job_id, 0, &err), KVF_ECONFLICT);
    run_sql("ROLLBACK");
    ck_assert_ptr_null(queue_job_find(&queue, job_id));
    ck_assert_ptr_null(queue_lease_find(&queue, open_fence));
    ck_assert_uint_eq(worker->n_leases, 0);
    OK(store_load_job(&store, &queue, job_id, 0, &err));
    ck_assert_msg(queue_check(&queue, &err) == KVF_OK, "%s", err.text);
    ck_assert_int_eq(queue_job_find(&queue, job_id)->n_leases, 1);
    ck_assert_uint_gt(queue_job_find(&queue, job_id)->n_pending, 0);
}
END_TEST

START_TEST(given_up)
{
    struct queue_lease *lease;
    struct queue_job *job;
    enum queue_job_state state;

    begin_run("given-up");
    make_job(1);
    job = queue_job_find(&queue, job_id);
    lease = lend(8);
    OK(store_leases_end(&store, &lease->fence, 1, "expired", &err));
    queue_lease_end(&queue, lease, false);
    ck_assert_uint_eq(job->n_exhausted, 8);
    OK(store_exhausted(&store, job, &err));
    while (job->n_exhausted > 0) queue_exhausted_settle(&queue, job, 0);
    ck_assert_int_eq(number("SELECT count(*) FROM results WHERE job_id = (SELECT max(job_id) FROM jobs) AND run_id IS "
                            "NULL AND finish = "
                            "'error' AND error LIKE 'given up after 1 attempts; the last (lease %, worker worker@h:1): "
                            "the lease expired%'"),
                     8);
    ck_assert_int_eq(store_job_finish(&store, job_id, &state, &err), KVF_ENOTFOUND);
    while (job->n_pending > 0) {
        lease = lend(8);
        ck_assert_uint_eq(put(lease, 0, lease->n_samples, true), 0);
        while (lease->n_open > 0)
            queue_lease_settle(&queue, lease, (int)(lease->n_samples - lease->n_open), false, true, 5, 0);
        queue_lease_end(&queue, lease, false);
    }
    ck_assert(queue_job_complete(job));
    OK(store_job_finish(&store, job_id, &state, &err));
    ck_assert_int_eq(state, JOB_DONE_WITH_ERRORS);
}
END_TEST

START_TEST(cancel)
{
    struct queue_lease *lease;
    struct store_job job;

    begin_run("cancel");
    make_job(3);
    lease = lend(4);
    OK(store_job_cancel(&store, job_id, &job, &err));
    ck_assert_int_eq(job.job_id, job_id);
    ck_assert_str_eq(job.state, "cancelled");
    ck_assert_uint_eq(job.received, N_PROBLEMS);
    ck_assert_int_eq(
        number("SELECT count(*) FROM jobs WHERE state = 'cancelled' AND finished_at IS NOT NULL AND job_id = "
               "(SELECT max(job_id) FROM jobs)"),
        1);
    ck_assert_uint_eq(put(lease, 0, 1, false), 1);
    ck_assert_int_eq(store_job_look(&store, 999999, &job, &err), KVF_ENOTFOUND);
    ck_assert_int_eq(store_job_unfinished(&store, str_of(HASH_A), &job.job_id, &err), KVF_ENOTFOUND);
}
END_TEST

START_TEST(cancel_says_what_it_found)
{
    struct store_job job;
    int64_t ended_us;

    begin_run("cancel-ended");
    make_job(3);
    run_sql("UPDATE jobs SET state = 'done', finished_at = now() WHERE state = 'running'");
    ended_us =
        number("SELECT (extract(epoch FROM finished_at) * 1000000)::bigint FROM jobs ORDER BY job_id DESC LIMIT 1");
    OK(store_job_cancel(&store, job_id, &job, &err));
    ck_assert_str_eq(job.state, "done");
    ck_assert_int_eq(
        number("SELECT (extract(epoch FROM finished_at) * 1000000)::bigint FROM jobs ORDER BY job_id DESC LIMIT 1"),
        ended_us);
    ck_assert_int_eq(store_job_cancel(&store, 999999, &job, &err), KVF_ENOTFOUND);
    ck_assert_str_eq(err.text, "job 999999: there is no such job");
}
END_TEST

/* The answer needs the table of problems: while that is locked nothing is cancelled either. */
START_TEST(a_cancel_is_all_or_nothing)
{
    struct queue_lease *lease;
    struct store_job job;

    begin_run("cancel-half");
    make_job(3);
    lease = lend(4);
    OK(pg_run(&store.pg, "SET lock_timeout = '50ms'", NULL, 1000, NULL, &err));
    run_sql("BEGIN");
    run_sql("LOCK TABLE problems IN ACCESS EXCLUSIVE MODE");
    ck_assert_int_eq(store_job_cancel(&store, job_id, &job, &err), KVF_ECONFLICT);
    run_sql("ROLLBACK");
    ck_assert_int_eq(number("SELECT count(*) FROM jobs WHERE state = 'running'"), 1);
    ck_assert_uint_eq(put(lease, 0, 1, false), 0);
    OK(store_job_cancel(&store, job_id, &job, &err));
    ck_assert_str_eq(job.state, "cancelled");
    ck_assert_uint_eq(put(lease, 1, 1, false), 1);
}
END_TEST

START_TEST(values_that_do_not_fit)
{
    struct rec_result row;

    rec_result_init(&row);
    row.sample_id = row.attempt = 1;
    row.finish = str_of("stop");
    row.grade = str_of("wrong");
    OK(store_result_check(&row, &err));
    row.output_tokens = (int64_t)INT32_MAX + 1;
    ck_assert_int_eq(store_result_check(&row, &err), KVF_EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "output_tokens"));
    row.output_tokens = -1;
    ck_assert_int_eq(store_result_check(&row, &err), KVF_EINVAL);
    row.output_tokens = 1;
    row.finish = str_of("stopped");
    ck_assert_int_eq(store_result_check(&row, &err), KVF_EINVAL);
}
END_TEST

static int database_make(void)
{
    const char *source = getenv("KVF_SOURCE");
    char script[4096], self[4096] = "";

    if (source == NULL || readlink("/proc/self/exe", self, sizeof self - 1) < 0) {
        printf("skip: neither KVF_DB nor KVF_SOURCE is set\n");
        return 77;
    }
    snprintf(script, sizeof script, "%s/tests/with_database.sh", source);
    execl(script, script, self, (char *)NULL);
    perror(script);
    return 1;
}

int main(void)
{
    Suite *suite = suite_create("coordinator store");
    TCase *all = tcase_create("all");
    SRunner *runner;
    int failed;

    if (getenv("KVF_DB") == NULL || getenv("KVF_DB_OWNER") == NULL) return database_make();
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_set_timeout(all, 120);
    tcase_add_test(all, second_coordinator);
    tcase_add_test(all, lost_connection);
    tcase_add_test(all, schema);
    tcase_add_test(all, states_before_the_first_sample);
    tcase_add_test(all, samples);
    tcase_add_test(all, results_and_fences);
    tcase_add_test(all, a_turn_with_everything);
    tcase_add_test(all, load_counts_what_happened);
    tcase_add_test(all, a_load_is_all_or_nothing);
    tcase_add_test(all, given_up);
    tcase_add_test(all, cancel);
    tcase_add_test(all, cancel_says_what_it_found);
    tcase_add_test(all, a_cancel_is_all_or_nothing);
    tcase_add_test(all, values_that_do_not_fit);
    suite_add_tcase(suite, all);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
