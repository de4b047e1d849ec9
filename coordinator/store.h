/* store.h: everything that is written, on one connection that holds the lock of the database.
 *
 * The connection takes a session advisory lock before anything else; a second coordinator on the same database does not
 * get it. The lock lives and dies with the connection that writes, so whoever lost it cannot write: after a failure
 * with KVF_EUNAVAIL the store is closed, store_open connects and locks again, and the owner loads its queue anew. Codes
 * of every function: see pg.h. One thread.
 */
#ifndef KVF_STORE_H
#define KVF_STORE_H

#include <stdbool.h>
#include <stdint.h>
#include "alloc/err.h"
#include "coordinator/copy.h"
#include "coordinator/pg.h"
#include "coordinator/queue.h"
#include "proto/message.h"

#define SCHEMA_VERSION      4
#define STORE_TIMEOUT_MS    30000
#define STORE_SAMPLES_MAX   100000000 /* of a job: all that are not done are kept in memory, 28 bytes each */
#define STORE_CHUNK_SAMPLES 20000     /* made by one statement: well under a second */

struct store {
    struct pg pg;
    char *conninfo;
    int stop_fd;
    char application[64]; /* "kvfleet-coordinator HOST:PID": how another coordinator names us */
    bool locked;
    int64_t epoch;                          /* of this holding of the lock: a transaction id, which only grows */
    struct copy copy;                       /* of result rows */
    char *copy_sql;                         /* its two statements */
    struct column fences, ids, runs, texts; /* of other statements */
};

/* stop_fd: as for pg_connect_start. */
KVF_MUSTCHECK int store_init(struct store *store, const char *conninfo, int stop_fd, struct kvf_err *err);
void store_free(struct store *store);
/* One step towards an open store, waiting at most wait_ms for the network: 0 open; KVF_EAGAIN call again; KVF_EUNAVAIL
 * try again later; KVF_ECONFLICT another coordinator holds the lock (the line names it; *stale: its process was on this
 * host and is gone, so the lock will go too); KVF_EUNSUPPORTED the schema is newer, older or missing; KVF_EINVAL
 * conninfo. */
KVF_MUSTCHECK int store_open(struct store *store, int wait_ms, bool *stale, struct kvf_err *err);
bool store_is_open(const struct store *store);

/* ---- workers and runs (store_worker.c) ---- */

/* The run of this process: a new row, or that of the same instance, which is going on. KVF_EDENIED: the instance
 * belongs to another key or host. */
KVF_MUSTCHECK int store_run_begin(struct store *store, const char *key_name, const struct msg_hello *hello,
                                  int64_t *run_id, struct kvf_err *err);
KVF_MUSTCHECK int store_run_end(struct store *store, int64_t run_id, struct str reason, struct kvf_err *err);
KVF_MUSTCHECK int store_runs_seen(struct store *store, const int64_t *run_ids, uint32_t n, struct kvf_err *err);

/* ---- jobs (store_job.c) ---- */

struct store_job {
    int64_t job_id;
    char state[32];
    uint64_t received; /* problems */
    uint64_t n_problems, repeats, seed;
    uint64_t n_cells, made; /* samples there already */
};
KVF_MUSTCHECK int store_job_create(struct store *store, const struct msg_submit *submit, const char *submitted_by,
                                   int64_t *job_id, struct kvf_err *err);
/* The newest job of this content that has not ended, or KVF_ENOTFOUND. */
KVF_MUSTCHECK int store_job_unfinished(struct store *store, struct str content_hash, int64_t *job_id,
                                       struct kvf_err *err);
/* KVF_ENOTFOUND. `made` is counted only before it runs. */
KVF_MUSTCHECK int store_job_look(struct store *store, int64_t job_id, struct store_job *out, struct kvf_err *err);
/* Problems that are there already are left as they are. */
KVF_MUSTCHECK int store_problems_add(struct store *store, int64_t job_id, uint64_t first,
                                     const struct rec_problem *problems, uint32_t n, struct kvf_err *err);
/* Makes samples of the next (problem, repeat) pairs from job->made on, about STORE_CHUNK_SAMPLES; counts job->made up.
 */
KVF_MUSTCHECK int store_samples_make(struct store *store, struct store_job *job, struct kvf_err *err);
/* receiving becomes queued, queued becomes running; any other state stays. */
KVF_MUSTCHECK int store_job_queue(struct store *store, int64_t job_id, struct kvf_err *err);
KVF_MUSTCHECK int store_job_start(struct store *store, int64_t job_id, struct kvf_err *err);
/* The first queued job with a larger number, or KVF_ENOTFOUND. */
KVF_MUSTCHECK int store_job_queued(struct store *store, int64_t after, struct store_job *out, struct kvf_err *err);
/* Every sample has a result: done or done_with_errors. KVF_ENOTFOUND: results are missing or it does not run. */
KVF_MUSTCHECK int store_job_finish(struct store *store, int64_t job_id, enum queue_job_state *state,
                                   struct kvf_err *err);
/* Ends it and its leases, or leaves a job alone that has ended; *out: its state and what was received of it, as they
 * are then. All of it or, on failure, nothing. KVF_ENOTFOUND. */
KVF_MUSTCHECK int store_job_cancel(struct store *store, int64_t job_id, struct store_job *out, struct kvf_err *err);

/* ---- a turn of the server (store_turn.c) ---- */

struct store_row {
    int64_t fence, cell_id;
    const struct rec_result *result;
};
/* What is written together. */
struct store_turn {
    const struct store_row *rows;      /* [n_rows] */
    const int64_t *fences;             /* [n_fences] of the rows and of `done`, each once */
    const int64_t *done;               /* [n_done] leases that are over with this */
    struct queue_lease *const *leases; /* [n_leases] without a fence yet */
    uint32_t n_rows, n_fences, n_done, n_leases;
    int64_t *fenced;  /* room for n_fences; those that are not active */
    int64_t *granted; /* room for n_leases; the fence of each */
    uint32_t n_fenced;
};
/* One transaction, committed when this returns KVF_OK: rows whose lease is active become results and grades, those that
 * are there already are left as they are, the leases in `done` end, the new ones are there. */
KVF_MUSTCHECK int store_turn_write(struct store *store, struct store_turn *turn, struct kvf_err *err);

/* ---- leases and results (store_result.c, store_row.c) ---- */

KVF_MUSTCHECK int store_leases_end(struct store *store, const int64_t *fences, uint32_t n, const char *state,
                                   struct kvf_err *err);

/* KVF_EINVAL: a value that the tables do not take (unknown finish or grade, a negative or too large count). */
KVF_MUSTCHECK int store_result_check(const struct rec_result *result, struct kvf_err *err);
/* Of a batch whose lease is not in the queue any more: whether it may be forgotten by the worker because the lease
 * ended as done or each of its samples has a result. */
KVF_MUSTCHECK int store_batch_known(struct store *store, int64_t fence, const struct rec_result *results, uint32_t n,
                                    bool *known, struct kvf_err *err);
/* Error rows, without a run, for all exhausted samples of the job. */
KVF_MUSTCHECK int store_exhausted(struct store *store, const struct queue_job *job, struct kvf_err *err);

/* ---- start (store_load.c) ---- */

/* Every running job with what is left of it, and its active leases. */
KVF_MUSTCHECK int store_load(struct store *store, struct queue *queue, int64_t now_ms, struct kvf_err *err);
/* All of it or, on failure, nothing. */
KVF_MUSTCHECK int store_load_job(struct store *store, struct queue *queue, int64_t job_id, int64_t now_ms,
                                 struct kvf_err *err);

/* ---- shared by the files of the store ---- */

KVF_MUSTCHECK int store_turn_prepare(struct store *store, struct kvf_err *err);

#endif
