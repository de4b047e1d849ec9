/* queue.h: what is left to do, who does it, and until when: the coordinator's core as a pure state machine.
 *
 * No I/O, no clock, no thread: every function takes the time (monotonic milliseconds) and changes memory only.
 * PostgreSQL is the truth and this is a view of it: the server writes first and tells the queue afterwards, and builds
 * it anew from the tables whenever the database connection was lost. One owner; structs are open to be read, only
 * queue.c writes them.
 *
 * A sample is on exactly one list:
 *   PENDING    in its job's `pending` ring
 *   LEASED     in one lease
 *   EXHAUSTED  in its job's `exhausted` list: attempts used up, an error row is due
 *   SETTLED    its result row is in the database
 */
#ifndef KVF_QUEUE_H
#define KVF_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "alloc/err.h"
#include "coordinator/arena.h"
#include "coordinator/map.h"
#include "proto/message.h"

#define QUEUE_LEASE_SAMPLES 32
#define QUEUE_LEASE_BYTES   (2u << 20) /* of problem texts: half of what a message may hold */
#define QUEUE_RATE_SLOTS    10         /* of QUEUE_RATE_MS: rates are over the last 5 s */
#define QUEUE_RATE_MS       500

enum queue_sample_state { SAMPLE_PENDING, SAMPLE_LEASED, SAMPLE_EXHAUSTED, SAMPLE_SETTLED };
struct queue_sample {
    int64_t sample_id;
    uint64_t seed;
    uint32_t cell, problem; /* indexes into the job's lists */
    uint16_t attempts;      /* leases so far, those that were handed back not counted */
    uint8_t state;
};

struct queue_cell {
    struct rec_cell spec; /* texts belong to the job */
    char label[192];      /* "rkv b=96" */
    int64_t total, done, errors, correct;
};
struct queue_problem {
    struct str problem, answer; /* belong to the job's problem_texts */
};

enum queue_job_state { JOB_RUNNING, JOB_DONE, JOB_DONE_WITH_ERRORS, JOB_CANCELLED };
struct queue_job {
    struct queue_job *next; /* in order of submission */
    int64_t job_id;
    enum queue_job_state state;
    char model_hash[65];
    char *profile; /* NULL: none, or the job has ended */
    int max_attempts;
    struct queue_cell *cells;
    uint32_t n_cells;
    struct queue_problem *problems; /* [n_problems]; gone once the job has ended */
    uint32_t n_problems;
    struct queue_sample *samples; /* [n_samples] those without a result when it was loaded, by sample_id */
    uint32_t n_samples;
    uint32_t *pending; /* ring of n_samples indexes */
    uint32_t pending_at, n_pending;
    uint32_t *exhausted; /* [n_exhausted] */
    uint32_t n_exhausted;
    int64_t total, done, errors, tokens; /* results in the database, those before this start included */
    int64_t started_ms, ended_ms;        /* monotonic */
    int64_t n_leases;
    struct {
        int64_t slot, samples, tokens;
    } rate[QUEUE_RATE_SLOTS];
    struct arena texts;         /* what cells point into */
    struct arena problem_texts; /* what problems point into; go with them */
};

struct queue_lease {
    struct queue_lease *prev, *next;               /* all numbered leases, earliest deadline first */
    struct queue_lease *worker_prev, *worker_next; /* its worker's */
    struct queue_job *job;
    struct queue_worker *worker; /* NULL: its process is not connected (after a restart) */
    int64_t run_id, fence;       /* fence 0: not in the database yet */
    int64_t granted_ms, deadline_ms;
    uint32_t samples[QUEUE_LEASE_SAMPLES]; /* indexes into the job's samples */
    uint32_t n_samples, n_open;            /* open: neither settled nor failed under this lease */
    uint32_t open;                         /* bit i: samples[i] is open */
    bool partial;                          /* adopted without the samples that had a result already */
    uint32_t claimed;                      /* bit i: its row is on the way into the database; the server's */
};

struct queue_worker {
    struct queue_worker *prev, *next;             /* all */
    struct queue_worker *ready_prev, *ready_next; /* those with credit; in_ready */
    bool in_ready, alive;
    int64_t run_id;
    uint32_t credit; /* samples it can take */
    char (*models)[65];
    uint32_t n_models;
    struct queue_lease *leases;
    uint32_t n_leases;
    void *owner; /* the server's */
};

struct queue {
    int64_t lease_ms, heartbeat_ms;
    int64_t hold_until_ms; /* nothing expires before */
    int64_t last_tick_ms;
    struct queue_job *jobs;
    struct map job_by_id, lease_by_fence, worker_by_run;
    struct queue_lease *first, *last; /* by deadline */
    struct queue_worker *workers, *ready;
    uint32_t n_workers;
};

/* Nothing expires in the first lease period. */
void queue_init(struct queue *queue, int64_t lease_ms, int64_t heartbeat_ms, int64_t now_ms);
void queue_free(struct queue *queue);
/* Forgets jobs and leases, keeps the workers (without credit until they ask again): before a reload. */
void queue_reset(struct queue *queue, int64_t now_ms);

/* ---- jobs ---- */

/* Takes a job over whose lists are filled in (samples PENDING, by sample_id). Then its leases are adopted, then it is
 * opened. On failure the job is freed. */
KVF_MUSTCHECK int queue_job_add(struct queue *queue, struct queue_job *job, struct kvf_err *err);
/* Puts the samples that no lease took in line; a sample whose attempts are used up becomes exhausted. */
void queue_job_open(struct queue_job *job);
void queue_job_free(struct queue_job *job);
struct queue_job *queue_job_find(const struct queue *queue, int64_t job_id);
/* Every sample has a result: the database's word on how it ended. Drops what only a running job needs. */
void queue_job_end(struct queue *queue, struct queue_job *job, enum queue_job_state state, int64_t now_ms);
/* Forgets a job with its leases, as if it had never been added: its load failed on the way. */
void queue_job_drop(struct queue *queue, struct queue_job *job);
/* Ends its leases (the caller has sent REVOKE) and drops what is pending. */
void queue_job_cancel(struct queue *queue, struct queue_job *job, int64_t now_ms);
/* Running and nothing left to do. */
bool queue_job_complete(const struct queue_job *job);
/* Live workers that hold its model. */
uint32_t queue_job_workers(const struct queue *queue, const struct queue_job *job);
/* The first job in line before it whose work a live worker of its own does instead, while it has no lease itself; NULL.
 */
const struct queue_job *queue_job_before(const struct queue *queue, const struct queue_job *job);
/* Over the last 5 s. */
void queue_job_rates(const struct queue_job *job, int64_t now_ms, double *samples_per_s, double *tokens_per_s);

/* ---- workers ---- */

/* Leases that were loaded for this run become the worker's. */
KVF_MUSTCHECK int queue_worker_add(struct queue *queue, int64_t run_id, const struct rec_model *models,
                                   uint32_t n_models, struct queue_worker **out, struct kvf_err *err);
/* Its leases stay until they expire or end otherwise. */
void queue_worker_remove(struct queue *queue, struct queue_worker *worker);
struct queue_worker *queue_worker_find(const struct queue *queue, int64_t run_id);
/* Renews the named leases that are this worker's. `credit` was counted when READY was sent: samples of leases that were
 * granted since (not named, younger than two heartbeats) are taken off. */
void queue_worker_ready(struct queue *queue, struct queue_worker *worker, uint32_t credit,
                        const struct rec_fence *named, uint32_t n_named, int64_t now_ms);
/* Silent: gets nothing until it is heard again. */
void queue_worker_silent(struct queue *queue, struct queue_worker *worker);

/* ---- leases ---- */

struct queue_lease *queue_lease_find(const struct queue *queue, int64_t fence);
/* Makes at most `max` leases without a fence: in order of jobs, each of one job, at most credit and 32 samples; near
 * the end of a job ceil(pending / (2 x workers)), so that the last ones end together. Each must be confirmed or undone.
 */
uint32_t queue_grant(struct queue *queue, struct queue_lease **out, uint32_t max);
KVF_MUSTCHECK int queue_lease_confirm(struct queue *queue, struct queue_lease *lease, int64_t fence, int64_t now_ms,
                                      struct kvf_err *err);
void queue_lease_undo(struct queue *queue, struct queue_lease *lease);
/* A lease that the database holds as active, between queue_job_add and queue_job_open. Samples that have a result are
 * left out. */
KVF_MUSTCHECK int queue_lease_adopt(struct queue *queue, struct queue_job *job, int64_t run_id, int64_t fence,
                                    const int64_t *sample_ids, uint32_t n, int64_t now_ms, struct kvf_err *err);
/* Whether the sample has its result in the database. */
bool queue_sample_is_settled(const struct queue_job *job, int64_t sample_id);
/* Place of an open sample in the lease; -2 when it is not open any more (in a partial lease also when it is not known:
 * the worker sends again what was committed before a restart); -1 when it is not in it. */
int queue_lease_place(const struct queue_lease *lease, int64_t sample_id);
void queue_lease_renew(struct queue *queue, struct queue_lease *lease, int64_t now_ms);
/* Its result is committed. */
void queue_lease_settle(struct queue *queue, struct queue_lease *lease, int place, bool error, bool correct,
                        int64_t tokens, int64_t now_ms);
/* The worker could not do this one: pending again, or exhausted. */
void queue_lease_fail(struct queue *queue, struct queue_lease *lease, int place);
/* Ends it: what is open is pending again or exhausted; `returned`: the worker gave it back, which is no attempt. */
void queue_lease_end(struct queue *queue, struct queue_lease *lease, bool returned);
/* The earliest numbered lease if its time is over, nothing being held back. */
struct queue_lease *queue_lease_expired(const struct queue *queue, int64_t now_ms);
/* An error row of an exhausted sample is committed. */
void queue_exhausted_settle(struct queue *queue, struct queue_job *job, int64_t now_ms);

/* ---- time ---- */

/* Once per turn of the loop. A turn that comes late by more than a heartbeat holds expiry back, so that what workers
 * said meanwhile is heard first. */
void queue_tick(struct queue *queue, int64_t now_ms);
/* Nothing expires before `until_ms`. */
void queue_hold(struct queue *queue, int64_t until_ms);
/* When something may expire next; INT64_MAX: never. */
int64_t queue_next_ms(const struct queue *queue);

/* Proves that every sample is on exactly one list and every count is right; the line names what is not. For tests. */
KVF_MUSTCHECK int queue_check(const struct queue *queue, struct kvf_err *err);

#endif
