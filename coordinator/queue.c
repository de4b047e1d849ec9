#include "coordinator/queue.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(QUEUE_LEASE_SAMPLES <= 32, "queue_lease.open has a bit for each sample");

/* ---- lists ---- */

static void deadline_unlink(struct queue *queue, struct queue_lease *lease)
{
    if (lease->prev != NULL)
        lease->prev->next = lease->next;
    else
        queue->first = lease->next;
    if (lease->next != NULL)
        lease->next->prev = lease->prev;
    else
        queue->last = lease->prev;
    lease->prev = lease->next = NULL;
}

/* Deadlines only grow, so that the end is the right place. */
static void deadline_append(struct queue *queue, struct queue_lease *lease)
{
    lease->prev = queue->last;
    lease->next = NULL;
    if (queue->last != NULL)
        queue->last->next = lease;
    else
        queue->first = lease;
    queue->last = lease;
}

static void worker_attach(struct queue_worker *worker, struct queue_lease *lease)
{
    lease->worker = worker;
    lease->worker_prev = NULL;
    lease->worker_next = worker->leases;
    if (worker->leases != NULL) worker->leases->worker_prev = lease;
    worker->leases = lease;
    worker->n_leases++;
}

static void worker_detach(struct queue_lease *lease)
{
    struct queue_worker *worker = lease->worker;

    if (worker == NULL) return;
    if (lease->worker_prev != NULL)
        lease->worker_prev->worker_next = lease->worker_next;
    else
        worker->leases = lease->worker_next;
    if (lease->worker_next != NULL) lease->worker_next->worker_prev = lease->worker_prev;
    lease->worker_prev = lease->worker_next = NULL;
    lease->worker = NULL;
    worker->n_leases--;
}

static void ready_set(struct queue *queue, struct queue_worker *worker)
{
    bool wanted = worker->alive && worker->credit > 0;

    if (wanted == worker->in_ready) return;
    worker->in_ready = wanted;
    if (wanted) {
        worker->ready_prev = NULL;
        worker->ready_next = queue->ready;
        if (queue->ready != NULL) queue->ready->ready_prev = worker;
        queue->ready = worker;
        return;
    }
    if (worker->ready_prev != NULL)
        worker->ready_prev->ready_next = worker->ready_next;
    else
        queue->ready = worker->ready_next;
    if (worker->ready_next != NULL) worker->ready_next->ready_prev = worker->ready_prev;
    worker->ready_prev = worker->ready_next = NULL;
}

/* ---- samples: the only places where a state changes ---- */

static void sample_to_line(struct queue_job *job, uint32_t index)
{
    struct queue_sample *sample = &job->samples[index];

    if (sample->attempts >= job->max_attempts) {
        sample->state = SAMPLE_EXHAUSTED;
        job->exhausted[job->n_exhausted++] = index;
        return;
    }
    sample->state = SAMPLE_PENDING;
    job->pending[(job->pending_at + job->n_pending) % job->n_samples] = index;
    job->n_pending++;
}

static uint32_t sample_from_line(struct queue_job *job)
{
    uint32_t index = job->pending[job->pending_at];

    job->pending_at = (job->pending_at + 1) % job->n_samples;
    job->n_pending--;
    job->samples[index].state = SAMPLE_LEASED;
    return index;
}

static void sample_settle(struct queue_job *job, uint32_t index, bool error, bool correct, int64_t tokens,
                          int64_t now_ms)
{
    struct queue_cell *cell = &job->cells[job->samples[index].cell];
    int64_t slot = now_ms / QUEUE_RATE_MS;
    size_t at = (size_t)(slot % QUEUE_RATE_SLOTS);

    job->samples[index].state = SAMPLE_SETTLED;
    job->done++;
    job->errors += error;
    job->tokens += tokens;
    cell->done++;
    cell->errors += error;
    cell->correct += correct;
    if (job->rate[at].slot != slot) {
        job->rate[at].slot = slot;
        job->rate[at].samples = job->rate[at].tokens = 0;
    }
    job->rate[at].samples++;
    job->rate[at].tokens += tokens;
}

/* ---- the queue ---- */

void queue_init(struct queue *queue, int64_t lease_ms, int64_t heartbeat_ms, int64_t now_ms)
{
    memset(queue, 0, sizeof *queue);
    queue->lease_ms = lease_ms;
    queue->heartbeat_ms = heartbeat_ms;
    queue->hold_until_ms = now_ms + lease_ms;
    queue->last_tick_ms = now_ms;
}

static void lease_drop(struct queue *queue, struct queue_lease *lease)
{
    if (lease->fence != 0) {
        deadline_unlink(queue, lease);
        map_remove_int(&queue->lease_by_fence, lease->fence);
    }
    lease->job->n_leases--;
    worker_detach(lease);
    free(lease);
}

void queue_reset(struct queue *queue, int64_t now_ms)
{
    while (queue->first != NULL) lease_drop(queue, queue->first);
    while (queue->jobs != NULL) {
        struct queue_job *job = queue->jobs;
        queue->jobs = job->next;
        map_remove_int(&queue->job_by_id, job->job_id);
        queue_job_free(job);
    }
    for (struct queue_worker *worker = queue->workers; worker != NULL; worker = worker->next) {
        worker->credit = 0;
        ready_set(queue, worker);
    }
    queue->last_tick_ms = now_ms;
    queue_hold(queue, now_ms + queue->lease_ms);
}

void queue_free(struct queue *queue)
{
    queue_reset(queue, 0);
    while (queue->workers != NULL) queue_worker_remove(queue, queue->workers);
    map_free(&queue->job_by_id);
    map_free(&queue->lease_by_fence);
    map_free(&queue->worker_by_run);
}

/* ---- jobs ---- */

static void job_shrink(struct queue_job *job)
{
    free(job->samples);
    free(job->pending);
    free(job->exhausted);
    free(job->problems);
    arena_free(&job->problem_texts);
    free(job->profile);
    job->profile = NULL;
    job->samples = NULL;
    job->pending = job->exhausted = NULL;
    job->problems = NULL;
    job->n_samples = job->n_pending = job->n_exhausted = job->n_problems = 0;
}

void queue_job_free(struct queue_job *job)
{
    if (job == NULL) return;
    job_shrink(job);
    free(job->cells);
    arena_free(&job->texts);
    free(job);
}

int queue_job_add(struct queue *queue, struct queue_job *job, struct kvf_err *err)
{
    struct queue_job **place = &queue->jobs;

    job->pending = calloc(job->n_samples + 1, sizeof *job->pending);
    job->exhausted = calloc(job->n_samples + 1, sizeof *job->exhausted);
    if (job->pending == NULL || job->exhausted == NULL || map_put_int(&queue->job_by_id, job->job_id, job) != KVF_OK) {
        int code = kvf_fail(err, KVF_ENOMEM, "job %" PRId64 ": out of memory for %" PRIu32 " samples", job->job_id,
                            job->n_samples);
        queue_job_free(job);
        return code;
    }
    while (*place != NULL && (*place)->job_id < job->job_id) place = &(*place)->next;
    job->next = *place;
    *place = job;
    return KVF_OK;
}

void queue_job_open(struct queue_job *job)
{
    for (uint32_t i = 0; i < job->n_samples; i++)
        if (job->samples[i].state == SAMPLE_PENDING) sample_to_line(job, i);
}

struct queue_job *queue_job_find(const struct queue *queue, int64_t job_id)
{
    return map_get_int(&queue->job_by_id, job_id);
}

static void job_leases_drop(struct queue *queue, struct queue_job *job)
{
    struct queue_lease *lease = queue->first, *next;

    for (; lease != NULL && job->n_leases > 0; lease = next) {
        next = lease->next;
        if (lease->job == job) lease_drop(queue, lease);
    }
}

void queue_job_drop(struct queue *queue, struct queue_job *job)
{
    struct queue_job **place = &queue->jobs;

    job_leases_drop(queue, job);
    while (*place != job) place = &(*place)->next;
    *place = job->next;
    map_remove_int(&queue->job_by_id, job->job_id);
    queue_job_free(job);
}

void queue_job_end(struct queue *queue, struct queue_job *job, enum queue_job_state state, int64_t now_ms)
{
    job_leases_drop(queue, job);
    job->state = state;
    job->ended_ms = now_ms;
    job_shrink(job);
}

void queue_job_cancel(struct queue *queue, struct queue_job *job, int64_t now_ms)
{
    queue_job_end(queue, job, JOB_CANCELLED, now_ms);
}

bool queue_job_complete(const struct queue_job *job)
{
    return job->state == JOB_RUNNING && job->done == job->total;
}

static bool worker_holds(const struct queue_worker *worker, const struct queue_job *job)
{
    for (uint32_t i = 0; i < worker->n_models; i++)
        if (strcmp(worker->models[i], job->model_hash) == 0) return true;
    return false;
}

uint32_t queue_job_workers(const struct queue *queue, const struct queue_job *job)
{
    uint32_t count = 0;

    for (const struct queue_worker *worker = queue->workers; worker != NULL; worker = worker->next)
        count += worker->alive && worker_holds(worker, job);
    return count;
}

const struct queue_job *queue_job_before(const struct queue *queue, const struct queue_job *job)
{
    if (job->state != JOB_RUNNING || job->n_leases > 0 || job->n_pending == 0) return NULL;
    for (const struct queue_job *other = queue->jobs; other != NULL && other != job; other = other->next) {
        if (other->state != JOB_RUNNING || (other->n_pending == 0 && other->n_leases == 0)) continue;
        for (const struct queue_worker *worker = queue->workers; worker != NULL; worker = worker->next)
            if (worker->alive && worker_holds(worker, job) && worker_holds(worker, other)) return other;
    }
    return NULL;
}

void queue_job_rates(const struct queue_job *job, int64_t now_ms, double *samples_per_s, double *tokens_per_s)
{
    int64_t now_slot = now_ms / QUEUE_RATE_MS, samples = 0, tokens = 0;
    double window_s = QUEUE_RATE_SLOTS * QUEUE_RATE_MS / 1000.0, age_s = (double)(now_ms - job->started_ms) / 1000;

    for (int i = 0; i < QUEUE_RATE_SLOTS; i++) {
        if (job->rate[i].slot <= now_slot - QUEUE_RATE_SLOTS) continue;
        samples += job->rate[i].samples;
        tokens += job->rate[i].tokens;
    }
    if (age_s > 0 && age_s < window_s) window_s = age_s;
    *samples_per_s = (double)samples / window_s;
    *tokens_per_s = (double)tokens / window_s;
}

/* ---- workers ---- */

struct queue_worker *queue_worker_find(const struct queue *queue, int64_t run_id)
{
    return map_get_int(&queue->worker_by_run, run_id);
}

int queue_worker_add(struct queue *queue, int64_t run_id, const struct rec_model *models, uint32_t n_models,
                     struct queue_worker **out, struct kvf_err *err)
{
    struct queue_worker *worker = calloc(1, sizeof *worker);

    *out = NULL;
    if (worker == NULL) return kvf_fail(err, KVF_ENOMEM, "worker of run %" PRId64 ": out of memory", run_id);
    worker->models = calloc(n_models + 1, sizeof *worker->models);
    if (worker->models == NULL || map_put_int(&queue->worker_by_run, run_id, worker) != KVF_OK) {
        free(worker->models);
        free(worker);
        return kvf_fail(err, KVF_ENOMEM, "worker of run %" PRId64 ": out of memory", run_id);
    }
    for (uint32_t i = 0; i < n_models; i++)
        snprintf(worker->models[i], sizeof worker->models[i], "%.*s", (int)models[i].hash.len, models[i].hash.text);
    worker->n_models = n_models;
    worker->run_id = run_id;
    worker->alive = true;
    worker->next = queue->workers;
    if (queue->workers != NULL) queue->workers->prev = worker;
    queue->workers = worker;
    queue->n_workers++;
    for (struct queue_lease *lease = queue->first; lease != NULL; lease = lease->next)
        if (lease->run_id == run_id && lease->worker == NULL) worker_attach(worker, lease);
    *out = worker;
    return KVF_OK;
}

void queue_worker_remove(struct queue *queue, struct queue_worker *worker)
{
    worker->credit = 0;
    ready_set(queue, worker);
    while (worker->leases != NULL) worker_detach(worker->leases);
    if (worker->prev != NULL)
        worker->prev->next = worker->next;
    else
        queue->workers = worker->next;
    if (worker->next != NULL) worker->next->prev = worker->prev;
    map_remove_int(&queue->worker_by_run, worker->run_id);
    queue->n_workers--;
    free(worker->models);
    free(worker);
}

void queue_worker_ready(struct queue *queue, struct queue_worker *worker, uint32_t credit,
                        const struct rec_fence *named, uint32_t n_named, int64_t now_ms)
{
    uint32_t on_the_way = 0;

    worker->alive = true;
    for (uint32_t i = 0; i < n_named; i++) {
        struct queue_lease *lease = queue_lease_find(queue, (int64_t)named[i].fence);
        if (lease != NULL && lease->worker == worker) queue_lease_renew(queue, lease, now_ms);
    }
    for (const struct queue_lease *lease = worker->leases; lease != NULL; lease = lease->worker_next) {
        bool is_named = false;
        if (lease->fence == 0 || lease->granted_ms + 2 * queue->heartbeat_ms <= now_ms) continue;
        for (uint32_t i = 0; i < n_named && !is_named; i++) is_named = (int64_t)named[i].fence == lease->fence;
        if (!is_named) on_the_way += lease->n_open;
    }
    worker->credit = credit > on_the_way ? credit - on_the_way : 0;
    ready_set(queue, worker);
}

void queue_worker_silent(struct queue *queue, struct queue_worker *worker)
{
    worker->alive = false;
    worker->credit = 0;
    ready_set(queue, worker);
}

/* ---- leases ---- */

struct queue_lease *queue_lease_find(const struct queue *queue, int64_t fence)
{
    return map_get_int(&queue->lease_by_fence, fence);
}

static struct queue_lease *lease_make(struct queue_job *job, struct queue_worker *worker, uint32_t most)
{
    struct queue_lease *lease = calloc(1, sizeof *lease);
    size_t bytes = 0;

    if (lease == NULL) return NULL;
    lease->job = job;
    lease->run_id = worker->run_id;
    while (lease->n_samples < most) {
        const struct queue_sample *sample = &job->samples[job->pending[job->pending_at]];
        const struct queue_problem *next = &job->problems[sample->problem];
        /* a sample on its last attempt travels alone: whatever it does to its worker, no other sample pays for it */
        const bool alone = sample->attempts > 0 && sample->attempts + 1 >= job->max_attempts;
        if (alone && lease->n_samples > 0) break;
        bytes += next->problem.len + next->answer.len;
        if (lease->n_samples > 0 && bytes > QUEUE_LEASE_BYTES) break;
        lease->samples[lease->n_samples] = sample_from_line(job);
        job->samples[lease->samples[lease->n_samples]].attempts++;
        lease->open |= 1u << lease->n_samples++;
        if (alone) break;
    }
    lease->n_open = lease->n_samples;
    worker_attach(worker, lease);
    job->n_leases++;
    return lease;
}

uint32_t queue_grant(struct queue *queue, struct queue_lease **out, uint32_t max)
{
    uint32_t n = 0;

    for (struct queue_job *job = queue->jobs; job != NULL && n < max && queue->ready != NULL; job = job->next) {
        uint32_t workers;
        bool granted = true;
        if (job->state != JOB_RUNNING || job->n_pending == 0) continue;
        workers = queue_job_workers(queue, job);
        while (granted) { /* one lease a worker and round */
            struct queue_worker *worker = queue->ready, *next;
            granted = false;
            for (; worker != NULL && job->n_pending > 0 && n < max; worker = next) {
                uint32_t most = QUEUE_LEASE_SAMPLES;
                uint32_t share = (job->n_pending + 2 * workers - 1) / (2 * workers == 0 ? 1 : 2 * workers);
                struct queue_lease *lease;
                next = worker->ready_next;
                if (!worker_holds(worker, job)) continue;
                if (most > share) most = share;
                if (most > worker->credit) most = worker->credit;
                lease = lease_make(job, worker, most);
                if (lease == NULL) return n; /* no memory now: what is granted goes out, the rest waits */
                worker->credit -= lease->n_samples;
                ready_set(queue, worker);
                out[n++] = lease;
                granted = true;
            }
        }
    }
    return n;
}

int queue_lease_confirm(struct queue *queue, struct queue_lease *lease, int64_t fence, int64_t now_ms,
                        struct kvf_err *err)
{
    if (map_put_int(&queue->lease_by_fence, fence, lease) != KVF_OK)
        return kvf_fail(err, KVF_ENOMEM, "lease %" PRId64 ": out of memory", fence);
    lease->fence = fence;
    lease->granted_ms = now_ms;
    lease->deadline_ms = now_ms + queue->lease_ms;
    deadline_append(queue, lease);
    return KVF_OK;
}

void queue_lease_undo(struct queue *queue, struct queue_lease *lease)
{
    struct queue_worker *worker = lease->worker;

    if (worker != NULL) {
        worker->credit += lease->n_samples;
        ready_set(queue, worker);
    }
    queue_lease_end(queue, lease, true);
}

static int sample_by_id(const void *key, const void *element)
{
    int64_t wanted = *(const int64_t *)key, got = ((const struct queue_sample *)element)->sample_id;

    return wanted < got ? -1 : wanted > got;
}

int queue_lease_adopt(struct queue *queue, struct queue_job *job, int64_t run_id, int64_t fence,
                      const int64_t *sample_ids, uint32_t n, int64_t now_ms, struct kvf_err *err)
{
    struct queue_lease *lease = calloc(1, sizeof *lease);
    struct queue_worker *worker = queue_worker_find(queue, run_id);
    int code;

    if (lease == NULL) return kvf_fail(err, KVF_ENOMEM, "lease %" PRId64 ": out of memory", fence);
    lease->job = job;
    lease->run_id = run_id;
    for (uint32_t i = 0; i < n && lease->n_samples < QUEUE_LEASE_SAMPLES; i++) {
        struct queue_sample *sample =
            bsearch(&sample_ids[i], job->samples, job->n_samples, sizeof *job->samples, sample_by_id);
        if (sample == NULL || sample->state != SAMPLE_PENDING) {
            lease->partial = true;
            continue;
        }
        sample->state = SAMPLE_LEASED;
        sample->attempts++;
        lease->samples[lease->n_samples] = (uint32_t)(sample - job->samples);
        lease->open |= 1u << lease->n_samples++;
    }
    lease->n_open = lease->n_samples;
    job->n_leases++;
    if (worker != NULL) worker_attach(worker, lease);
    code = queue_lease_confirm(queue, lease, fence, now_ms, err);
    if (code != KVF_OK) queue_lease_end(queue, lease, true);
    return code;
}

int queue_lease_place(const struct queue_lease *lease, int64_t sample_id)
{
    for (uint32_t i = 0; i < lease->n_samples; i++)
        if (lease->job->samples[lease->samples[i]].sample_id == sample_id) return lease->open & (1u << i) ? (int)i : -2;
    return lease->partial ? -2 : -1;
}

bool queue_sample_is_settled(const struct queue_job *job, int64_t sample_id)
{
    const struct queue_sample *sample =
        bsearch(&sample_id, job->samples, job->n_samples, sizeof *job->samples, sample_by_id);
    return sample != NULL && sample->state == SAMPLE_SETTLED;
}

void queue_lease_renew(struct queue *queue, struct queue_lease *lease, int64_t now_ms)
{
    lease->deadline_ms = now_ms + queue->lease_ms;
    deadline_unlink(queue, lease);
    deadline_append(queue, lease);
}

static uint32_t lease_close(struct queue_lease *lease, int place)
{
    lease->open &= ~(1u << place);
    lease->n_open--;
    return lease->samples[place];
}

void queue_lease_settle(struct queue *queue, struct queue_lease *lease, int place, bool error, bool correct,
                        int64_t tokens, int64_t now_ms)
{
    (void)queue;
    sample_settle(lease->job, lease_close(lease, place), error, correct, tokens, now_ms);
}

void queue_lease_fail(struct queue *queue, struct queue_lease *lease, int place)
{
    (void)queue;
    sample_to_line(lease->job, lease_close(lease, place));
}

void queue_lease_end(struct queue *queue, struct queue_lease *lease, bool returned)
{
    for (int i = 0; i < (int)lease->n_samples; i++) {
        if (!(lease->open & (1u << i))) continue;
        if (returned) lease->job->samples[lease->samples[i]].attempts--;
        queue_lease_fail(queue, lease, i);
    }
    lease_drop(queue, lease);
}

struct queue_lease *queue_lease_expired(const struct queue *queue, int64_t now_ms)
{
    if (queue->first == NULL || now_ms < queue->hold_until_ms || now_ms < queue->first->deadline_ms) return NULL;
    return queue->first;
}

void queue_exhausted_settle(struct queue *queue, struct queue_job *job, int64_t now_ms)
{
    (void)queue;
    sample_settle(job, job->exhausted[--job->n_exhausted], true, false, 0, now_ms);
}

/* ---- time ---- */

void queue_tick(struct queue *queue, int64_t now_ms)
{
    if (now_ms - queue->last_tick_ms > queue->heartbeat_ms) queue_hold(queue, now_ms + 2 * queue->heartbeat_ms);
    queue->last_tick_ms = now_ms;
}

void queue_hold(struct queue *queue, int64_t until_ms)
{
    if (until_ms > queue->hold_until_ms) queue->hold_until_ms = until_ms;
}

int64_t queue_next_ms(const struct queue *queue)
{
    if (queue->first == NULL) return INT64_MAX;
    return queue->first->deadline_ms > queue->hold_until_ms ? queue->first->deadline_ms : queue->hold_until_ms;
}

/* ---- proof ---- */

static int job_check(const struct queue *queue, const struct queue_job *job, uint8_t *seen, struct kvf_err *err)
{
    int64_t settled = 0, leases = 0, total = 0, done = 0;

    for (uint32_t i = 0; i < job->n_pending; i++) seen[job->pending[(job->pending_at + i) % job->n_samples]] += 1;
    for (uint32_t i = 0; i < job->n_exhausted; i++) seen[job->exhausted[i]] += 1;
    for (const struct queue_lease *lease = queue->first; lease != NULL; lease = lease->next) {
        if (lease->job != job) continue;
        leases++;
        if (lease->prev != NULL && lease->prev->deadline_ms > lease->deadline_ms)
            return kvf_fail(err, KVF_ECORRUPT, "lease %" PRId64 " is out of order", lease->fence);
        for (uint32_t i = 0; i < lease->n_samples; i++) seen[lease->samples[i]] += (lease->open >> i) & 1;
    }
    for (uint32_t i = 0; i < job->n_samples; i++) {
        if (job->samples[i].state == SAMPLE_SETTLED) {
            settled++;
            seen[i]++;
        }
        if (seen[i] != 1)
            return kvf_fail(err, KVF_ECORRUPT, "job %" PRId64 ": sample %" PRId64 " is on %d lists", job->job_id,
                            job->samples[i].sample_id, seen[i]);
    }
    for (uint32_t i = 0; i < job->n_cells; i++) {
        total += job->cells[i].total;
        done += job->cells[i].done;
    }
    if (job->n_leases != leases || total != job->total || done != job->done ||
        (job->state == JOB_RUNNING && job->done != job->total - job->n_samples + settled))
        return kvf_fail(err, KVF_ECORRUPT,
                        "job %" PRId64 ": %" PRId64 " of %" PRId64 " done, cells say %" PRId64 " of %" PRId64
                        ", %" PRId64 " settled of %" PRIu32 "; %" PRId64 " leases, counted %" PRId64,
                        job->job_id, job->done, job->total, done, total, settled, job->n_samples, job->n_leases,
                        leases);
    return KVF_OK;
}

int queue_check(const struct queue *queue, struct kvf_err *err)
{
    for (const struct queue_job *job = queue->jobs; job != NULL; job = job->next) {
        uint8_t *seen = calloc(job->n_samples + 1, 1);
        int code =
            seen == NULL ? kvf_fail(err, KVF_ENOMEM, "queue_check: out of memory") : job_check(queue, job, seen, err);
        free(seen);
        if (code != KVF_OK) return code;
    }
    for (const struct queue_worker *worker = queue->workers; worker != NULL; worker = worker->next)
        for (const struct queue_lease *lease = worker->leases; lease != NULL; lease = lease->worker_next)
            if (lease->worker != worker || lease->run_id != worker->run_id)
                return kvf_fail(err, KVF_ECORRUPT, "lease %" PRId64 " hangs on the wrong worker", lease->fence);
    return KVF_OK;
}
