/* The queue alone: rules of lending one by one, then a seeded simulation of a fleet of 200 workers with every kind of
 * trouble, checked against a model of the database. */
#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/queue.h"

#define LEASE_MS     60000
#define HEARTBEAT_MS 5000

static const char hash_a[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
static const char hash_b[] = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

static struct queue queue;
static struct kvf_err err;

static void setup(void)
{
    queue_init(&queue, LEASE_MS, HEARTBEAT_MS, 0);
}

static void teardown(void)
{
    queue_free(&queue);
}

static struct queue_job *job_make(int64_t job_id, uint32_t n, const char *model_hash, int max_attempts)
{
    struct queue_job *job = calloc(1, sizeof *job);

    job->job_id = job_id;
    job->max_attempts = max_attempts;
    snprintf(job->model_hash, sizeof job->model_hash, "%s", model_hash);
    job->n_cells = 1;
    job->cells = calloc(1, sizeof *job->cells);
    job->cells[0].total = job->total = n;
    job->n_problems = n;
    job->problems = calloc(n + 1, sizeof *job->problems);
    job->n_samples = n;
    job->samples = calloc(n + 1, sizeof *job->samples);
    for (uint32_t i = 0; i < n; i++) {
        job->problems[i].problem = arena_copy(&job->problem_texts, "p", 1);
        job->problems[i].answer = arena_copy(&job->problem_texts, "a", 1);
        job->samples[i] = (struct queue_sample){.sample_id = job_id * 1000000 + i + 1, .problem = i};
    }
    return job;
}

static struct queue_job *job_add(int64_t job_id, uint32_t n, const char *model_hash, int max_attempts)
{
    struct queue_job *job = job_make(job_id, n, model_hash, max_attempts);

    ck_assert_int_eq(queue_job_add(&queue, job, &err), KVF_OK);
    queue_job_open(job);
    return job;
}

static struct queue_worker *worker_add(int64_t run_id, const char *model_hash)
{
    struct rec_model model = {str_of("m"), str_of(model_hash)};
    struct queue_worker *worker;

    ck_assert_int_eq(queue_worker_add(&queue, run_id, &model, 1, &worker, &err), KVF_OK);
    return worker;
}

static uint32_t grant(struct queue_lease **leases, uint32_t max, int64_t *fence, int64_t now)
{
    uint32_t n = queue_grant(&queue, leases, max);

    for (uint32_t i = 0; i < n; i++)
        ck_assert_int_eq(queue_lease_confirm(&queue, leases[i], (*fence)++, now, &err), KVF_OK);
    return n;
}

static void check(void)
{
    ck_assert_msg(queue_check(&queue, &err) == KVF_OK, "%s", err.text);
}

START_TEST(lease_sizes)
{
    struct queue_lease *leases[64];
    int64_t fence = 1;
    struct queue_job *job = job_add(1, 100, hash_a, 3);
    struct queue_worker *one = worker_add(1, hash_a), *two = worker_add(2, hash_a);

    queue_worker_ready(&queue, one, 32, NULL, 0, 0);
    ck_assert_uint_eq(grant(leases, 64, &fence, 0), 2); /* ceil(100 / 4), then the credit's rest */
    ck_assert_uint_eq(leases[0]->n_samples, 25);
    ck_assert_uint_eq(leases[1]->n_samples, 7);
    ck_assert_uint_eq(one->credit, 0);
    ck_assert_uint_eq(job->n_pending, 68);
    queue_worker_ready(&queue, two, 1000, NULL, 0, 0);
    ck_assert_uint_eq(grant(leases, 1, &fence, 0), 1);
    ck_assert_uint_eq(leases[0]->n_samples, 17);
    ck_assert_ptr_eq(leases[0]->worker, two);
    check();
    grant(leases, 64, &fence, 0);
    ck_assert_uint_eq(job->n_pending, 0);
    check();
}
END_TEST

START_TEST(lease_is_at_most_32)
{
    struct queue_lease *leases[8];
    int64_t fence = 1;
    struct queue_worker *worker;

    job_add(1, 1000, hash_a, 3);
    worker = worker_add(1, hash_a);
    queue_worker_ready(&queue, worker, 40, NULL, 0, 0);
    ck_assert_uint_eq(grant(leases, 8, &fence, 0), 2);
    ck_assert_uint_eq(leases[0]->n_samples, 32);
    ck_assert_uint_eq(leases[1]->n_samples, 8);
}
END_TEST

START_TEST(large_texts_make_small_leases)
{
    struct queue_lease *leases[8];
    int64_t fence = 1;
    struct queue_job *job = job_make(1, 100, hash_a, 3);
    struct queue_worker *worker = worker_add(1, hash_a);

    for (uint32_t i = 0; i < 100; i++) job->problems[i].problem.len = 1u << 20;
    ck_assert_int_eq(queue_job_add(&queue, job, &err), KVF_OK);
    queue_job_open(job);
    queue_worker_ready(&queue, worker, 32, NULL, 0, 0);
    ck_assert_uint_eq(grant(leases, 1, &fence, 0), 1);
    ck_assert_uint_eq(leases[0]->n_samples, 1); /* two texts of 1 MiB and an answer are more than 2 MiB */
}
END_TEST

/* A sample that kills its worker must not take others with it: on its last attempt it travels alone. */
START_TEST(last_attempt_travels_alone)
{
    struct queue_lease *leases[8];
    int64_t fence = 1, now = 10000;
    struct queue_job *job = job_add(1, 4, hash_a, 2);
    struct queue_worker *worker = worker_add(1, hash_a);

    queue_worker_ready(&queue, worker, 4, NULL, 0, now);
    uint32_t n = grant(leases, 8, &fence, now);
    ck_assert_uint_ge(n, 1);
    for (uint32_t i = 0; i < n; i++) queue_lease_end(&queue, leases[i], false);
    ck_assert_uint_eq(job->n_pending, 4);
    queue_worker_ready(&queue, worker, 4, NULL, 0, now);
    n = grant(leases, 8, &fence, now);
    ck_assert_uint_eq(n, 4);
    for (uint32_t i = 0; i < n; i++) ck_assert_uint_eq(leases[i]->n_samples, 1);
    queue_lease_end(&queue, leases[0], false);
    ck_assert_uint_eq(job->n_exhausted, 1);
    check();
}
END_TEST

START_TEST(model_and_order)
{
    struct queue_lease *leases[8];
    int64_t fence = 1;
    struct queue_worker *worker;

    job_add(7, 4, hash_a, 3);
    job_add(3, 4, hash_b, 3);
    job_add(5, 4, hash_a, 3);
    worker = worker_add(1, hash_a);
    queue_worker_ready(&queue, worker, 6, NULL, 0, 0);
    grant(leases, 8, &fence, 0);
    ck_assert_int_eq(leases[0]->job->job_id, 5); /* 3 is older, but nobody holds its model */
    ck_assert_uint_eq(queue_job_find(&queue, 5)->n_pending, 0);
    ck_assert_uint_eq(queue_job_find(&queue, 7)->n_pending, 2);
    ck_assert_uint_eq(queue_job_find(&queue, 3)->n_pending, 4);
    ck_assert_uint_eq(queue_job_workers(&queue, queue_job_find(&queue, 3)), 0);
    ck_assert_uint_eq(queue_job_workers(&queue, queue_job_find(&queue, 5)), 1);
    check();
}
END_TEST

static int64_t before(int64_t job_id)
{
    const struct queue_job *job = queue_job_before(&queue, queue_job_find(&queue, job_id));

    return job == NULL ? 0 : job->job_id;
}

/* A job waits for another while the workers that it could have are the other's. */
START_TEST(a_job_in_line_names_the_one_before_it)
{
    struct queue_lease *leases[8];
    int64_t fence = 1;
    struct rec_fence held[1] = {{1}};
    struct queue_worker *worker;

    job_add(3, 4, hash_b, 3);
    job_add(5, 4, hash_a, 3);
    job_add(7, 4, hash_a, 3);
    ck_assert_int_eq(before(7), 0); /* for a worker, not for a job */
    worker = worker_add(1, hash_a);
    queue_worker_ready(&queue, worker, 2, NULL, 0, 0);
    ck_assert_uint_eq(grant(leases, 8, &fence, 0), 1);
    ck_assert_int_eq(before(7), 5);
    ck_assert_int_eq(before(5), 0); /* it is at work, and nobody holds the model of 3 */
    ck_assert_int_eq(before(3), 0);
    queue_worker_silent(&queue, worker);
    ck_assert_int_eq(before(7), 0);
    queue_worker_ready(&queue, worker, 2, held, 1, 0);
    ck_assert_uint_eq(grant(leases + 1, 7, &fence, 0), 2);
    ck_assert_uint_eq(queue_job_find(&queue, 5)->n_pending, 0);
    ck_assert_int_eq(before(7), 5); /* all of 5 is lent out, and with it the worker */
    queue_worker_ready(&queue, worker_add(2, hash_a), 1, NULL, 0, 1);
    ck_assert_uint_eq(grant(leases + 3, 5, &fence, 1), 1);
    ck_assert_int_eq(leases[3]->job->job_id, 7);
    ck_assert_int_eq(before(7), 0);
    queue_lease_end(&queue, leases[3], true);
    ck_assert_int_eq(before(7), 5);
    queue_job_cancel(&queue, queue_job_find(&queue, 5), 2);
    ck_assert_int_eq(before(7), 0);
    ck_assert_int_eq(before(5), 0);
    check();
}
END_TEST

START_TEST(credit_counts_what_is_on_the_way)
{
    struct queue_lease *leases[8];
    int64_t fence = 1;
    struct rec_fence named = {1};
    struct queue_worker *worker;

    job_add(1, 1000, hash_a, 3);
    worker = worker_add(1, hash_a);
    queue_worker_ready(&queue, worker, 20, NULL, 0, 1000);
    grant(leases, 8, &fence, 1000);
    queue_worker_ready(&queue, worker, 20, NULL, 0, 1001); /* sent before LEASE came */
    ck_assert_uint_eq(worker->credit, 0);
    queue_worker_ready(&queue, worker, 12, &named, 1, 1002); /* it has the lease and room for 12 more */
    ck_assert_uint_eq(worker->credit, 12);
    queue_worker_ready(&queue, worker, 20, NULL, 0, 1000 + 2 * HEARTBEAT_MS); /* LEASE never came */
    ck_assert_uint_eq(worker->credit, 20);
}
END_TEST

START_TEST(expiry_and_renewal)
{
    struct queue_lease *leases[8], *lease;
    int64_t fence = 1;
    struct rec_fence named = {2};
    struct queue_job *job = job_add(1, 64, hash_a, 3);
    struct queue_worker *worker = worker_add(1, hash_a);

    queue_worker_ready(&queue, worker, 64, NULL, 0, 0);
    ck_assert_uint_ge(grant(leases, 2, &fence, 0), 2);
    queue_worker_ready(&queue, worker, 0, &named, 1, 10000);
    ck_assert_ptr_null(queue_lease_expired(&queue, LEASE_MS - 1));
    lease = queue_lease_expired(&queue, LEASE_MS);
    ck_assert_ptr_nonnull(lease);
    ck_assert_int_eq(lease->fence, 1);
    queue_lease_end(&queue, lease, false);
    ck_assert_ptr_null(queue_lease_expired(&queue, LEASE_MS)); /* 2 was renewed */
    ck_assert_ptr_null(queue_lease_find(&queue, 1));
    ck_assert_int_eq(queue_next_ms(&queue), LEASE_MS + 10000);
    ck_assert_int_eq(queue_lease_expired(&queue, LEASE_MS + 10000)->fence, 2);
    ck_assert_int_eq(job->samples[0].attempts, 1);
    ck_assert_int_eq(job->samples[0].state, SAMPLE_PENDING);
    check();
}
END_TEST

START_TEST(a_late_loop_expires_nothing_at_once)
{
    struct queue_lease *leases[8];
    int64_t fence = 1;
    struct queue_worker *worker;

    job_add(1, 8, hash_a, 3);
    worker = worker_add(1, hash_a);
    queue_worker_ready(&queue, worker, 8, NULL, 0, 0);
    grant(leases, 8, &fence, 0);
    queue_tick(&queue, 3 * LEASE_MS); /* stopped for three lease periods */
    ck_assert_ptr_null(queue_lease_expired(&queue, 3 * LEASE_MS));
    ck_assert_ptr_null(queue_lease_expired(&queue, 3 * LEASE_MS + 2 * HEARTBEAT_MS - 1));
    ck_assert_ptr_nonnull(queue_lease_expired(&queue, 3 * LEASE_MS + 2 * HEARTBEAT_MS));
}
END_TEST

START_TEST(attempts)
{
    struct queue_lease *leases[8];
    int64_t fence = 1;
    struct queue_job *job = job_add(1, 2, hash_a, 2);
    struct queue_worker *worker = worker_add(1, hash_a);

    queue_worker_ready(&queue, worker, 2, NULL, 0, 0);
    ck_assert_uint_eq(grant(leases, 8, &fence, 0), 2);
    queue_lease_end(&queue, leases[0], true); /* handed back: no attempt */
    queue_lease_end(&queue, leases[1], false);
    ck_assert_int_eq(job->samples[0].attempts + job->samples[1].attempts, 1);
    queue_worker_ready(&queue, worker, 2, NULL, 0, 0);
    ck_assert_uint_eq(grant(leases, 8, &fence, 0), 2);
    queue_lease_end(&queue, leases[0], false);
    queue_lease_end(&queue, leases[1], false);
    ck_assert_uint_eq(job->n_exhausted, 1);
    ck_assert_uint_eq(job->n_pending, 1);
    check();
    queue_exhausted_settle(&queue, job, 0);
    ck_assert_int_eq(job->errors, 1);
    ck_assert(!queue_job_complete(job));
    queue_worker_ready(&queue, worker, 1, NULL, 0, 0);
    ck_assert_uint_eq(grant(leases, 8, &fence, 0), 1);
    ck_assert_int_eq(queue_lease_place(leases[0], 99), -1);
    queue_lease_settle(&queue, leases[0], 0, false, true, 17, 0);
    ck_assert_int_eq(queue_lease_place(leases[0], job->samples[leases[0]->samples[0]].sample_id), -2);
    ck_assert(queue_job_complete(job));
    ck_assert_int_eq(job->tokens, 17);
    ck_assert_int_eq(job->cells[0].correct, 1);
    queue_lease_end(&queue, leases[0], false);
    check();
    queue_job_end(&queue, job, JOB_DONE_WITH_ERRORS, 5);
    check();
}
END_TEST

START_TEST(adoption_after_a_restart)
{
    struct queue_job *job = job_make(1, 10, hash_a, 3);
    int64_t ids[] = {1000003, 1000004, 555};
    struct rec_fence named = {42};
    struct queue_worker *worker, *other;

    ck_assert_int_eq(queue_job_add(&queue, job, &err), KVF_OK);
    ck_assert_int_eq(queue_lease_adopt(&queue, job, 9, 42, ids, 3, 1000, &err), KVF_OK);
    queue_job_open(job);
    check();
    ck_assert_uint_eq(job->n_pending, 8);
    ck_assert_int_eq(queue_lease_place(queue_lease_find(&queue, 42), 1000004), 1);
    ck_assert_int_eq(queue_lease_place(queue_lease_find(&queue, 42), 555),
                     -2); /* committed before the restart, sent again */
    ck_assert_int_eq(job->samples[2].attempts, 1);
    other = worker_add(8, hash_a);
    queue_worker_ready(&queue, other, 0, &named, 1, 50000); /* not its lease: not renewed */
    ck_assert_int_eq(queue.first->deadline_ms, 1000 + LEASE_MS);
    worker = worker_add(9, hash_a);
    ck_assert_uint_eq(worker->n_leases, 1);
    queue_worker_ready(&queue, worker, 0, &named, 1, 50000);
    ck_assert_int_eq(queue.first->deadline_ms, 50000 + LEASE_MS);
    queue_worker_remove(&queue, worker);
    ck_assert_ptr_nonnull(queue_lease_find(&queue, 42)); /* it lives on until its deadline */
    check();
}
END_TEST

START_TEST(cancel_drops_everything)
{
    struct queue_lease *leases[8];
    int64_t fence = 1;
    struct queue_job *job = job_add(1, 100, hash_a, 3), *other = job_add(2, 5, hash_a, 3);
    struct queue_worker *worker = worker_add(1, hash_a);

    queue_worker_ready(&queue, worker, 64, NULL, 0, 0);
    ck_assert_uint_gt(grant(leases, 8, &fence, 0), 0);
    queue_lease_settle(&queue, leases[0], 0, false, false, 1, 0);
    queue_job_cancel(&queue, job, 10);
    ck_assert_ptr_null(queue.first);
    ck_assert_int_eq(job->state, JOB_CANCELLED);
    ck_assert_int_eq(job->done, 1);
    check();
    queue_worker_ready(&queue, worker, 64, NULL, 0, 0);
    ck_assert_uint_gt(grant(leases, 8, &fence, 0), 0);
    ck_assert_ptr_eq(leases[0]->job, other);
}
END_TEST

/* A job of long prompts that ended must not cost their memory until the next restart. */
START_TEST(an_ended_job_keeps_no_prompts)
{
    struct queue_job *job = job_add(1, 100, hash_a, 3);

    job->profile = strdup("{}");
    job->cells[0].spec.policy = arena_copy(&job->texts, "rkv", 3);
    ck_assert_ptr_nonnull(job->problem_texts.first);
    queue_job_end(&queue, job, JOB_DONE, 10);
    ck_assert_ptr_null(job->problem_texts.first);
    ck_assert_ptr_null(job->profile);
    ck_assert_ptr_null(job->samples);
    ck_assert_str_eq(job->cells[0].spec.policy.text, "rkv");
}
END_TEST

START_TEST(a_dropped_job_leaves_nothing)
{
    struct queue_job *job = job_make(2, 10, hash_a, 3), *first = job_add(1, 5, hash_a, 3);
    struct queue_worker *worker = worker_add(9, hash_a);
    int64_t ids[] = {2000001, 2000002};

    ck_assert_int_eq(queue_job_add(&queue, job, &err), KVF_OK);
    ck_assert_int_eq(queue_lease_adopt(&queue, job, 9, 42, ids, 2, 1000, &err), KVF_OK);
    queue_job_drop(&queue, job);
    ck_assert_ptr_null(queue_job_find(&queue, 2));
    ck_assert_ptr_null(queue_lease_find(&queue, 42));
    ck_assert_ptr_null(queue.first);
    ck_assert_uint_eq(worker->n_leases, 0);
    ck_assert_ptr_eq(queue.jobs, first);
    ck_assert_ptr_null(first->next);
    check();
    job_add(2, 10, hash_a, 3); /* and it can be loaded again */
    check();
}
END_TEST

/* ---- the simulation ---- */

#define SIM_WORKERS 200
#define SIM_JOBS    3
#define SIM_SAMPLES 1500
#define SIM_LEASES  60000
#define SIM_STEPS   40000

static uint64_t random_state;
static uint32_t chance(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

/* The tables, as far as the queue depends on them. */
enum { SIM_ACTIVE = 1, SIM_DONE, SIM_EXPIRED, SIM_RELEASED };
static struct sim_lease {
    int64_t run_id, job_id, ids[QUEUE_LEASE_SAMPLES];
    uint32_t n;
    int state;
} sim_leases[SIM_LEASES];
static uint8_t sim_results[SIM_JOBS + 1][SIM_SAMPLES]; /* rows a sample: must never be 2 */
static uint32_t sim_ended[SIM_JOBS + 1];
static int64_t sim_fence, sim_now;

/* A worker: the fences it believes to hold, with the samples not answered yet. */
static struct sim_worker {
    struct queue_worker *queued; /* NULL: not connected */
    int64_t run_id, held[64];
    uint32_t n_held;
} sim_workers[SIM_WORKERS];

static void sim_connect(struct sim_worker *worker)
{
    if (worker->queued == NULL) worker->queued = worker_add(worker->run_id, hash_a);
}

static void sim_load(void)
{
    for (int64_t id = 1; id <= SIM_JOBS; id++) {
        struct queue_job *job;
        uint32_t kept = 0;
        if (sim_ended[id]) continue;
        job = job_make(id, SIM_SAMPLES, hash_a, 4);
        for (uint32_t i = 0; i < SIM_SAMPLES; i++) {
            if (sim_results[id][i]) continue;
            job->samples[kept] = job->samples[i];
            job->samples[kept++].attempts = 0;
        }
        job->cells[0].done = job->done = SIM_SAMPLES - kept;
        job->n_samples = kept;
        for (int64_t fence = 1; fence < sim_fence; fence++) {
            if (sim_leases[fence].job_id != id || sim_leases[fence].state == SIM_ACTIVE ||
                sim_leases[fence].state == SIM_RELEASED)
                continue;
            for (uint32_t k = 0; k < sim_leases[fence].n; k++)
                for (uint32_t i = 0; i < kept; i++)
                    job->samples[i].attempts += job->samples[i].sample_id == sim_leases[fence].ids[k];
        }
        ck_assert_int_eq(queue_job_add(&queue, job, &err), KVF_OK);
        for (int64_t fence = 1; fence < sim_fence; fence++)
            if (sim_leases[fence].job_id == id && sim_leases[fence].state == SIM_ACTIVE)
                ck_assert_int_eq(queue_lease_adopt(&queue, job, sim_leases[fence].run_id, fence, sim_leases[fence].ids,
                                                   sim_leases[fence].n, sim_now, &err),
                                 KVF_OK);
        queue_job_open(job);
    }
}

static void sim_grant(void)
{
    struct queue_lease *leases[32];
    uint32_t n = queue_grant(&queue, leases, 32);

    for (uint32_t i = 0; i < n; i++) {
        struct sim_worker *worker = &sim_workers[leases[i]->run_id - 1];
        struct sim_lease *row = &sim_leases[sim_fence];
        ck_assert_int_lt(sim_fence, SIM_LEASES - 1);
        if (chance(50) == 0) { /* the database refused */
            queue_lease_undo(&queue, leases[i]);
            continue;
        }
        *row = (struct sim_lease){.run_id = leases[i]->run_id,
                                  .job_id = leases[i]->job->job_id,
                                  .n = leases[i]->n_samples,
                                  .state = SIM_ACTIVE};
        for (uint32_t k = 0; k < row->n; k++) row->ids[k] = leases[i]->job->samples[leases[i]->samples[k]].sample_id;
        ck_assert_int_eq(queue_lease_confirm(&queue, leases[i], sim_fence, sim_now, &err), KVF_OK);
        if (chance(20) != 0 && worker->n_held < 64)
            worker->held[worker->n_held++] = sim_fence; /* else LEASE was lost */
        sim_fence++;
    }
}

/* One RESULT of some samples of a fence; may be late, or sent twice. */
static void sim_result(struct sim_worker *worker, int64_t fence)
{
    struct sim_lease *row = &sim_leases[fence];
    struct queue_lease *lease = queue_lease_find(&queue, fence);
    bool accepted = lease != NULL && worker->queued != NULL && lease->worker == worker->queued;

    ck_assert_msg(!accepted || row->state == SIM_ACTIVE, "fence %" PRId64 " is accepted and has ended", fence);
    if (!accepted) return;
    for (uint32_t k = 0; k < row->n; k++) {
        int place = queue_lease_place(lease, row->ids[k]);
        ck_assert_int_ne(place, -1);
        if (place < 0 || chance(4) == 0) continue;
        if (chance(100) == 0) {
            queue_lease_fail(&queue, lease, place);
            continue;
        }
        ck_assert_int_eq(sim_results[row->job_id][row->ids[k] - row->job_id * 1000000 - 1]++, 0);
        queue_lease_settle(&queue, lease, place, false, true, 1, sim_now);
    }
    if (lease->n_open > 0) {
        queue_lease_renew(&queue, lease, sim_now);
        return;
    }
    row->state = SIM_DONE;
    queue_lease_end(&queue, lease, false);
}

static void sim_restart(void)
{
    for (int i = 0; i < SIM_WORKERS; i++) sim_workers[i].queued = NULL;
    queue_free(&queue);
    queue_init(&queue, LEASE_MS, HEARTBEAT_MS, sim_now);
    sim_load();
}

static void sim_worker_step(struct sim_worker *worker)
{
    struct rec_fence named[64];
    uint32_t what = chance(100);

    sim_connect(worker);
    if (what < 40) {
        for (uint32_t i = 0; i < worker->n_held; i++) named[i].fence = (uint64_t)worker->held[i];
        queue_worker_ready(&queue, worker->queued, chance(40), named, worker->n_held, sim_now);
    } else if (what < 90 && worker->n_held > 0) {
        int64_t fence = worker->held[chance(worker->n_held)];
        sim_result(worker, fence);
        if (chance(10) == 0) sim_result(worker, fence);
    } else if (what < 94 && worker->n_held > 0) { /* RELEASE */
        int64_t fence = worker->held[--worker->n_held];
        struct queue_lease *lease = queue_lease_find(&queue, fence);
        if (lease != NULL && lease->worker == worker->queued) {
            sim_leases[fence].state = SIM_RELEASED;
            queue_lease_end(&queue, lease, true);
        }
    } else if (what < 96) { /* killed; the next process takes its place under another run */
        worker->n_held = 0;
        queue_worker_remove(&queue, worker->queued);
        worker->queued = NULL;
    } else if (what < 98) {
        queue_worker_silent(&queue, worker->queued);
    }
    while (worker->n_held > 8) memmove(worker->held, worker->held + 1, --worker->n_held * sizeof *worker->held);
}

static bool sim_over(void)
{
    for (int id = 1; id <= SIM_JOBS; id++)
        if (!sim_ended[id]) return false;
    return true;
}

static void simulate(uint64_t seed)
{
    struct queue_lease *lease;
    int step;

    random_state = seed;
    memset(sim_leases, 0, sizeof sim_leases);
    memset(sim_results, 0, sizeof sim_results);
    memset(sim_workers, 0, sizeof sim_workers);
    memset(sim_ended, 0, sizeof sim_ended);
    sim_fence = 1;
    sim_now = 0;
    queue_init(&queue, LEASE_MS, HEARTBEAT_MS, 0);
    for (int i = 0; i < SIM_WORKERS; i++) sim_workers[i].run_id = i + 1;
    sim_load();
    for (step = 0; step < SIM_STEPS && !sim_over(); step++) {
        sim_now += chance(200);
        if (chance(2000) == 0) sim_now += 2 * LEASE_MS; /* our own loop stood still */
        queue_tick(&queue, sim_now);
        sim_worker_step(&sim_workers[chance(SIM_WORKERS)]);
        if (chance(4000) == 0) sim_restart();
        while ((lease = queue_lease_expired(&queue, sim_now)) != NULL) {
            ck_assert_int_ge(sim_now, lease->deadline_ms);
            sim_leases[lease->fence].state = SIM_EXPIRED;
            queue_lease_end(&queue, lease, false);
        }
        for (struct queue_job *job = queue.jobs; job != NULL; job = job->next) {
            while (job->n_exhausted > 0) {
                int64_t id = job->samples[job->exhausted[job->n_exhausted - 1]].sample_id;
                ck_assert_int_eq(sim_results[job->job_id][id - job->job_id * 1000000 - 1]++, 0);
                queue_exhausted_settle(&queue, job, sim_now);
            }
            if (!queue_job_complete(job)) continue;
            sim_ended[job->job_id] = 1;
            queue_job_end(&queue, job, JOB_DONE, sim_now);
        }
        if (chance(3) == 0) sim_grant();
        if (step % 50 == 0) check();
    }
    ck_assert_msg(sim_over(), "seed %" PRIu64 ": a job did not end in %d steps", seed, SIM_STEPS);
    for (int id = 1; id <= SIM_JOBS; id++)
        for (int i = 0; i < SIM_SAMPLES; i++) ck_assert_int_eq(sim_results[id][i], 1);
    check();
    queue_free(&queue);
}

START_TEST(simulation)
{
    simulate(1000 + (uint64_t)_i);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator queue");
    TCase *rules = tcase_create("rules"), *fleet = tcase_create("simulation");
    SRunner *runner;
    int failed;

    tcase_add_checked_fixture(rules, setup, teardown);
    tcase_add_test(rules, lease_sizes);
    tcase_add_test(rules, lease_is_at_most_32);
    tcase_add_test(rules, large_texts_make_small_leases);
    tcase_add_test(rules, last_attempt_travels_alone);
    tcase_add_test(rules, model_and_order);
    tcase_add_test(rules, a_job_in_line_names_the_one_before_it);
    tcase_add_test(rules, credit_counts_what_is_on_the_way);
    tcase_add_test(rules, expiry_and_renewal);
    tcase_add_test(rules, a_late_loop_expires_nothing_at_once);
    tcase_add_test(rules, attempts);
    tcase_add_test(rules, adoption_after_a_restart);
    tcase_add_test(rules, cancel_drops_everything);
    tcase_add_test(rules, an_ended_job_keeps_no_prompts);
    tcase_add_test(rules, a_dropped_job_leaves_nothing);
    tcase_set_timeout(fleet, 120);
    tcase_add_loop_test(fleet, simulation, 0, 20);
    suite_add_tcase(suite, rules);
    suite_add_tcase(suite, fleet);
    runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
